"""compressed-tensors: groups of modules, each with bits, group size and symmetry of its own.

pack-quantized INT4, float-quantized FP8 (a scale for each row, matrix or block), int-quantized INT8, nvfp4-pack-quantized,
mxfp4-pack-quantized and mxfp8-quantized; which of them a module has shows in its tensors.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kt_core.formats.blocks import TensorInfo
from kt_core.formats.quantized._layouts import BLOCKS, MX, fp8, int4, int8, mxfp4, nvfp4
from kt_core.formats.quantized._weight import E8M0, Quantized, Reader, Shape, said

METHODS = ("compressed-tensors",)
_STORED = ("F8_E4M3", "I8")  # a plain name whose type shows that it is quantised


@dataclass(frozen=True)
class Names:
    """Modules listed in the configuration: by name, by regular expression ("re:...") or by class."""

    exact: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]
    classes: frozenset[str]

    def rank(self, module: str) -> int:
        """2 for a module listed by name, 1 by expression, 0 by the class that quantised layers have, -1 not listed."""
        if module in self.exact:
            return 2
        if any(pattern.match(module) for pattern in self.patterns):
            return 1
        return 0 if self.classes & {"Linear", "Embedding"} else -1


@dataclass(frozen=True)
class Group:
    targets: Names
    weights: dict[str, Any]
    field: str  # where the configuration has it


def read(reader: Reader) -> Iterator[Quantized | None]:
    groups = _groups(reader)
    ignored = _names(reader, "ignore", reader.settings.get("ignore") or [])
    for what in ("sparsity_config", "transform_config"):
        if reader.settings.get(what) and reader.settings[what] != {"format": "dense"}:
            reader.only(what, (None,), "set")
    if reader.problems:
        return
    packed = [(module, tensor) for module, tensor in reader.named(".weight_packed")]
    packed += [(module, tensor) for module, tensor in reader.named(".weight") if tensor.format in _STORED]
    for module, tensor in packed:
        group = max(groups, key=lambda g: g.targets.rank(module), default=None)
        if group is None or group.targets.rank(module) < 0:
            reader.problems.add("formats.no_group", tensor=tensor.name)
        elif ignored.rank(module) > 0:
            reader.problems.add("formats.ignored", tensor=tensor.name)
        else:
            yield _weight(reader, module, tensor, group)


def _weight(reader: Reader, module: str, tensor: TensorInfo, group: Group) -> Quantized | None:
    settings, name = group.weights, f"{module}.weight"
    scales = f"{module}.weight_scale"
    has_scale = reader.tensors.get(scales)
    symmetric = settings.get("symmetric", True)
    if tensor.format == "I32":
        return _int4(reader, name, tensor, group)
    if not reader.only(f"{group.field}.symmetric", (True,), symmetric):
        return None
    if tensor.format == "I8":
        return int8(reader, name, tensor, scales)
    if tensor.format == "F8_E4M3":
        return fp8(reader, name, tensor, scales, _block(reader, group))
    if not reader.fits(tensor, (tensor.shape,), ("U8", "I32")):
        return None
    if has_scale and has_scale.format in E8M0:
        return mxfp4(reader, name, tensor, scales)
    return nvfp4(reader, name, tensor, scales, f"{module}.weight_global_scale", divides=True)


def _int4(reader: Reader, name: str, tensor: TensorInfo, group: Group) -> Quantized | None:
    settings, field = group.weights, group.field
    symmetric = settings.get("symmetric", True)
    size = settings.get("group_size")
    size = reader.group_size(f"{field}.group_size", -1 if size is None else size)
    sound = [
        reader.only(f"{field}.num_bits", (4,), settings.get("num_bits", 8)),
        reader.only(f"{field}.type", ("int",), settings.get("type", "int")),
        reader.only(f"{field}.symmetric", (True, False), symmetric),
        reader.only(f"{field}.strategy", ("group", "channel", None), settings.get("strategy")),
    ]
    if size is None or not all(sound):
        return None
    ends = {"scales": "scale", "zeros": "zero_point", "order": "g_idx", "shape": "shape"}
    return int4(reader, name, tensor, {side: f"{name}_{end}" for side, end in ends.items()}, size, symmetric)


def _block(reader: Reader, group: Group) -> Shape | None:
    """Rows and columns that share a scale of an FP8 weight; None where a row, or the matrix, has one."""
    settings, field = group.weights, group.field
    structure = settings.get("block_structure")
    if structure is not None:
        known = reader.only(f"{field}.block_structure", tuple(map(list, BLOCKS)), structure)
        return (structure[0], structure[1]) if known else None
    size = settings.get("group_size")
    known = reader.only(f"{field}.group_size", (None, -1, MX[1]), size)
    return MX if known and size == MX[1] else None


def _groups(reader: Reader) -> list[Group]:
    groups, found = reader.settings.get("config_groups"), []
    if not isinstance(groups, dict) or not groups:
        reader.problems.add("formats.quant_value", field="config_groups", value=said(groups), expected="{...}")
        return []
    for name, group in groups.items():
        field = f"config_groups.{name}"
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            reader.problems.add("formats.quant_value", field=f"{field}.weights", value=said(weights), expected="{...}")
            continue
        found.append(Group(_names(reader, f"{field}.targets", group.get("targets")), weights, f"{field}.weights"))
    return found


def _names(reader: Reader, field: str, listed: object) -> Names:
    """Names, expressions and classes of a list; a class is a name without a point that begins with a capital letter."""
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        reader.problems.add("formats.quant_value", field=field, value=said(listed), expected="[...]")
        return Names(frozenset(), (), frozenset())
    patterns = []
    for one in listed:
        if one.startswith("re:"):
            try:
                patterns.append(re.compile(one[3:]))
            except (re.error, RecursionError, OverflowError) as error:
                reader.problems.add("formats.quant_value", field=field, value=one, expected=str(error))
    plain = [one for one in listed if not one.startswith("re:")]
    return Names(frozenset(plain), tuple(patterns), frozenset(one for one in plain if one[:1].isupper()))
