"""Training through a layer's experts: one autograd node whose forward and backward are native.

The expert weights are those that inference packs, in any format that has a decoder to bfloat16. Gradients go to the
input, to the routing weights, to low-rank additions W + scale B A of gate, up and down, and, where the weights
themselves are trained, to float32 copies of them, of which `step` rounds the packed ones anew.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from kt_core.kernels.experts import UNGATED, Experts
from kt_core.kernels.native import dtype_name, load, new_result, plain

MAX_RANK = 256
spent = {"seconds": 0.0}  # in the extension, of this process, since its start
# Scratch memory of a call is for as many experts at a time as fit in this; one expert always does.
WAVE_BYTES = 512 << 20


@dataclass(frozen=True)
class LoraFactors:
    """`a` [experts, rank, in] and `b` [experts, out, rank] of one projection, of a float dtype, on the CPU."""

    a: torch.Tensor
    b: torch.Tensor


# float32, contiguous, of gate (None where the activation has none) and up [experts, intermediate, hidden], and down
# [experts, hidden, intermediate].
Masters = tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]


@dataclass
class Visit:
    """What a way forward has computed, for the same one gone again, as gradient checkpoints do: then it is taken from here."""

    y: torch.Tensor | None = None
    given: tuple[torch.Tensor, ...] = ()
    kept: tuple[torch.Tensor, ...] = ()

    def knows(self, given: tuple[torch.Tensor, ...]) -> bool:
        """Whether it was of these x, ids and weights."""
        return self.y is not None and all(torch.equal(*pair) for pair in zip(self.given, given, strict=True))


@dataclass(frozen=True)
class AdamW:
    """A step's settings, as torch.optim.AdamW names them; `number` counts from 1."""

    lr: float
    number: int
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0


def train(
    experts: Experts,
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    lora: tuple[LoraFactors | None, LoraFactors, LoraFactors] | None = None,
    scale: float = 1.0,
    keep: bool = True,
    masters: Masters | None = None,
    visit: Visit | None = None,
    as_stored: bool = False,
) -> torch.Tensor:
    """What `experts` computes of x [T, hidden] (float32 or bfloat16), ids [T, K] and weights [T, K], differentiable.

    lora: of gate (None where the activation has none), up and down, all of one rank of 1 to MAX_RANK. keep: activations
    (gate x and up x of each routed row, bfloat16) are kept for the way back; without it they are computed again there,
    to the same bits. Unlike in inference, activations are rounded to bfloat16 for every weight format. masters: what the
    gradient of the weights goes to; the weights that are computed with are those that were loaded, or made by `step`. visit: where
    the same was computed before, with `keep`, or what is computed goes. as_stored, for what no gradient is asked of: few rows of an
    expert meet its weights as they are stored, rounded as in inference, unless results are to be deterministic.
    Raises ValueError for shapes, dtypes, devices or a mask of experts that lie elsewhere, and for F32 and F16 weights.
    """
    _check(experts, x, ids, weights)
    rank, tensors = lora_factors(experts, lora)
    _check_masters(experts, masters or ())
    setting = _Setting(experts, rank, scale, keep and torch.is_grad_enabled(), len(tensors), visit, as_stored)
    y: torch.Tensor = _Node.apply(setting, x, ids, weights, *tensors, *(masters or ()))
    return y


def step(
    experts: Experts,
    masters: Masters,
    how: AdamW | None = None,
    gradients: Sequence[torch.Tensor | None] = (None, None, None),
    states: Sequence[tuple[torch.Tensor, torch.Tensor] | None] = (None, None, None),
) -> None:
    """Step the masters by their gradients and AdamW's two means (float32, contiguous, of the masters' shapes), all in place, and
    round the experts' weights from them; without `how` that alone. The experts must be BF16. Raises ValueError.
    """
    _check_masters(experts, masters)
    for master, *rest in zip(
        masters, gradients, [s[0] if s else None for s in states], [s[1] if s else None for s in states], strict=True
    ):
        for tensor in rest if master is not None and how else ():
            if tensor is None or tensor.shape != master.shape or not _float32(tensor):
                raise ValueError(f"expected contiguous float32 gradients and means {tuple(master.shape)}")
    addresses = [
        [0 if t is None else t.data_ptr() for t in (master, gradient if how else None, *(state or (None, None)))]
        for master, gradient, state in zip(masters, gradients, states, strict=True)
    ]
    how = how or AdamW(0.0, 1)
    settings = [how.lr, how.betas[1], how.eps, how.weight_decay, *(1 - b for b in how.betas)]
    settings += [1 - beta**how.number for beta in how.betas]
    with _counted():
        load().step_experts(experts.native, settings, addresses)


@contextmanager
def _counted() -> Iterator[None]:
    begin = time.perf_counter()
    yield
    spent["seconds"] += time.perf_counter() - begin


@dataclass(frozen=True)
class _Setting:
    experts: Experts
    rank: int
    scale: float
    keep: bool
    factors: int  # how many of the tensors behind the routing weights are low-rank factors; the others are masters
    visit: Visit | None = None
    as_stored: bool = False


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, setting: _Setting, x: Any, ids: Any, weights: Any, *trained: torch.Tensor | None) -> Any:
        x, ids, weights = plain(x), plain(ids), plain(weights.float())
        lora, masters = trained[: setting.factors], trained[setting.factors :]
        rounded = _rounded(lora)
        native = load().Training(setting.experts.native, WAVE_BYTES)
        visit = setting.visit
        if visit is not None and visit.y is not None and visit.knows((x, ids, weights)):
            y, kept = visit.y, list(visit.kept)
        else:
            rows = ids.numel() if setting.keep else 0
            kept = [new_result(rows, native.kept_columns, dtype=torch.bfloat16) for _ in range(2)]
            y = new_result(*x.shape, dtype=x.dtype)
            with _counted():
                arguments = _arguments(setting, x, ids, weights, kept, rounded)
                native.forward(*arguments, y.data_ptr(), setting.as_stored and not load().deterministic())
            if visit is not None:
                visit.y, visit.given, visit.kept = y.detach(), (x, ids, weights), tuple(kept)
        ctx.setting, ctx.native = setting, native
        ctx.present = [None if t is None else (t.shape, t.dtype) for t in lora]
        ctx.masters = [None if t is None else t.shape for t in masters]
        ctx.save_for_backward(x, ids, weights, *kept, *(t for t in rounded if t is not None))
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, ids, weights, gate, up, *given = ctx.saved_tensors
        found = iter(given)
        rounded = [None if shape is None else next(found) for shape in ctx.present]
        dy = plain(grads[0].to(x.dtype))
        dx, dweights = new_result(*x.shape, dtype=x.dtype), new_result(*weights.shape)
        dlora = [None if shape is None else _gradient(i, shape[0]) for i, shape in enumerate(ctx.present)]
        base = [
            torch.zeros(s) if s and n else None for s, n in zip(ctx.masters, ctx.needs_input_grad[-3:], strict=False)
        ]
        at = [0 if t is None else t.data_ptr() for t in base] or [0] * 3
        arguments = _arguments(ctx.setting, x, ids, weights, [gate, up], rounded)
        with _counted():
            ctx.native.backward(*arguments, dy.data_ptr(), dx.data_ptr(), dweights.data_ptr(), _pairs(dlora), at)
        turned = [
            None if g is None else (g.transpose(1, 2) if i % 2 else g).to(ctx.present[i][1])
            for i, g in enumerate(dlora)
        ]
        return None, dx, None, dweights, *turned, *base


def _gradient(index: int, shape: torch.Size) -> torch.Tensor:
    """Memory for a factor's gradient; b's is written turned over. Experts without rows keep zeros."""
    experts, rows, cols = shape
    return torch.zeros((experts, cols, rows) if index % 2 else shape)


def _rounded(lora: tuple[torch.Tensor | None, ...]) -> list[torch.Tensor | None]:
    return [None if t is None else plain(t).to(torch.bfloat16) for t in lora]


def _pairs(tensors: list[torch.Tensor | None]) -> list[tuple[int, int]]:
    at = [0 if t is None else t.data_ptr() for t in tensors] or [0] * 6
    return [(at[i], at[i + 1]) for i in range(0, 6, 2)]


def _arguments(setting: _Setting, x: Any, ids: Any, weights: Any, kept: list[Any], lora: list[Any]) -> tuple[Any, ...]:
    at = [t.data_ptr() for t in (x, ids, weights)] + [t.data_ptr() if setting.keep else 0 for t in kept]
    bf16 = dtype_name(x) == "bfloat16"
    return at, bf16, x.shape[0], ids.shape[1], setting.rank, setting.scale, _pairs(lora)


def _check(experts: Experts, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
    dtype_name(x)
    if x.dim() != 2 or x.shape[1] != experts.hidden:
        raise ValueError(f"expected x [T, {experts.hidden}], got {tuple(x.shape)}")
    if ids.dim() != 2 or ids.shape[0] != x.shape[0] or weights.shape != ids.shape:
        raise ValueError(f"expected ids and weights [{x.shape[0]}, K], got {tuple(ids.shape)}, {tuple(weights.shape)}")
    if ids.dtype != torch.int64 or not weights.is_floating_point():
        raise ValueError(f"expected int64 ids and floats as weights, got {ids.dtype} and {weights.dtype}")
    if experts.elsewhere is not None:
        raise ValueError("experts that are computed elsewhere cannot be trained on here")


def _check_masters(experts: Experts, masters: Sequence[torch.Tensor | None]) -> None:
    if masters and (masters[0] is None) != (experts.activation in UNGATED):
        raise ValueError(f"activation {experts.activation} {'needs a' if masters[0] is None else 'has no'} gate")
    rows, cols = experts.intermediate, experts.hidden
    for master, shape in zip(masters, ((rows, cols), (rows, cols), (cols, rows)), strict=False):
        if master is not None and (master.shape != (experts.num_experts, *shape) or not _float32(master)):
            raise ValueError(f"expected contiguous float32 masters {(experts.num_experts, *shape)}")


def _float32(tensor: torch.Tensor) -> bool:
    return bool(tensor.dtype == torch.float32 and tensor.is_contiguous() and tensor.is_cpu)


def lora_factors(
    experts: Experts, lora: tuple[LoraFactors | None, LoraFactors, LoraFactors] | None
) -> tuple[int, list[torch.Tensor | None]]:
    """The rank and the six factors, checked; none without lora."""
    if lora is None:
        return 0, []
    if (lora[0] is None) != (experts.activation in UNGATED):
        raise ValueError(f"activation {experts.activation} {'has no' if lora[0] else 'needs a'} gate")
    count, hidden, inner, rank = experts.num_experts, experts.hidden, experts.intermediate, lora[1].a.shape[1]
    if not 1 <= rank <= MAX_RANK:
        raise ValueError(f"expected a rank of 1 to {MAX_RANK}, got {rank}")
    tensors: list[torch.Tensor | None] = []
    for factors, rows, cols in zip(lora, (inner, inner, hidden), (hidden, hidden, inner), strict=True):
        if factors is None:
            tensors += [None, None]
            continue
        if factors.a.shape != (count, rank, cols) or factors.b.shape != (count, rows, rank):
            raise ValueError(
                f"expected factors [{count}, {rank}, {cols}] and [{count}, {rows}, {rank}], "
                f"got {tuple(factors.a.shape)} and {tuple(factors.b.shape)}"
            )
        tensors += [factors.a, factors.b]
    return rank, tensors
