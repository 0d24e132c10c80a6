"""Experts on a device: rows sorted by expert, and products of groups of rows; few rows each with its own expert."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from kt_core.device import Device, panels
from kt_core.operators.packed import Form

# Rows that are multiplied each with its own expert: what is read twice is cheaper than to sort them. Without kernels for that
# their weights are gathered: a copy, but no question to the CPU.
FEW, GATHERED = 128, 64
ROOM = 1 << 27  # numbers of packed weights that are taken apart at once
AT_ONCE = 512  # tokens whose results are in float32 at once, of every slot


@dataclass(frozen=True)
class Groups:
    """Rows sorted by expert: `group` [M] of each, G for those of no expert here, which come last; `ends` [G] int32."""

    group: torch.Tensor
    ends: torch.Tensor


class Weights(Protocol):
    """The G experts that somebody has: gate and up as the module's gating takes them apart, and down. `few`: rows at most that are
    multiplied in no order."""

    few: int

    def first(self, rows: torch.Tensor, groups: Groups) -> torch.Tensor:
        """[M, hidden] to [M, both]; behind the last group may be anything."""
        ...

    def down(self, rows: torch.Tensor, groups: Groups) -> torch.Tensor: ...

    def few_first(self, x: torch.Tensor, chosen: torch.Tensor, slots: int) -> torch.Tensor:
        """x [M / slots, hidden] with the experts `chosen` [M], in no order, to [M, both]; where that is G, finite numbers."""
        ...

    def few_down(self, rows: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor: ...


class Dense:
    """Weights [G, both, hidden] and [G, hidden, inner] in the device's dtype."""

    def __init__(self, first: torch.Tensor, down: torch.Tensor, device: Device) -> None:
        self.values = first, down
        self._groups = device.groups and first.dtype == torch.bfloat16
        self._kernels = panels.kernels() if first.is_cuda and first.dtype == torch.bfloat16 else None
        self.few = FEW if self._kernels else GATHERED

    def first(self, rows: torch.Tensor, groups: Groups) -> torch.Tensor:
        return self._product(rows, self.values[0], groups)

    def down(self, rows: torch.Tensor, groups: Groups) -> torch.Tensor:
        return self._product(rows, self.values[1], groups)

    def few_first(self, x: torch.Tensor, chosen: torch.Tensor, slots: int) -> torch.Tensor:
        return self._few(x, self.values[0], chosen, slots)

    def few_down(self, rows: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return self._few(rows, self.values[1], chosen, 1)

    def _product(self, rows: torch.Tensor, weights: torch.Tensor, groups: Groups) -> torch.Tensor:
        if self._groups:
            return torch._grouped_mm(rows, weights.transpose(1, 2), offs=groups.ends)
        out = rows.new_zeros(len(rows), weights.shape[1])
        begin = 0
        for weight, end in zip(weights, groups.ends.tolist(), strict=True):
            if end > begin:
                torch.mm(rows[begin:end], weight.T, out=out[begin:end])
            begin = end
        return out

    def _few(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, slots: int) -> torch.Tensor:
        count, rows, cols = weights.shape
        if self._kernels is None or rows % panels.ROWS:
            each = x.repeat_interleave(slots, 0)[..., None]
            return torch.bmm(weights[chosen.clamp(max=count - 1)], each)[..., 0]
        out = x.new_empty(len(chosen), rows)
        plain = weights.view(count, -1).view(torch.uint8)
        self._kernels.product("ROWS", plain, chosen, x, out, slots, rows, 2 * panels.ROWS * cols, (0,), (0,), 1, None)
        return out


class Stored:
    """Weights as they are packed, raw uint8 [G, bytes]: few rows meet them so, for many they are taken apart."""

    def __init__(self, raw: torch.Tensor, form: Form, device: Device) -> None:
        self.raw, self._form, self._device = raw, form, device
        self._kernels = raw.is_cuda and panels.kernels() is not None
        self.few = FEW if self._kernels else len(raw)  # else more would be taken apart than all

    def first(self, rows: torch.Tensor, groups: Groups) -> torch.Tensor:
        return self._many(0, rows, groups)

    def down(self, rows: torch.Tensor, groups: Groups) -> torch.Tensor:
        return self._many(1, rows, groups)

    def few_first(self, x: torch.Tensor, chosen: torch.Tensor, slots: int) -> torch.Tensor:
        if self._kernels:
            return self._form.few_first(self.raw, x, chosen, slots)
        some = self.raw[chosen.clamp(max=len(self.raw) - 1)]
        weights = self._form.first(some, x.new_empty(self._form.sizes(len(some))[0]))
        return torch.bmm(weights, x.repeat_interleave(slots, 0)[..., None])[..., 0]

    def few_down(self, rows: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        if self._kernels:
            return self._form.few_down(self.raw, rows, chosen)
        some = self.raw[chosen.clamp(max=len(self.raw) - 1)]
        weights = self._form.down(some, rows.new_empty(self._form.sizes(len(some))[1]))
        return torch.bmm(weights, rows[..., None])[..., 0]

    def _many(self, which: int, rows: torch.Tensor, groups: Groups) -> torch.Tensor:
        """By one of the two matrices, of as many experts at once as there is room for."""
        form, count = self._form, len(self.raw)
        room = max(1, ROOM // form.sizes(1)[which])
        scratch = rows.new_empty(form.sizes(min(room, count))[which])
        apart = form.down if which else form.first
        if count <= room:
            return Dense(apart(self.raw, scratch), scratch[:0], self._device).first(rows, groups)
        ends, parts = [0, *groups.ends.tolist()], []
        for begin in range(0, count, room):
            end = min(begin + room, count)
            some = rows[ends[begin] : ends[end]]
            own = Groups(groups.group[:0], groups.ends[begin:end] - ends[begin])
            parts.append(Dense(apart(self.raw[begin:end], scratch), scratch[:0], self._device).first(some, own))
        return torch.cat((*parts, parts[0].new_zeros(len(rows) - ends[-1], parts[0].shape[1])))


class Grouped:
    """Which of a layer's experts are the G that somebody has weights of; `module` is transformers' own, whose gating is called.

    `biases`: of all experts of the layer, gate and up [experts, both] and down [experts, hidden], on the device.
    """

    def __init__(
        self, module: Any, numbers: list[int], device: Device, biases: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> None:
        self.count = len(numbers)
        self._module, self._device, self._biases = module, device, biases
        place = torch.full((module.num_experts + 1,), self.count)
        place[torch.tensor(numbers, dtype=torch.int64)] = torch.arange(self.count)
        self.place = place.to(device.torch)  # of every expert, and last of none, -1; G: not here
        self._numbers = torch.arange(self.count, device=device.torch)

    def __call__(self, have: Weights, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """x [T, hidden], ids [T, K], -1 for none, and weights [..., T, K] on the device, to float32 [..., T, hidden]: sums over these experts.

        Slots are added in their order, so that results do not change from run to run. The CPU is not asked for anything
        where rows are few, or the device has products of groups.
        """
        slots, x = ids.shape[1], x.to(self._device.dtype)
        if ids.numel() <= have.few:
            chosen = self.place[ids.flatten()]
            inner = self._gated(have.few_first(x, chosen, slots), ids.flatten())
            placed = self._biased(have.few_down(inner, chosen), 1, ids.flatten())
            placed = placed.masked_fill((chosen == self.count)[:, None], 0)
        else:
            group, order = self.place[ids.flatten()].sort(stable=True)
            groups = Groups(group, torch.searchsorted(group, self._numbers, right=True, out_int32=True))
            known = ids.flatten()[order]
            inner = self._gated(have.first(x[order // slots], groups), known)
            outer = self._biased(have.down(inner, groups), 1, known)
            del inner
            # what a product leaves behind the last group is no number
            outer.masked_fill_((group == self.count)[:, None], 0)
            placed = torch.empty_like(outer).index_copy_(0, order, outer)
            del outer
        each = placed.unflatten(0, (-1, slots)).split(AT_ONCE)
        parts = [
            (some.float() * part[..., None].float()).sum(-2)
            for some, part in zip(each, weights.split(AT_ONCE, -2), strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -2)

    def _gated(self, inner: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        inner = self._biased(inner, 0, ids)
        gated: torch.Tensor = self._module._apply_gate(inner) if self._module.has_gate else self._module.act_fn(inner)
        return gated

    def _biased(self, values: torch.Tensor, which: int, ids: torch.Tensor) -> torch.Tensor:
        return values if self._biases is None else values + self._biases[which][ids]
