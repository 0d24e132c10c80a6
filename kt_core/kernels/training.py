"""Training through a layer's experts: one autograd node whose forward and backward are native.

The expert weights are those that inference packs, in any format that has a decoder to bfloat16, and stay as they are.
Gradients go to the input, to the routing weights, and to low-rank additions W + scale B A of gate, up and down.
"""

from dataclasses import dataclass
from typing import Any

import torch

from kt_core.kernels.experts import UNGATED, Experts
from kt_core.kernels.native import dtype_name, load, new_result, plain

MAX_RANK = 256
# Scratch memory of a call is for as many experts at a time as fit in this; one expert always does.
WAVE_BYTES = 512 << 20


@dataclass(frozen=True)
class LoraFactors:
    """`a` [experts, rank, in] and `b` [experts, out, rank] of one projection, of a float dtype, on the CPU."""

    a: torch.Tensor
    b: torch.Tensor


def train(
    experts: Experts,
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    lora: tuple[LoraFactors | None, LoraFactors, LoraFactors] | None = None,
    scale: float = 1.0,
    keep: bool = True,
) -> torch.Tensor:
    """What `experts` computes of x [T, hidden] (float32 or bfloat16), ids [T, K] and weights [T, K], differentiable.

    lora: of gate (None where the activation has none), up and down, all of one rank of 1 to MAX_RANK. keep: activations
    (gate x and up x of each routed row, bfloat16) are kept for the way back; without it they are computed again there,
    to the same bits. Unlike in inference, activations are rounded to bfloat16 for every weight format.
    Raises ValueError for shapes, dtypes, devices or a mask of experts that lie elsewhere, and for F32 and F16 weights.
    """
    _check(experts, x, ids, weights)
    rank, tensors = _factors(experts, lora)
    setting = _Setting(experts, rank, scale, keep and torch.is_grad_enabled())
    y: torch.Tensor = _Node.apply(setting, x, ids, weights, *tensors)
    return y


@dataclass(frozen=True)
class _Setting:
    experts: Experts
    rank: int
    scale: float
    keep: bool


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, setting: _Setting, x: Any, ids: Any, weights: Any, *lora: torch.Tensor | None) -> Any:
        x, ids, weights = plain(x), plain(ids), plain(weights.float())
        rounded = _rounded(lora)
        native = load().Training(setting.experts.native, WAVE_BYTES)
        rows = ids.numel() if setting.keep else 0
        kept = [new_result(rows, native.kept_columns, dtype=torch.bfloat16) for _ in range(2)]
        y = new_result(*x.shape, dtype=x.dtype)
        native.forward(*_arguments(setting, x, ids, weights, kept, rounded), y.data_ptr())
        ctx.setting, ctx.native = setting, native
        ctx.present = [None if t is None else (t.shape, t.dtype) for t in lora]
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
        arguments = _arguments(ctx.setting, x, ids, weights, [gate, up], rounded)
        ctx.native.backward(*arguments, dy.data_ptr(), dx.data_ptr(), dweights.data_ptr(), _pairs(dlora))
        turned = [
            None if g is None else (g.transpose(1, 2) if i % 2 else g).to(ctx.present[i][1])
            for i, g in enumerate(dlora)
        ]
        return None, dx, None, dweights, *turned


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


def _factors(
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
