"""Experts of a layer that a device computes in training: some lie there, others are brought there for each pass.

The way forward and the way back are written out, since weights that come and go cannot wait in autograd's graph. Factors of
additions and their optimizer stay in host memory, whoever computes: they come with a copy, and gradients go back with one.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from kt_core.device import Device

RANKS = 8  # numbers that a product of groups takes at once: ranks are filled up to it
Factors = tuple[
    torch.Tensor | None, ...
]  # A and B of gate, up and down, of all experts, on the host; gate's may be None


class Gradients:
    """On their way from a device to parameters of the host: a thread takes them into memory that is used again, and the end of the
    whole pass back adds that, when nobody else writes gradients."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._thread = ThreadPoolExecutor(1, "gradients")
        self._memory: dict[int, list[torch.Tensor]] = {}  # new memory for each step would cost its pages
        self._filled: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # of this pass: parameter and sum
        self._seen: set[tuple[int, int]] = set()
        self._waiting: list[Future[None]] = []

    def send(self, parameter: torch.Tensor, first: int, gradient: torch.Tensor) -> None:
        """`gradient` of parameter[first : first + len(gradient)]; always of the same parts."""
        if not self._waiting:
            torch.autograd.Variable._execution_engine.queue_callback(self._end)  # type: ignore[attr-defined]
        staged = torch.empty(gradient.shape, dtype=gradient.dtype, pin_memory=gradient.device.type != "cpu")
        staged.copy_(gradient, non_blocking=True)
        key = id(parameter)
        if key not in self._filled:
            self._filled[key] = parameter, self._free(parameter)
        part = self._filled[key][1][first : first + len(gradient)]
        again = (key, first) in self._seen
        self._seen.add((key, first))
        self._waiting.append(self._thread.submit(_fill, self.device.reached(), part, staged, again))

    def _free(self, parameter: torch.Tensor) -> torch.Tensor:
        """Memory that no gradient of the parameter lies in; zeros where no part is sent."""
        mine = self._memory.setdefault(id(parameter), [])
        free = next((memory for memory in mine if memory is not parameter.grad), None)
        if free is None:
            free = torch.zeros(parameter.shape, dtype=parameter.dtype)
            mine.append(free)
        return free

    def _end(self) -> None:
        for filled in self._waiting:
            filled.result()
        for parameter, total in self._filled.values():
            if parameter.grad is None:
                parameter.grad = total
            else:
                parameter.grad += total
        self._waiting.clear()
        self._filled.clear()
        self._seen.clear()


def _fill(arrived: Callable[[], None], part: torch.Tensor, staged: torch.Tensor, again: bool) -> None:
    arrived()
    if again:
        part += staged
    else:
        part.copy_(staged)


@dataclass(frozen=True)
class Share:
    """The experts first .. first + count of a layer. `module` is transformers' own, whose gating is called.

    `weights` gives gate and up [count, both, hidden], as the module's gating takes them apart, and down [count, hidden, inner], for
    what the current stream does next. `biases`: of these experts, likewise.
    """

    module: Any
    device: Device
    first: int
    count: int
    weights: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    gradients: Gradients
    biases: tuple[torch.Tensor, torch.Tensor] | None = None
    keep: bool = True  # what the first product gave, for the way back; else it is made again there

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, factors: Factors, scale: float
    ) -> torch.Tensor:
        """x [T, hidden], ids and weights [T, K] on the device, to float32 [T, hidden]: sums over these experts."""
        found: torch.Tensor = _Node.apply(self, scale, x, ids, weights, *factors)
        return found

    def gated(self, first: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.module._apply_gate(first) if self.module.has_gate else self.module.act_fn(first)
        return found

    def rows(self, ids: torch.Tensor) -> "_Rows":
        """The (token, slot) pairs sorted by expert, those of no expert here last."""
        place = ids.flatten() - self.first
        place = torch.where((place >= 0) & (place < self.count), place, self.count)
        group, order = place.sort(stable=True)
        ends = torch.searchsorted(group, torch.arange(self.count, device=ids.device), right=True, out_int32=True)
        return _Rows(group, order, ends, ids.shape[1], self.first == 0 and self.count == self.module.num_experts)

    def sent(self, factors: Factors, scale: float) -> "_Additions | None":
        """The factors of these experts on the device, gate's and up's as one pair; B has the factor of B A."""
        if factors[2] is None:
            return None
        mine = [None if f is None else self._sent(f) for f in factors]
        mine = [part if part is None or not place % 2 else scale * part for place, part in enumerate(mine)]
        rank = factors[2].shape[1]
        gate_a, gate_b, up_a, up_b, down_a, down_b = mine
        assert up_a is not None and up_b is not None and down_a is not None and down_b is not None
        if gate_a is None or gate_b is None:
            return _Additions(rank, _filled(up_a, 1), _filled(up_b, 2), _filled(down_a, 1), _filled(down_b, 2))
        wide = -(-rank // RANKS) * RANKS
        both = up_b.new_zeros(self.count, 2 * up_b.shape[1], 2 * wide)
        self.halves(both)[0][..., :rank], self.halves(both)[1][..., wide : wide + rank] = gate_b, up_b
        first = torch.cat((_filled(gate_a, 1), _filled(up_a, 1)), 1)
        return _Additions(rank, first, both, _filled(down_a, 1), _filled(down_b, 2))

    def _sent(self, factor: torch.Tensor) -> torch.Tensor:
        part = factor.detach()[self.first : self.first + self.count]
        return part.to(self.device.torch, non_blocking=True).to(self.device.dtype)

    def halves(self, both: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of gate and of up."""
        if self.module.is_concatenated:
            gate, up = both.chunk(2, 1)
            return gate, up
        return both[:, ::2], both[:, 1::2]


@dataclass(frozen=True)
class _Additions:
    rank: int
    first_a: torch.Tensor  # [count, wide, hidden]: gate's, then up's
    first_b: torch.Tensor  # [count, both, wide]: zeros where one would meet the other
    down_a: torch.Tensor
    down_b: torch.Tensor

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.first_a, self.first_b, self.down_a, self.down_b


@dataclass(frozen=True)
class _Rows:
    group: torch.Tensor
    order: torch.Tensor
    ends: torch.Tensor
    slots: int
    whole: bool  # every row has its expert here

    @property
    def number(self) -> torch.Tensor:
        """Each row's expert; of those behind the last one, any."""
        return self.group.clamp(max=len(self.ends) - 1)

    def taken(self, x: torch.Tensor) -> torch.Tensor:
        """[T, ...] to [M, ...]"""
        return x[self.order // self.slots]

    def masked(self, rows: torch.Tensor) -> torch.Tensor:
        """What a product leaves behind the last group is no number."""
        return rows if self.whole else rows.masked_fill((self.group == len(self.ends))[:, None], 0)

    def placed(self, rows: torch.Tensor) -> torch.Tensor:
        """[M, ...] to [T, K, ...]"""
        return torch.empty_like(rows).index_copy_(0, self.order, rows).unflatten(0, (-1, self.slots))

    def product(self, rows: torch.Tensor, weights: torch.Tensor, grouped: bool) -> torch.Tensor:
        """[M, in] by [count, in, out] to [M, out]"""
        if grouped:
            return torch._grouped_mm(rows, weights, offs=self.ends)
        out = rows.new_zeros(len(rows), weights.shape[2])
        begin = 0
        for weight, end in zip(weights, self.ends.tolist(), strict=True):
            out[begin:end] = rows[begin:end] @ weight
            begin = end
        return out

    def outer(self, left: torch.Tensor, right: torch.Tensor, grouped: bool) -> torch.Tensor:
        """Sums over each group's rows of left [M, p] by right [M, q]: [count, p, q]"""
        if grouped:
            found = torch._grouped_mm(left.t(), right, offs=self.ends)
            counts = torch.diff(self.ends, prepend=self.ends.new_zeros(1))
            return found.masked_fill((counts == 0)[:, None, None], 0)
        out, begin = left.new_zeros(len(self.ends), left.shape[1], right.shape[1]), 0
        for place, end in zip(out, self.ends.tolist(), strict=True):
            torch.mm(left[begin:end].T, right[begin:end], out=place)
            begin = end
        return out


def _filled(factor: torch.Tensor, dim: int) -> torch.Tensor:
    missing = -factor.shape[dim] % RANKS
    if not missing:
        return factor
    shape = list(factor.shape)
    shape[dim] = missing
    return torch.cat((factor, factor.new_zeros(shape)), dim)


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, share: Share, scale: float, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, *factors: Any
    ) -> torch.Tensor:
        grouped = share.device.groups
        rows, have, added = share.rows(ids), share.weights(), share.sent(factors, scale)
        first, low = _first(share, rows, have[0], added, x)
        inner = share.gated(first)
        out = rows.product(inner, have[1].transpose(1, 2), grouped)
        if added:
            down = rows.product(inner, added.down_a.transpose(1, 2), grouped)
            out += rows.product(down, added.down_b.transpose(1, 2), grouped)
        if share.biases:
            out += share.biases[1][rows.number]
        placed = rows.placed(rows.masked(out))
        ctx.share, ctx.scale, ctx.rows, ctx.factors, ctx.rank = share, scale, rows, factors, added and added.rank
        kept = (first, low) if share.keep else (None, None)
        ctx.save_for_backward(x, weights, *kept, *(added.tensors if added else ()))
        return (placed.float() * weights[..., None].float()).sum(1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weights, first, low, *tensors = ctx.saved_tensors
        share, rows, grouped = ctx.share, ctx.rows, ctx.share.device.groups
        added = _Additions(ctx.rank, *tensors) if tensors else None
        have = share.weights()
        if first is None:
            first, low = _first(share, rows, have[0], added, x)
        dtype = share.device.dtype
        dy = rows.taken(grads[0].to(dtype))
        routed = weights.flatten()[rows.order][:, None].to(dtype)
        with torch.enable_grad():
            leaf = first.detach().requires_grad_()
            inner = share.gated(leaf)
        # Without the routing weight first: its own gradient is the product of inner and that.
        d_inner = rows.product(dy, have[1], grouped)
        d_down = None
        if added:
            d_down = rows.product(dy, added.down_b, grouped)
            d_inner += rows.product(d_down, added.down_a, grouped)
        d_inner = rows.masked(d_inner)
        kept = rows.masked(inner.detach())
        d_weight = (kept * d_inner).sum(1, dtype=torch.promote_types(dtype, torch.float32))
        if share.biases:
            d_weight += rows.masked((share.biases[1][rows.number] * dy).sum(1, keepdim=True))[:, 0]
        (d_first,) = torch.autograd.grad(inner, leaf, routed * d_inner)
        d_first = rows.masked(d_first)
        d_rows = rows.product(d_first, have[0], grouped)
        if added:
            d_low = rows.product(d_first, added.first_b, grouped)
            d_rows += rows.product(d_low, added.first_a, grouped)
            _send(ctx, added, rows, (low, d_low, d_first), (kept, routed * d_down, routed * dy), x)
        dx = rows.placed(rows.masked(d_rows)).float().sum(1).to(x.dtype)
        return None, None, dx, None, rows.placed(d_weight).to(weights.dtype), *(None for _ in ctx.factors)


def _first(
    share: Share, rows: _Rows, weights: torch.Tensor, added: _Additions | None, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Gate and up of each row, and A of their additions with it."""
    grouped = share.device.groups
    taken, low = rows.taken(x.to(share.device.dtype)), None
    first = rows.product(taken, weights.transpose(1, 2), grouped)
    if added:
        low = rows.product(taken, added.first_a.transpose(1, 2), grouped)
        first += rows.product(low, added.first_b.transpose(1, 2), grouped)
    if share.biases:
        first += share.biases[0][rows.number]
    return first, low


def _send(ctx: Any, added: _Additions, rows: _Rows, up: Sequence[Any], down: Sequence[Any], x: torch.Tensor) -> None:
    """The gradients of the six factors to their parameters."""
    share, scale, rank, grouped = ctx.share, ctx.scale, added.rank, ctx.share.device.groups
    low, d_low, d_first = (rows.masked(part) for part in up)
    inner, d_down, dy = down
    first_a = rows.outer(d_low, rows.taken(x.to(d_low.dtype)), grouped)
    first_b = rows.outer(d_first, low, grouped).mul_(scale)
    middle = rows.product(inner, added.down_a.transpose(1, 2), grouped)
    down_a = rows.outer(rows.masked(d_down), inner, grouped)[:, :rank]
    down_b = rows.outer(rows.masked(dy), rows.masked(middle), grouped)[..., :rank].mul(scale)
    wide = first_a.shape[1] // 2
    if ctx.factors[0] is None:
        found = [None, None, first_a[:, :rank], first_b[..., :rank], down_a, down_b]
    else:
        gate_b, up_b = share.halves(first_b)
        gate = [first_a[:, :rank], gate_b[..., :rank]]
        found = [*gate, first_a[:, wide : wide + rank], up_b[..., wide : wide + rank], down_a, down_b]
    for parameter, gradient in zip(ctx.factors, found, strict=True):
        if parameter is not None and gradient is not None and parameter.requires_grad:
            share.gradients.send(parameter, share.first, gradient)
