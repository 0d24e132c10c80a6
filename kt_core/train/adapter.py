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
from safetensors.torch import save_file
from torch import nn

from kt_core import lora as stored
from kt_core.errors import BadData
from kt_core.train.described import CONFIG, FACTS, WEIGHTS
from kt_core.train.lora import EXPERTS, PARTS, LoraLinear, TrainedExperts
from kt_core.train.ranks import first, whole
from kt_core.train.settings import Settings
from kt_core.weights import Weights

PREFIX = "base_model.model."


def parameters(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every matrix of the adapter under its name in the file; views of the model's parameters in a run of one process."""
    for path, module in model.named_modules():
        if isinstance(module, LoraLinear):
            yield f"{PREFIX}{path}.lora_A.weight", whole(module.lora_A.data)
            yield f"{PREFIX}{path}.lora_B.weight", whole(module.lora_B.data)
        elif isinstance(module, TrainedExperts):
            for part in PARTS:
                if (factors := module.factors(part)) is None:
                    continue
                a, b = whole(factors.a.data), whole(factors.b.data)
                for expert in range(module.kernel.num_experts):
                    name = f"{PREFIX}{path}.{expert}.{part}_proj"
                    yield f"{name}.lora_A.weight", a[expert]
                    yield f"{name}.lora_B.weight", b[expert]


def save(model: nn.Module, folder: Path, settings: Settings, facts: dict[str, Any]) -> None:
    """Write the adapter into `folder`. Each file is written beside itself and renamed; the matrices come last.

    Every process of a run must call it; the first one writes.
    """
    matrices = {name: tensor.cpu().contiguous() for name, tensor in parameters(model)}
    if not first():
        return
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
    save_file(matrices, partial, {"format": "pt"})
    partial.replace(folder / WEIGHTS)


def load(model: nn.Module, folder: Path, scale: float) -> None:
    """Read an adapter into a model that was adapted for its rank and targets, with this factor of B A. Raises NotFound, BadData."""
    found = stored.read(folder)
    names = {*found.linears, *(f"{path}.{i}.{part}_proj" for path, pairs in found.experts.items() for i, part in pairs)}
    wanted = {name.removeprefix(PREFIX).rsplit(".", 2)[0] for name, _ in parameters(model)}
    if odd := sorted(names ^ wanted):
        raise BadData("train.adapter_names", folder=folder, count=len(odd), first=odd[0])
    fill(model, found, scale, exact=True)


def rank_of(found: stored.Adapter) -> int:
    """The largest."""
    experts = (pair for pairs in found.experts.values() for pair in pairs.values())
    return max(int(pair.a.shape[0]) for pair in (*found.linears.values(), *experts))


def fill(model: nn.Module, found: stored.Adapter, scale: float, exact: bool = False) -> None:
    """Put an adapter into a model that was adapted for it, whose factor of B A is `scale`; what it leaves out adds nothing, and, unless
    `exact`, its ranks may be smaller. Raises BadData."""
    places = dict(parameters(model))
    pairs = dict(found.linears)
    for path, experts in found.experts.items():
        pairs |= {f"{path}.{index}.{part}_proj": pair for (index, part), pair in experts.items()}
    for path, pair in pairs.items():
        a, b = (places.get(f"{PREFIX}{path}.lora_{side}.weight") for side in "AB")
        if a is None or b is None:
            raise BadData("train.adapter_names", folder=found.folder, count=1, first=path)
        rank = pair.a.shape[0]
        if a.shape[1] != pair.a.shape[1] or b.shape[0] != pair.b.shape[0] or rank > len(a) or (exact and rank < len(a)):
            shapes = (f"{list(one.shape)} x {list(two.shape)}" for one, two in ((pair.b, pair.a), (b, a)))
            raise BadData("train.adapter_shape", name=path, found=next(shapes), expected=next(shapes))
        a[:rank] = pair.a
        b.zero_()[:, :rank] = pair.b * (pair.scale / scale)


def fingerprint(weights: Weights) -> str:
    """Of a base model: its configuration, and the names and sizes of its tensors; no weight is read."""
    described = json.dumps([weights.config(), sorted((n, weights.nbytes(n)) for n in weights.names())], sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()


def _write(file: Path, data: bytes) -> None:
    partial = file.with_name(f"{file.name}.partial")
    partial.write_bytes(data)
    partial.replace(file)
