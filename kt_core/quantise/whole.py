"""Whether a checkpoint holds all that its model needs, each tensor in its shape: asked before anything is written."""

import re

from kt_core.engine.loader import COMPUTED, skeleton
from kt_core.errors import BadData, Unsupported
from kt_core.formats.gguf import GGUFHeader
from kt_core.types import ModelFiles
from kt_core.weights import Weights, open_weights

Shape = tuple[int, ...]
_NAMED = 5  # tensors that the error names
_FUSED = re.compile(r"(?P<prefix>.*\.experts)\.(?P<parts>gate_up|up|down)_proj")
_ONE = re.compile(r"(?P<prefix>.*\.experts)\.(?P<expert>\d{1,6})\.(gate|up|down)_proj\.weight")
_PARTS = {"gate_up": ("gate", "up"), "up": ("up",), "down": ("down",)}


def check(files: ModelFiles, header: GGUFHeader | None) -> Unsupported | None:
    """Raises BadData for tensors that are missing or have another shape than the model's, as loading it would, and what opening
    weights raises. Why kt cannot load it, if that is so: then nothing is known of its tensors.
    """
    try:
        weights = open_weights(files, header)
        missing = []
        for name, value in skeleton(weights).state_dict().items():
            fused, one = _FUSED.fullmatch(name), _ONE.fullmatch(name)
            if one and int(one["expert"]) < weights.experts(one["prefix"]):
                continue
            if name not in weights:
                missing += [] if COMPUTED.search(name) else [name]
            elif fused and weights.experts(fused["prefix"]):
                _check_experts(weights, fused["prefix"], _PARTS[fused["parts"]], tuple(value.shape))
            else:
                _check_shape(name, weights.shape(name), tuple(value.shape))
        if missing:
            raise BadData("inject.missing", count=len(missing), names=", ".join(missing[:_NAMED]))
    except Unsupported as reason:
        return reason
    return None


def _check_experts(weights: Weights, prefix: str, parts: tuple[str, ...], fused: Shape) -> None:
    """Every expert's matrices beside the fused parameter of all: [experts, out, in] or, in some families, [experts, in, out]."""
    count, first, second = fused
    if weights.experts(prefix) != count:
        raise BadData("inject.shape", name=prefix, found=[weights.experts(prefix)], expected=[count])
    for expert in range(count):
        shapes = weights.expert_shapes(prefix, expert)
        wide, long = shapes["up"][0] * len(parts), shapes["up"][1]  # of the parts on top of each other
        if "down" not in parts and (wide, long) not in ((first, second), (second, first)):
            raise BadData("inject.shape", name=f"{prefix}.{expert}.up", found=[wide, long], expected=[first, second])
        for part in parts:
            _check_shape(f"{prefix}.{expert}.{part}", shapes[part], shapes["up"][:: -1 if part == "down" else 1])


def _check_shape(name: str, found: Shape, expected: Shape) -> None:
    if found != expected:
        raise BadData("inject.shape", name=name, found=list(found), expected=list(expected))
