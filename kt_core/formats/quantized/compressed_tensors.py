"""compressed-tensors: groups of modules, each with bits, group size and symmetry of its own.

pack-quantized INT4 and INT8, float-quantized FP8 (a scale for each row, matrix or block), int-quantized INT8, nvfp4-pack-quantized,
mxfp4-pack-quantized and mxfp8-quantized. A tensor's own type says whether it is quantised.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kt_core.formats.blocks import TensorInfo
from kt_core.formats.quantized._layouts import BLOCKS, MX, fp8, int4, int8, mxfp4, nvfp4, packed_int8
from kt_core.formats.quantized._weight import Quantized, Reader, Shape, said

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


Build = Callable[[Reader, str, TensorInfo], Quantized | None]  # reader, module, the tensor of its numbers


@dataclass(frozen=True)
class Group:
    targets: Names
    dtype: str  # of the numbers' tensor
    build: Build


def read(reader: Reader) -> Iterator[Quantized | None]:
    groups = _groups(reader)
    ignored = _names(reader, "ignore", reader.settings.get("ignore") or [])
    sparsity = reader.settings.get("sparsity_config") or {"format": "dense"}
    reader.only("sparsity_config", ("dense",), sparsity.get("format") if isinstance(sparsity, dict) else sparsity)
    if reader.settings.get("transform_config"):
        reader.only("transform_config", ({},), reader.settings["transform_config"])
    if reader.problems:
        return
    stored = reader.named(".weight_packed")
    stored += [(module, tensor) for module, tensor in reader.named(".weight") if tensor.format in _STORED]
    for module, tensor in stored:
        group = max(groups, key=lambda group: group.targets.rank(module))
        if group.targets.rank(module) < 0:
            reader.problems.add("formats.no_group", tensor=tensor.name)
        elif ignored.rank(module) > 0:
            reader.problems.add("formats.ignored", tensor=tensor.name)
        elif reader.fits(tensor, (tensor.shape,), (group.dtype,)):
            yield group.build(reader, module, tensor)


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
        targets = _names(reader, f"{field}.targets", group.get("targets"))
        form = group.get("format") or reader.settings.get("format")
        layout = _layout(reader, f"{field}.weights", weights, form)
        if layout:
            found.append(Group(targets, *layout))
    return found


def _layout(reader: Reader, field: str, weights: dict[str, Any], form: object) -> tuple[str, Build] | None:
    """The type of the numbers' tensor, and who reads a weight of it; None, with problems noted, for what kt does not read."""
    kind, bits = weights.get("type", "int"), weights.get("num_bits", 8)
    integers = kind == "int" and bits == 4
    sound = [
        reader.only(f"{field}.type", ("int",) if form == "pack-quantized" else ("int", "float"), kind),
        reader.only(f"{field}.num_bits", (4, 8), bits),
        reader.only(f"{field}.symmetric", (True, False) if integers else (True,), weights.get("symmetric", True)),
    ]
    if not all(sound):
        return None
    if integers:
        return _int4(reader, field, weights)
    if form == "pack-quantized":
        return _int8(reader, field, weights)
    if kind == "int":
        known_strategy = reader.only(f"{field}.strategy", ("channel", "tensor", None), weights.get("strategy"))
        return ("I8", lambda r, m, t: int8(r, f"{m}.weight", t, f"{m}.weight_scale")) if known_strategy else None
    return _fp8(reader, field, weights) if bits == 8 else _fp4(reader, field, weights)


def _int4(reader: Reader, field: str, weights: dict[str, Any]) -> tuple[str, Build] | None:
    size = weights.get("group_size")
    size = reader.group_size(f"{field}.group_size", -1 if size is None else size)
    known = reader.only(f"{field}.strategy", ("group", "channel", None), weights.get("strategy"))
    if size is None or not known:
        return None
    group, symmetric = size, weights.get("symmetric", True)

    def build(r: Reader, module: str, tensor: TensorInfo) -> Quantized | None:
        name = f"{module}.weight"
        sides = {"scales": "scale", "zeros": "zero_point", "order": "g_idx", "shape": "shape"}
        return int4(r, name, tensor, {side: f"{name}_{end}" for side, end in sides.items()}, group, symmetric)

    return "I32", build


def _int8(reader: Reader, field: str, weights: dict[str, Any]) -> tuple[str, Build] | None:
    """Groups of a multiple of 32, which become Q8_0."""
    size = reader.group_size(f"{field}.group_size", weights.get("group_size"))
    known = reader.only(f"{field}.strategy", ("group", None), weights.get("strategy"))
    if size is None or not known:
        return None
    group = size

    def build(r: Reader, module: str, tensor: TensorInfo) -> Quantized | None:
        name = f"{module}.weight"
        return packed_int8(r, name, tensor, f"{name}_scale", f"{name}_shape", group)

    return "I32", build


def _fp8(reader: Reader, field: str, weights: dict[str, Any]) -> tuple[str, Build] | None:
    """Scales of blocks, of 32 numbers (MXFP8), of rows or of the matrix."""
    structure, size = weights.get("block_structure"), weights.get("group_size")
    if structure is not None:
        if not reader.only(f"{field}.block_structure", tuple(map(list, BLOCKS)), structure):
            return None
        block: Shape | None = (structure[0], structure[1])
    elif not reader.only(f"{field}.group_size", (None, -1, MX[1]), size):
        return None
    else:
        block = MX if size == MX[1] else None
    return "F8_E4M3", lambda r, m, t: fp8(r, f"{m}.weight", t, f"{m}.weight_scale", block)


def _fp4(reader: Reader, field: str, weights: dict[str, Any]) -> tuple[str, Build] | None:
    """NVFP4, which divides by its factor, or MXFP4."""
    size = weights.get("group_size")
    if not reader.only(f"{field}.group_size", (16, 32), size):
        return None
    if size == MX[1]:
        return "U8", lambda r, m, t: mxfp4(r, f"{m}.weight", t, f"{m}.weight_scale")

    def build(r: Reader, module: str, tensor: TensorInfo) -> Quantized | None:
        factor = f"{module}.weight_global_scale"
        return nvfp4(r, f"{module}.weight", tensor, f"{module}.weight_scale", factor, divides=True)

    return "U8", build


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
