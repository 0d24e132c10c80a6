"""Several devices, each with a run of a model's layers: rows go from one to the next."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kt_core.device import Device

LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|$)")
VISION = re.compile(r"(?:^|\.)(?:visual|vision_\w+)(?:\.|$)")  # as families call the part that looks at images


def transfer_map(layers: int, devices: int) -> dict[int, int]:
    """The layer that each device begins with -> the device's number: as many layers for each, the last one may have fewer."""
    each = -(-layers // devices)
    return {number * each: number for number in range(devices) if number * each < layers}


def stage_of(name: str, layers: Mapping[int, int]) -> int:
    """The number of the device that has the module or parameter of that name: what stands before the layers, and is none of
    them, is with the first, what stands behind them with the last. `layers` as transfer_map has it."""
    if VISION.search(name):
        return 0
    found = LAYER.search(name)
    if found:
        return max(number for first, number in layers.items() if first <= int(found[1]))
    behind = re.search(r"(^|\.)(norm|final_layernorm|ln_f|lm_head)(\.|$)", name)
    return max(layers.values()) if behind else 0


def connect(model: nn.Module, devices: Sequence[Device], layers: Mapping[int, int]) -> None:
    """Every layer of a further device gets what it is called with there, and computes with that device as the current one."""
    for name, module in model.named_modules():
        number = stage_of(name, layers)
        inner = LAYER.search(name)
        behind = not inner and not module._modules and number == max(layers.values())
        if (inner and inner.end() == len(name)) or behind:
            module.forward = _there(module.forward, devices[number])  # type: ignore[method-assign]


def _there(own: Any, device: Device) -> Any:
    def moved(value: Any) -> Any:
        return value.to(device.torch) if isinstance(value, torch.Tensor) else value

    def forward(*args: Any, **more: Any) -> Any:
        with device.use():
            args, more = pytree.tree_map(moved, (args, more))
            return own(*args, **more)

    return forward
