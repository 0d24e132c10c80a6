"""Adapters on disk: a folder that PEFT loads, one matrix pair for each layer and each expert's projection.

Names are `base_model.model.<module>.lora_A.weight`, for experts `<module>.<expert>.<gate|up|down>_proj` in place of the
module. `kt_adapter.json` beside it says what the adapter was made from.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from kt_core.errors import BadData, NotFound
from kt_core.train.described import CONFIG, FACTS, WEIGHTS
from kt_core.train.lora import EXPERTS, PARTS, LoraLinear, TrainedExperts
from kt_core.train.settings import Settings
from kt_core.weights import Weights

PREFIX = "base_model.model."


def parameters(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every matrix of the adapter under its name in the file; views of the model's parameters."""
    for path, module in model.named_modules():
        if isinstance(module, LoraLinear):
            yield f"{PREFIX}{path}.lora_A.weight", module.lora_A.data
            yield f"{PREFIX}{path}.lora_B.weight", module.lora_B.data
        elif isinstance(module, TrainedExperts):
            for part in PARTS:
                if (factors := module.factors(part)) is None:
                    continue
                for expert in range(module.kernel.num_experts):
                    name = f"{PREFIX}{path}.{expert}.{part}_proj"
                    yield f"{name}.lora_A.weight", factors.a.data[expert]
                    yield f"{name}.lora_B.weight", factors.b.data[expert]


def save(model: nn.Module, folder: Path, settings: Settings, facts: dict[str, Any]) -> None:
    """Write the adapter into `folder`. Each file is written beside itself and renamed; the matrices come last."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = facts["coverage"]
    leaves = {leaf for kind in kinds for leaf in ([f"{p}_proj" for p in PARTS] if kind == EXPERTS else [kind])}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": settings.model_name_or_path,
        "r": settings.lora_rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": settings.lora_dropout,
        "use_rslora": settings.use_rslora,
        "bias": "none",
        "target_modules": sorted(leaves),
        "inference_mode": True,
    }
    _write(folder / CONFIG, json.dumps(config, indent=2).encode())
    _write(folder / FACTS, json.dumps({"version": 1, **facts}, indent=2).encode())
    partial = folder / f"{WEIGHTS}.partial"
    save_file({name: t.contiguous() for name, t in parameters(model)}, partial, {"format": "pt"})
    partial.replace(folder / WEIGHTS)


def load(model: nn.Module, folder: Path) -> None:
    """Read an adapter into a model that was adapted for its rank and targets. Raises NotFound, BadData."""
    found = read(folder)
    wanted = dict(parameters(model))
    if found.keys() != wanted.keys():
        odd = sorted(found.keys() ^ wanted.keys())
        raise BadData("train.adapter_names", folder=folder, count=len(odd), first=odd[0])
    for name, to in wanted.items():
        if found[name].shape != to.shape:
            raise BadData("train.adapter_shape", name=name, found=list(found[name].shape), expected=list(to.shape))
        to.copy_(found[name])


def read(folder: Path) -> dict[str, torch.Tensor]:
    """The adapter's matrices by name. Raises NotFound, BadData."""
    file = folder / WEIGHTS
    if not file.is_file():
        raise NotFound("train.no_adapter", folder=folder)
    try:
        tensors: dict[str, torch.Tensor] = load_file(file)
    except (OSError, SafetensorError, ValueError) as error:
        raise BadData("train.bad_adapter", file=file, reason=" ".join(str(error).split())) from None
    return tensors


def fingerprint(weights: Weights) -> str:
    """Of a base model: its configuration, and the names and sizes of its tensors; no weight is read."""
    described = json.dumps([weights.config(), sorted((n, weights.nbytes(n)) for n in weights.names())], sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()


def _write(file: Path, data: bytes) -> None:
    partial = file.with_name(f"{file.name}.partial")
    partial.write_bytes(data)
    partial.replace(file)
