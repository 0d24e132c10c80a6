"""What an adapter adds to which module.

PEFT's names are `base_model.model.<module>.lora_A.weight`, for an expert's projection `<experts>.<expert>.<gate|up|down>_proj` in
place of the module.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kt_core.errors import BadData, Unsupported
from kt_core.lora.stored import CONFIG, PREFIX, WEIGHTS, stored

__all__ = ["CONFIG", "PARTS", "PREFIX", "WEIGHTS", "Adapter", "Pair", "read"]

PARTS = ("gate", "up", "down")
_EXPERT = re.compile(r"(.+)\.(\d+)\.(gate|up|down)_proj")
# Of adapter_config.json: what would make another function of it than W + scale B A, unless it has one of these values.
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "use_dora": (None, False),
    "bias": (None, "none"),
    "modules_to_save": (None, []),
    "fan_in_fan_out": (None, False),
    "alora_invocation_tokens": (None,),
    "trainable_token_indices": (None,),
}


@dataclass(frozen=True)
class Pair:
    """W + scale B A: a [rank, in] and b [out, rank], float32."""

    a: torch.Tensor
    b: torch.Tensor
    scale: float


@dataclass(frozen=True)
class Adapter:
    """What is added to which module; `experts`: module -> (expert, "gate", "up" or "down") -> its pair."""

    folder: Path
    digest: bytes  # of all that decides what it does
    linears: dict[str, Pair]
    experts: dict[str, dict[tuple[int, str], Pair]]
    base: str = ""  # the model that it was made for, as its maker called it

    @property
    def nbytes(self) -> int:
        """Bytes that serving it takes: float32 for linear layers, bfloat16 for experts."""
        experts = (pair for pairs in self.experts.values() for pair in pairs.values())
        return 4 * sum(map(_numbers, self.linears.values())) + 2 * sum(map(_numbers, experts))


def _numbers(pair: Pair) -> int:
    return int(pair.a.numel() + pair.b.numel())


def read(folder: Path) -> Adapter:
    """The adapter of a folder or a GGUF file, whoever wrote it. Raises NotFound where there is none, BadData for a damaged one,
    Unsupported for one of another kind."""
    found = stored(folder)
    config, tensors = found.config, found.tensors
    _check(folder, config)
    linears: dict[str, Pair] = {}
    experts: dict[str, dict[tuple[int, str], Pair]] = {}
    for name in sorted(tensors):
        path, _, side = name.rpartition(".lora_")
        if side not in ("A.weight", "B.weight"):
            raise Unsupported("lora.tensor", folder=folder, name=name)
        if side != "A.weight":
            if f"{name.removesuffix('B.weight')}A.weight" not in tensors:
                raise BadData("lora.half", folder=folder, name=name)
            continue
        pair = _pair(folder, config, path, name, tensors)
        if match := _EXPERT.fullmatch(path):
            experts.setdefault(match[1], {})[int(match[2]), match[3]] = pair
        else:
            linears[path] = pair
    return Adapter(folder, found.digest, linears, experts, str(config.get("base_model_name_or_path") or ""))


def _check(folder: Path, config: dict[str, Any]) -> None:
    if config["peft_type"] != "LORA":
        raise Unsupported("lora.kind", folder=folder, name="peft_type", value=config["peft_type"])
    for name, plain in _PLAIN.items():
        if config.get(name) not in plain:
            raise Unsupported("lora.kind", folder=folder, name=name, value=config[name])


def _pair(folder: Path, config: dict[str, Any], path: str, name: str, tensors: dict[str, torch.Tensor]) -> Pair:
    a, b = tensors[name], tensors.get(name.replace(".lora_A.", ".lora_B."))
    if b is None:
        raise BadData("lora.half", folder=folder, name=name)
    floats = a.is_floating_point() and b.is_floating_point()
    if not floats or a.dim() != 2 or b.dim() != 2 or a.shape[0] != b.shape[1] or a.shape[0] == 0:
        raise BadData("lora.shapes", folder=folder, name=path, a=list(a.shape), b=list(b.shape))
    a, b = a.float(), b.float()
    if not (a.isfinite().all() and b.isfinite().all()):
        raise BadData("lora.not_finite", folder=folder, name=path)
    return Pair(a, b, _scale(folder, config, path, a.shape[0]))


def _scale(folder: Path, config: dict[str, Any], path: str, rank: int) -> float:
    """As PEFT has it: lora_alpha, or alpha_pattern's for a module whose name ends like the pattern, over rank or its root."""
    alpha = config.get("lora_alpha")
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        try:
            fits = re.match(rf"(.*\.)?({pattern})$", path)
        except re.error:
            continue
        if fits:
            alpha = value
            break
    alpha = rank if alpha is None else alpha
    if not isinstance(alpha, int | float):
        raise BadData("lora.damaged", file=folder / CONFIG, reason="lora_alpha")
    return float(alpha) / (rank**0.5 if config.get("use_rslora") else rank)
