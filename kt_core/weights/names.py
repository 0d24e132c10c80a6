"""Which bytes of a checkpoint are which of the model's parameters, under transformers' names.

transformers holds the experts of a layer fused; checkpoints hold them one by one, fused, or (GGUF) stacked by part.
All come out as one `Rows` for each expert and part.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kt_core.errors import Unsupported
from kt_core.formats import TensorInfo
from kt_core.formats.gguf import GGUFHeader
from kt_core.formats.problems import Problems
from kt_core.formats.quantized import Quantized
from kt_core.models import families
from kt_core.models.layers import text_of

PARTS = ("gate", "up", "down")


@dataclass(frozen=True)
class Rows:
    """`count` rows from `first` on of a tensor seen as [rows, last dimension], each `step` further, in the given shape.

    `heads` > 0: within each head, rows alternate between the two halves that rotary embedding pairs.
    `across`: the matrix is every so many columns of these rows, from its first number on, transposed.
    """

    tensor: TensorInfo
    first: int
    count: int
    shape: tuple[int, ...]
    heads: int = 0
    step: int = 1
    across: tuple[int, int] | None = None  # first column, step

    @property
    def place(self) -> str:
        """Where in the checkpoint it begins: "tensor:first row", and the first column where it lies across."""
        return f"{self.tensor.name}:{self.first}" + (f":{self.across[0]}" if self.across else "")

    @property
    def cols(self) -> int:
        return self.tensor.shape[-1] if self.tensor.shape else 1


@dataclass
class NameMap:
    """`parameters` without experts; `experts`: prefix -> [{part -> rows}]; `skipped`: known and not needed.

    `interleaved`: the model's own fused experts have input and output exchanged, and gate and up column by column.
    `turned`: the stored ones have them exchanged, and the model's own do not.
    """

    parameters: dict[str, Rows] = field(default_factory=dict)
    experts: dict[str, list[dict[str, Rows]]] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    interleaved: bool = False
    turned: bool = False


def _whole(tensor: TensorInfo, heads: int = 0) -> Rows:
    count = 1
    for dimension in tensor.shape[:-1]:
        count *= dimension
    return Rows(tensor, 0, count, tensor.shape, heads)


def _slices(tensor: TensorInfo, per_expert: int, first: int, count: int, step: int = 1) -> list[Rows]:
    """Of a 3-D tensor with `per_expert` rows an expert: `count` of each, from `first` on."""
    shape = (count, tensor.shape[2])
    return [Rows(tensor, e * per_expert + first, count, shape, step=step) for e in range(tensor.shape[0])]


def as_stored(tensors: Mapping[str, TensorInfo]) -> NameMap:
    """Every tensor under the checkpoint's own name, stacks of experts whole."""
    return NameMap(parameters={name: _whole(tensor) for name, tensor in tensors.items()})


def from_gguf(header: GGUFHeader, config: dict[str, Any]) -> NameMap:
    """The map of a GGUF model. Raises what families.gguf_names raises."""
    found = NameMap(skipped=families.gguf_skipped(header, config))
    heads = families.gguf_heads(header, config)
    single: dict[str, dict[tuple[int, str], Rows]] = {}
    for hf, gguf in families.gguf_names(header).items():
        tensor = header.tensors[gguf]
        if match := _PER_EXPERT.fullmatch(hf):
            single.setdefault(match["prefix"], {})[int(match["expert"]), match["part"]] = _whole(tensor)
        elif match := _STACKED.fullmatch(hf):
            layer = found.experts.setdefault(match["prefix"], [{} for _ in range(tensor.shape[0])])
            for expert, rows in zip(layer, _slices(tensor, tensor.shape[1], 0, tensor.shape[1]), strict=True):
                expert[match["part"]] = rows
        elif gguf.endswith("_norm.weight") and len(tensor.shape) == 1:
            found.parameters[hf] = _whole(tensor)
        else:
            found.parameters[hf] = _whole(tensor, heads.get(gguf, 0))
    found.experts |= {prefix: _in_order(experts) for prefix, experts in single.items()}
    return found


_PER_EXPERT = re.compile(r"(?P<prefix>.*\.experts)\.(?P<expert>\d{1,6})\.(?P<part>gate|up|down)_proj\.weight")
_STACKED = re.compile(r"(?P<prefix>.*\.experts)\.(?P<part>gate|up|down)_proj")
_FUSED = re.compile(r"(?P<prefix>.*\.experts)\.(?P<part>gate_up|down)_proj")
_LAYER = re.compile(r"model\.layers\.(\d{1,6})\.")
# Layouts with input and output exchanged or gate and up interleaved; a shape alone cannot tell them apart.
_OTHER_LAYOUT = ("llama4", "llama4_text", "openai_privacy_filter")
_TRANSPOSED = {
    "gpt_oss": 2,
    "aria_text": 1,
    "qwen3_vl_moe": 1,
}  # [E, H, 2I], gate and up in turn or one after the other; and [E, I, H]
_NUMBERED = re.compile(r"(?<=\.)w([123])(?=\.weight$)")
_NUMBERED_PARTS = {"1": "gate_proj", "3": "up_proj", "2": "down_proj"}


def class_name(family: str, vision: bool) -> str | None:
    """transformers' class for a model type: the one that looks at images too with `vision`, or where there is no other."""
    from transformers.models.auto import modeling_auto as auto

    causal = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(family)
    seeing: str | None = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(family)
    return seeing if seeing and (vision or not causal) else causal


def from_safetensors(tensors: Mapping[str, TensorInfo], config: dict[str, Any], vision: bool = False) -> NameMap:
    """The map of a transformers checkpoint, in its published or in its fused form; with `vision`, under the names of the
    class that looks at images."""
    found = NameMap()
    single: dict[str, dict[tuple[int, str], Rows]] = {}
    family = str(config.get("model_type"))
    renamed = _renamings(family, class_name(family, vision))
    config = {**text_of(config), "model_type": family}
    for name, tensor in tensors.items():
        if _needless(name, config):
            found.skipped.add(name)
            continue
        hf = renamed(name)
        if match := _PER_EXPERT.fullmatch(hf):
            single.setdefault(match["prefix"], {})[int(match["expert"]), match["part"]] = _whole(tensor)
        elif (match := _FUSED.fullmatch(hf)) and _is_plain(tensor, match["part"], config):
            _add_fused(found, match["prefix"], match["part"], tensor, config)
        elif match and config.get("model_type") in _TRANSPOSED and len(tensor.shape) == 3:
            _add_transposed(found, match["prefix"], match["part"], tensor, config)
        else:
            found.parameters[hf] = _whole(tensor)
    found.experts |= {prefix: _in_order(experts) for prefix, experts in single.items()}
    return found


def _renamings(family: str, architecture: str | None) -> Callable[[str], str]:
    """From a family's published names to transformers' own, by transformers' table (`conversion_mapping.py`).

    The function raises Unsupported for a tensor that the table converts in more than its name; one tensor for each
    expert in place of all in one is the form that kernels take, and transposed experts are read as they are.
    """
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    from transformers.core_model_loading import MergeModulelist, Transpose, WeightConverter

    steps = [step for key in (architecture, family) for step in get_checkpoint_conversion_mapping(key) or ()]
    converters = [step for step in steps if isinstance(step, WeightConverter)]
    names = [step for step in steps if not isinstance(step, WeightConverter)]

    def renamed(name: str) -> str:
        for step in names:
            name = step.rename_source_key(name)[0]
        converter = next((step for step in converters if step.rename_source_key(name)[1] is not None), None)
        if converter is None:
            return name
        if isinstance(converter.operations[0], Transpose) and family in _TRANSPOSED:
            return name
        if not isinstance(converter.operations[0], MergeModulelist):
            raise Unsupported("weights.conversion", tensor=name, operation=type(converter.operations[0]).__name__)
        return _NUMBERED.sub(lambda match: _NUMBERED_PARTS[match[1]], name)

    return renamed


def _needless(name: str, config: dict[str, Any]) -> bool:
    """Tables that transformers computes itself, and the layers that predict further tokens."""
    if name.endswith("rotary_emb.inv_freq"):
        return True
    match, layers = _LAYER.match(name), config.get("num_hidden_layers")
    extra = config.get("num_nextn_predict_layers")
    if match is None or not isinstance(layers, int) or not isinstance(extra, int):
        return False
    return layers <= int(match[1]) < layers + extra


def _is_plain(tensor: TensorInfo, part: str, config: dict[str, Any]) -> bool:
    """Whether the experts' fused tensor is [experts, out, in], row by row.

    Others stay parameters as they are, for transformers' own module.
    """
    family = config.get("model_type")
    if family in _OTHER_LAYOUT or len(tensor.shape) != 3:
        return False
    if family == "qwen3_vl_moe":  # published transposed, saved by transformers as it holds them: the shape tells
        hidden, inner = config.get("hidden_size"), config.get("moe_intermediate_size")
        own = (2 * inner, hidden) if part == "gate_up" and isinstance(inner, int) else (hidden, inner)
        return tuple(tensor.shape[1:]) == own
    if family in _TRANSPOSED and not isinstance(tensor, Quantized):  # quantised ones are not transposed
        return False
    return tensor.shape[2 if part == "gate_up" else 1] == config.get("hidden_size")


def _add_fused(found: NameMap, prefix: str, part: str, tensor: TensorInfo, config: dict[str, Any]) -> None:
    experts, rows, _ = tensor.shape
    found.interleaved = _TRANSPOSED.get(str(config.get("model_type"))) == 2
    layer = found.experts.setdefault(prefix, [{} for _ in range(experts)])
    parts = ("gate", "up") if part == "gate_up" else ("down",)
    count = rows // len(parts)
    for index, name in enumerate(parts):
        place = (index, count, len(parts)) if found.interleaved else (index * count, count, 1)
        for expert, piece in zip(layer, _slices(tensor, rows, *place), strict=False):
            expert[name] = piece


def _add_transposed(found: NameMap, prefix: str, part: str, tensor: TensorInfo, config: dict[str, Any]) -> None:
    experts, rows, cols = tensor.shape
    # The elements move, so they must be whole; blocks would have to be decoded.
    hidden = rows if part == "gate_up" else cols
    if hidden != config.get("hidden_size") or tensor.format not in ("BF16", "F16", "F32"):
        raise Unsupported("weights.fused_layout", tensor=tensor.name, shape=list(tensor.shape))
    step, found.turned = _TRANSPOSED[str(config["model_type"])], config["model_type"] == "qwen3_vl_moe"
    columns = (
        {"gate": (0, step), "up": (1 if step == 2 else cols // 2, step)} if part == "gate_up" else {"down": (0, 1)}
    )
    layer = found.experts.setdefault(prefix, [{} for _ in range(experts)])
    for name, across in columns.items():
        for e, expert in zip(range(experts), layer, strict=False):
            expert[name] = Rows(tensor, e * rows, rows, (cols // len(columns), rows), across=across)


def _in_order(experts: dict[tuple[int, str], Rows]) -> list[dict[str, Rows]]:
    """Experts by number, each with the parts that were found; a number far beyond the others leaves one gap only."""
    numbers = sorted({index for index, _ in experts})
    if numbers[-1] >= len(numbers):
        numbers = list(range(len(numbers) + 1))
    return [{part: experts[index, part] for part in PARTS if (index, part) in experts} for index in numbers]


def check_experts(found: NameMap, problems: Problems) -> None:
    """Every expert of every layer has its three matrices, or all of a layer's are without a gate."""
    for prefix, experts in found.experts.items():
        needed = PARTS if any("gate" in parts for parts in experts) else PARTS[1:]
        for index, parts in enumerate(experts):
            for part in needed:
                if part not in parts:
                    problems.add("weights.expert_missing", expert=index, part=part, prefix=prefix)
