"""Experts on a device: rows sorted by expert, and products of groups of rows."""

from dataclasses import dataclass
from typing import Any

import torch

from kt_core.device import Device

FEW = (
    64  # rows whose weights are gathered where the device has no product of groups: a copy, but no question to the CPU
)


@dataclass(frozen=True)
class Weights:
    """Of G experts: gate and up as the module's gating takes them apart [G, both, hidden], down [G, hidden, intermediate], and
    their biases."""

    first: torch.Tensor
    down: torch.Tensor
    first_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None


class Grouped:
    """Which of a layer's experts are the G that somebody has weights of; `module` is transformers' own, whose gating is called."""

    def __init__(self, module: Any, numbers: list[int], device: Device) -> None:
        self.count = len(numbers)
        self._module, self._device = module, device
        place = torch.full((module.num_experts,), self.count)
        place[torch.tensor(numbers, dtype=torch.int64)] = torch.arange(self.count)
        self._place = place.to(device.torch)
        self._numbers = torch.arange(self.count, device=device.torch)

    def __call__(self, have: Weights, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """x [T, hidden], ids and weights [T, K] on the device, to float32 [T, hidden]: the sum over these experts.

        Slots are added in their order, so that results do not change from run to run. The CPU is not asked for anything
        where the device has products of groups, or rows are few.
        """
        slots = ids.shape[1]
        group, order = self._place[ids.flatten()].sort(stable=True)
        ends = torch.searchsorted(group, self._numbers, right=True, out_int32=True)
        known = group.clamp(max=self.count - 1)
        inner = self._product(x.to(have.first.dtype)[order // slots], have.first, ends, known)
        if have.first_bias is not None:
            inner = inner + have.first_bias[known]
        inner = self._module._apply_gate(inner) if self._module.has_gate else self._module.act_fn(inner)
        outer = self._product(inner, have.down, ends, known)
        if have.down_bias is not None:
            outer = outer + have.down_bias[known]
        # what a product leaves behind the last group is no number
        outer = outer.masked_fill((group == self.count)[:, None], 0)
        placed = torch.empty_like(outer).index_copy_(0, order, outer).unflatten(0, (-1, slots))
        return (placed.float() * weights[..., None].float()).sum(1)

    def _product(
        self, rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor, group: torch.Tensor
    ) -> torch.Tensor:
        """rows [M, in] times the weights [G, out, in] of their groups, which end at `ends`; rows behind them may be anything."""
        if self._device.groups and rows.dtype == torch.bfloat16:
            return torch._grouped_mm(rows, weights.transpose(1, 2), offs=ends)
        if len(rows) <= FEW:
            return torch.bmm(weights[group], rows[..., None])[..., 0]
        out = rows.new_zeros(len(rows), weights.shape[1])
        begin = 0
        for weight, end in zip(weights, ends.tolist(), strict=True):
            if end > begin:
                torch.mm(rows[begin:end], weight.T, out=out[begin:end])
            begin = end
        return out
