"""What of a model goes to a device beside the CPU, as the plan says."""

import copy
import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kt_core import programs
from kt_core.device import Device, open_device, panels
from kt_core.engine.counts import read
from kt_core.engine.pipeline import LAYER, connect, stage_of, transfer_map
from kt_core.errors import DoesNotFit
from kt_core.events import one_line
from kt_core.inject import Decision
from kt_core.kernels import generate_gpu_experts_masks
from kt_core.kernels.placement import placed
from kt_core.operators.ahead import Ahead
from kt_core.operators.crossing import Crossing
from kt_core.operators.hybrid import HybridExperts
from kt_core.operators.resident import PLAIN
from kt_core.operators.streamed import Streamer
from kt_core.programs import norm
from kt_core.types import Plan
from kt_core.weights import Weights

log = logging.getLogger(__name__)

RULES = Path(__file__).parents[1] / "inject" / "rules" / "hybrid.yaml"
CHUNK = 2048  # tokens of a step where the plan does not say
WORK_BYTES = 1 << 30  # of a device, for what a step and its graphs compute with
CAPTURED = (1, 2, 4, 8)  # sequences of a step that is captured as a graph; others are filled up to the next of these


@dataclass(frozen=True)
class Stage:
    """A device, the way from it to the CPU's experts, and what copies these for long prompts; None: never."""

    device: Device
    crossing: Crossing
    streamer: Streamer | None = None


@dataclass(frozen=True)
class Placing(Stage):
    """The first device, and how many routed experts of each layer go to it, or to the `further` ones that have layers too."""

    experts: int = 0
    strategy: str = "uniform"
    deferred: int = 0  # experts of a token that each layer leaves to the next
    statistics: str | None = None  # a file of counts, for "frequency"
    chunk: int = CHUNK
    captured: tuple[int, ...] = CAPTURED
    pages: int = 0  # bytes that keys and values will take
    budget: int = sys.maxsize  # bytes of the device that may be used
    force: bool = False  # go on where they do not suffice
    further: tuple[Stage, ...] = ()

    @property
    def stages(self) -> tuple[Stage, ...]:
        return (self, *self.further)

    def layers(self, model: Any) -> dict[int, int]:
        """As pipeline.transfer_map has it."""
        return transfer_map(int(model.config.get_text_config().num_hidden_layers), len(self.stages))

    def place(self, model: Any, name: str) -> torch.device:
        """Where the parameter or module of that name lies."""
        return self.stages[stage_of(name, self.layers(model))].device.torch


def placing_of(plan: Plan) -> Placing | None:
    """None where the plan is for the CPU alone. Raises what open_device raises."""
    devices = plan.get("devices", [])
    if not devices:
        return None
    opened = [open_device(name) for name in devices]
    threshold = plan.get("prefill_threshold", 0)
    budgets = plan.get("vram_budget", [])
    stages = [(one, Crossing(one), Streamer(one, int(threshold)) if threshold else None) for one in opened]
    return Placing(
        *stages[0],
        int(plan.get("gpu_experts", 0)),
        plan.get("placement", "uniform"),
        statistics=plan.get("expert_statistics", None),
        deferred=int(plan.get("deferred", 0)),
        chunk=int(plan.get("chunk", CHUNK)),
        captured=tuple(plan.get("captured", CAPTURED)),
        pages=int(plan.value("cache")),
        budget=int(budgets[0]) if budgets else sys.maxsize,
        force=bool(plan.get("force", False)),
        further=tuple(Stage(*stage) for stage in stages[1:]),
    )


def _expert_bytes(module: Any, key: str, weights: Weights, device: Device) -> int:
    """One expert of a layer on a device: as it is stored where it is kept so, else in the device's dtype."""
    stored = [weights.expert(key, 0, part) for part in ("gate", "up", "down") if part != "gate" or module.has_gate]
    if {matrix.format for matrix in stored} <= set(panels.DECODERS) - PLAIN:
        arrays = (part for one in stored for part in (one.data, one.scales, one.zeros) if part is not None)
        return sum(part.nbytes for part in arrays)
    return sum(device.dtype.itemsize * matrix.rows * matrix.cols for matrix in stored)


def _check_room(model: nn.Module, layers: list[str], placing: Placing, weights: Weights) -> None:
    """Raises DoesNotFit when the device has not the memory for its weights and the pages. `model` has no memory yet."""
    size, starts = placing.device.dtype.itemsize, placing.layers(model)
    for number, stage in enumerate(placing.stages):
        keys = [key for key in layers if stage_of(key, starts) == number]
        inside = tuple(f"{key}." for key in layers)
        there = (
            part
            for name, part in model.named_parameters()
            if not name.startswith(inside) and stage_of(name, starts) == number
        )
        rest = sum(size * part.numel() for part in there)
        experts = [model.get_submodule(key) for key in keys]
        one = sum(_expert_bytes(module, key, weights, stage.device) for key, module in zip(keys, experts, strict=True))
        count = min(placing.experts, max((int(module.num_experts) for module in experts), default=0))
        pages = placing.pages // len(placing.stages)
        free = min(stage.device.memory()[0], placing.budget) - WORK_BYTES
        left = free - rest - pages
        if left < count * one and not placing.force:
            numbers = {"rest": rest, "resident": count * one, "cache": pages, "free": free}
            sizes = {name: _gib(value) for name, value in numbers.items()}
            fits = max(0, left // max(1, one))
            raise DoesNotFit("device.weights_big", device=stage.device.name, experts=count, fits=fits, **sizes)


@contextmanager
def said_when_full(placing: Placing | None) -> Iterator[None]:
    """What torch raises within this block when the device is full becomes DoesNotFit, which says what to change."""
    try:
        yield
    except torch.OutOfMemoryError as e:
        device = placing.device.name if placing else "cpu"
        raise DoesNotFit("device.full", device=device, reason=one_line(e)) from e


def _gib(count: int) -> str:
    return f"{max(0, count) / 2**30:.2f} GiB"


def shared_out(
    model: nn.Module, decisions: Mapping[str, Decision], placing: Placing, weights: Weights
) -> dict[str, Decision]:
    """The decisions, with each layer of routed experts told which of them the device takes."""
    layers = [key for key, decision in decisions.items() if decision.replacement is HybridExperts]
    _check_room(model, layers, placing, weights)
    told = dict(decisions)
    if layers:
        counts = [int(model.get_submodule(key).num_experts) for key in layers]
        numbers = [int(LAYER.findall(key)[0]) for key in layers]
        every = int(model.config.get_text_config().num_hidden_layers)
        masks = _masks(placing, numbers, every, max(counts))
        starts, before = placing.layers(model), None
        for key, count, mask in zip(layers, counts, masks, strict=True):
            chosen = [number for number in mask.nonzero()[:, 0].tolist() if number < count]
            stage = placing.stages[stage_of(key, starts)]
            kwargs: dict[str, Any] = {
                "crossing": stage.crossing,
                "streamer": stage.streamer,
                "before": before,
                "on_device": chosen,
            }
            kwargs |= {"moves": placing.strategy == "dynamic", "deferred": 0 if key == layers[-1] else placing.deferred}
            told[key] = replace(decisions[key], kwargs=kwargs)
            before = stage.crossing
        log.info("experts on %s, by layer: %s", placing.device.name, masks.sum(1).tolist())
    return told


def _masks(placing: Placing, numbers: Sequence[int], layers: int, experts: int) -> torch.Tensor:
    """bool [layers of these numbers, experts] of a model with so many layers."""
    total = min(placing.experts, experts) * len(numbers)
    counted = placing.strategy in ("frequency", "dynamic")
    if placing.statistics is None or not counted:
        return placed("uniform" if counted else placing.strategy, len(numbers), experts, total)
    counts = read(placing.statistics, numbers, layers, experts)
    return generate_gpu_experts_masks(counts, total)


def kept_exact(model: Any, name: str) -> bool:
    """Whether the family computes with this parameter in float32 whatever the model's dtype."""
    patterns = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    return any(re.search(rf"(^|\.){re.escape(pattern)}($|\.)", name) for pattern in patterns)


def settled(model: nn.Module, placing: Placing) -> None:
    """Once everything is loaded: buffers and what else is still on the CPU to the device, norms as one operation of torch each,
    and memory for layers that are streamed."""
    device = placing.device
    for prefix, module in model.named_modules():
        place = placing.place(model, prefix)
        for values in (module._buffers, module._parameters):
            for name, value in values.items():
                if value is not None and value.device.type != device.kind:
                    values[name] = _moved(value, place)
    _fuse_norms(model, device)
    for prefix, module in model.named_modules():
        if isinstance(module, HybridExperts):
            module.ahead = Ahead.of(model.get_submodule(prefix.rpartition(".")[0]))
    if placing.further:
        connect(model, [stage.device for stage in placing.stages], placing.layers(model))
    for stage in placing.stages:
        if stage.streamer:
            with stage.device.use():
                stage.streamer.prepare()


def _moved(value: Any, device: torch.device) -> Any:
    moved = value.detach().to(device)
    return nn.Parameter(moved, requires_grad=False) if isinstance(value, nn.Parameter) else moved


def _fuse_norms(model: nn.Module, device: Device) -> None:
    """transformers' norms are eight operations on a device, and torch's own is one; whether it is the same is tried."""
    for parent in model.modules():
        for name, module in list(parent._modules.items()):
            weight = getattr(module, "weight", None)
            if module is None or module._modules or not isinstance(weight, torch.Tensor) or weight.dim() != 1:
                continue
            try:
                found = norm.read(copy.deepcopy(module).to("cpu", torch.float32))
            except (programs.Unfit, AttributeError, RuntimeError, TypeError):
                continue
            fused = nn.RMSNorm(weight.numel(), found.epsilon, device=weight.device, dtype=device.dtype)
            fused.weight = nn.Parameter(
                (found.weight + found.offset).to(weight.device, device.dtype), requires_grad=False
            )
            parent._modules[name] = fused.eval()
