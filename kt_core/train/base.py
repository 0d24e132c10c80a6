"""Training a model's own weights: all of them, or those of some layers."""

import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from kt_core.errors import BadData, Unsupported, UsageError
from kt_core.kernels.training import step
from kt_core.train.lora import EXPERTS, TrainedExperts, trainable
from kt_core.train.settings import Settings

ALL = "all"
WEIGHTS = "trained.safetensors"  # of a checkpoint: what is trained, float32
LAYER = re.compile(r"\.layers\.(\d+)\.(.+)")
EXACT = ("BF16", "F32", "F16")  # formats of experts that can be trained themselves


def refuse(formats: dict[str, int], s: Settings) -> None:
    """Raises Unsupported, before anything is loaded, where the experts' stored form cannot be trained."""
    coarse = sorted(set(formats) - set(EXACT))
    if coarse:
        raise Unsupported("train.frozen_format", type=s.finetuning_type, formats=", ".join(coarse))


def thaw(model: nn.Module, s: Settings) -> dict[str, int]:
    """Freeze the model but for what the settings name; trained tensors by kind, and layers of experts.

    `full`: everything. `freeze`: of the last `freeze_trainable_layers` layers (below 0: the first) the modules
    `freeze_trainable_modules`, and `freeze_extra_modules` outside of layers.
    Raises UsageError for a name that nothing has, Unsupported for experts with biases.
    """
    for module in model.modules():
        if isinstance(module, TrainedExperts) and module.has_bias:
            raise Unsupported("train.biased", module=module.key)
    wanted = _Wanted(model, s)
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(wanted(name))
        if parameter.requires_grad:
            kind = name.rsplit(".", 2)[-2]
            counts[kind] = counts.get(kind, 0) + 1
    for path, module in model.named_modules():
        if isinstance(module, TrainedExperts) and wanted(f"{path}."):
            module.thaw(s.keep_activations)
            counts[EXPERTS] = counts.get(EXPERTS, 0) + 1
    for name in wanted.unused():
        raise UsageError("train.no_target", name=name, known=", ".join([ALL, *wanted.known()]))
    return counts


class _Wanted:
    """Whether a parameter, or a module whose name ends with a dot, is to be trained."""

    def __init__(self, model: nn.Module, s: Settings) -> None:
        self.full = s.finetuning_type == "full"
        self.modules = _names(s.freeze_trainable_modules)
        self.extra = _names(s.freeze_extra_modules or [])
        self.used: set[str] = set()
        self.seen: set[str] = set()
        found = (LAYER.search(f".{name}.") for name, _ in model.named_modules())
        count = 1 + max((int(layer[1]) for layer in found if layer), default=-1)
        number = s.freeze_trainable_layers
        self.layers = range(max(0, count - number), count) if number >= 0 else range(min(count, -number))

    def __call__(self, name: str) -> bool:
        if self.full:
            return True
        layer = LAYER.search(f".{name}")
        parts = (layer[2] if layer else name).split(".")
        self.seen |= {part for part in parts[:-1] if not layer or part != "weight"}
        if layer and int(layer[1]) not in self.layers:
            return False
        if layer and ALL in self.modules:
            self.used.add(ALL)
            return True
        hits = set(parts) & set(self.modules if layer else self.extra)
        self.used |= hits
        return bool(hits)

    def unused(self) -> list[str]:
        return [] if self.full else [name for name in [*self.modules, *self.extra] if name not in self.used]

    def known(self) -> list[str]:
        return sorted(self.seen)


def _names(given: str | list[str]) -> list[str]:
    return [name.strip() for name in given.split(",")] if isinstance(given, str) else given


def save(model: nn.Module, folder: Path) -> None:
    """What is trained, exactly, beside the complete checkpoint whose numbers may be rounded."""
    save_file({name: p.detach().contiguous() for name, p in trainable(model).items()}, folder / WEIGHTS)


def load(model: nn.Module, folder: Path) -> None:
    """Put back what `save` wrote. Raises BadData for that of another run."""
    found: dict[str, torch.Tensor] = load_file(folder / WEIGHTS)
    wanted: dict[str, Any] = trainable(model)
    odd = sorted(found.keys() ^ wanted.keys())
    if odd:
        raise BadData("train.adapter_names", folder=folder, count=len(odd), first=odd[0])
    for name, parameter in wanted.items():
        parameter.data.copy_(found[name])
    for module in model.modules():
        if isinstance(module, TrainedExperts) and (masters := module.masters()):
            step(module.kernel, masters)
