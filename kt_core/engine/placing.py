"""What of a model goes to a device beside the CPU, as the plan says."""

import copy
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kt_core import programs
from kt_core.device import Device, open_device
from kt_core.errors import BadData, DoesNotFit
from kt_core.events import one_line
from kt_core.inject import Decision
from kt_core.kernels import generate_gpu_experts_masks
from kt_core.kernels.placement import placed
from kt_core.messages import t
from kt_core.operators.crossing import Crossing
from kt_core.operators.hybrid import HybridExperts
from kt_core.operators.streamed import Streamer
from kt_core.programs import norm
from kt_core.types import Plan

log = logging.getLogger(__name__)

RULES = Path(__file__).parents[1] / "inject" / "rules" / "hybrid.yaml"
CHUNK = 2048  # tokens of a step where the plan does not say
WORK_BYTES = 1 << 30  # of a device, for what a step and its graphs compute with
CAPTURED = (1, 2, 4, 8)  # sequences of a step that is captured as a graph; others are filled up to the next of these


@dataclass(frozen=True)
class Placing:
    """A device, and how many routed experts of each layer it takes."""

    device: Device
    crossing: Crossing
    streamer: Streamer | None = None  # copies the CPU's experts for long prompts; None: never
    experts: int = 0
    strategy: str = "uniform"
    statistics: str | None = None  # a file of counts, for "frequency"
    chunk: int = CHUNK
    captured: tuple[int, ...] = CAPTURED
    pages: int = 0  # bytes that keys and values will take
    budget: int = sys.maxsize  # bytes of the device that may be used
    force: bool = False  # go on where they do not suffice


def placing_of(plan: Plan) -> Placing | None:
    """None where the plan is for the CPU alone. Raises what open_device raises."""
    devices = plan.get("devices", [])
    if not devices:
        return None
    device = open_device(devices[0])
    if len(devices) > 1:
        log.warning("%s", t("device.first_only", device=device.name, others=", ".join(devices[1:])))
    threshold = plan.get("prefill_threshold", 0)
    budgets = plan.get("vram_budget", [])
    return Placing(
        device,
        Crossing(device),
        Streamer(device, int(threshold)) if threshold else None,
        int(plan.get("gpu_experts", 0)),
        plan.get("placement", "uniform"),
        plan.get("expert_statistics", None),
        int(plan.get("chunk", CHUNK)),
        tuple(plan.get("captured", CAPTURED)),
        int(plan.value("cache")),
        int(budgets[0]) if budgets else sys.maxsize,
        bool(plan.get("force", False)),
    )


def _check_room(model: nn.Module, layers: list[str], placing: Placing) -> None:
    """Raises DoesNotFit when the device has not the memory for its weights and the pages. `model` has no memory yet."""
    inside, size = tuple(f"{key}." for key in layers), placing.device.dtype.itemsize
    rest = sum(size * part.numel() for name, part in model.named_parameters() if not name.startswith(inside))
    experts = [model.get_submodule(key) for key in layers]
    one = sum(size * part.numel() // int(module.num_experts) for module in experts for part in module.parameters())
    count = min(placing.experts, max((int(module.num_experts) for module in experts), default=0))
    free = min(placing.device.memory()[0], placing.budget) - WORK_BYTES
    left = free - rest - placing.pages
    if left < count * one and not placing.force:
        numbers = {"rest": rest, "resident": count * one, "cache": placing.pages, "free": free}
        sizes = {name: _gib(value) for name, value in numbers.items()}
        fits = max(0, left // max(1, one))
        raise DoesNotFit("device.weights_big", device=placing.device.name, experts=count, fits=fits, **sizes)


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


def shared_out(model: nn.Module, decisions: Mapping[str, Decision], placing: Placing) -> dict[str, Decision]:
    """The decisions, with each layer of routed experts told which of them the device takes."""
    layers = [key for key, decision in decisions.items() if decision.replacement is HybridExperts]
    _check_room(model, layers, placing)
    told = dict(decisions)
    if layers:
        counts = [int(model.get_submodule(key).num_experts) for key in layers]
        masks = _masks(placing, len(layers), max(counts))
        common = {"crossing": placing.crossing, "streamer": placing.streamer}
        for key, count, mask in zip(layers, counts, masks, strict=True):
            numbers = [number for number in mask.nonzero()[:, 0].tolist() if number < count]
            told[key] = replace(decisions[key], kwargs={**common, "on_device": numbers})
        log.info("experts on %s, by layer: %s", placing.device.name, masks.sum(1).tolist())
    return told


def _masks(placing: Placing, layers: int, experts: int) -> torch.Tensor:
    total = min(placing.experts, experts) * layers
    if placing.strategy != "frequency" or placing.statistics is None:
        return placed("uniform" if placing.strategy == "frequency" else placing.strategy, layers, experts, total)
    counts = _counts(placing.statistics)
    if counts.shape != (layers, experts):
        raise BadData(
            "device.statistics", path=placing.statistics, found=list(counts.shape), expected=[layers, experts]
        )
    return generate_gpu_experts_masks(counts, total)


def _counts(path: str) -> torch.Tensor:
    """How often each expert was chosen, [layers, experts], of a file that holds them for several stretches of text."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        found = found["logical_count"] if isinstance(found, dict) else found
        counts: torch.Tensor = found.double().sum(0)
    except Exception as e:  # whatever reading a file of another kind raises
        raise BadData("device.statistics_file", path=path, reason=f"{type(e).__name__}: {e}".splitlines()[0]) from e
    return counts


def kept_exact(model: Any, name: str) -> bool:
    """Whether the family computes with this parameter in float32 whatever the model's dtype."""
    patterns = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    return any(re.search(rf"(^|\.){re.escape(pattern)}($|\.)", name) for pattern in patterns)


def settled(model: nn.Module, placing: Placing) -> None:
    """Once everything is loaded: buffers and what else is still on the CPU to the device, norms as one operation of torch each,
    and memory for layers that are streamed."""
    device = placing.device
    for module in model.modules():
        for values in (module._buffers, module._parameters):
            for name, value in values.items():
                if value is not None and value.device.type != device.kind:
                    values[name] = _moved(value, device.torch)
    _fuse_norms(model, device)
    if placing.streamer:
        placing.streamer.prepare()


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
            fused = nn.RMSNorm(weight.numel(), found.epsilon, device=device.torch, dtype=device.dtype)
            fused.weight = nn.Parameter(
                (found.weight + found.offset).to(device.torch, device.dtype), requires_grad=False
            )
            parent._modules[name] = fused.eval()
