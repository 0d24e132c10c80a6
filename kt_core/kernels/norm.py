"""RMSNorm, and elementwise operations of a decoder layer, on the CPU."""

import torch

from kt_core.kernels.native import dtype_name, load, new_result, plain, rows_of

COMBINATIONS = ("add", "multiply", "sigmoid_gate", "silu_gate")


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    offset: float = 0.0,
    residual: torch.Tensor | None = None,
    tier: str | None = None,
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + epsilon) * (weight + offset) over the last dimension, in float32, to x's dtype.

    x [T, size], or [T, heads, size] with strided tokens; float32 or bfloat16. weight [size], or None for none;
    offset 1 where a checkpoint stores it less one (Gemma, Qwen3-Next). With a residual [T, size], which x must
    then match, x + residual is normed and becomes the residual. Raises ValueError for other shapes or dtypes.
    """
    dtype = dtype_name(x)
    if x.dim() not in (2, 3) or x.shape[-1] == 0:
        raise ValueError(f"expected [T, size] or [T, heads, size], got {tuple(x.shape)}")
    size = x.shape[-1]
    heads = x.shape[1] if x.dim() == 3 else 1
    if weight is not None:
        if weight.shape != (size,):
            raise ValueError(f"expected weight [{size}], got {tuple(weight.shape)}")
        weight = plain(weight.to("cpu", torch.float32))
    if residual is not None and (residual.shape != x.shape or x.dim() != 2 or not residual.is_contiguous()):
        raise ValueError(f"expected a contiguous residual [T, {size}] as x, got {tuple(residual.shape)}")
    if residual is not None and (residual.dtype != x.dtype or residual.device.type != "cpu"):
        raise ValueError(f"expected a residual of {x.dtype} on the CPU, got {residual.dtype}")
    x = rows_of(x)
    y = new_result(*x.shape, dtype=x.dtype)
    load().rms_norm(
        (x.data_ptr(), x.stride(0)),
        0 if residual is None else residual.data_ptr(),
        (y.data_ptr(), heads * size),
        dtype,
        0 if weight is None else weight.data_ptr(),
        offset,
        epsilon,
        (x.shape[0], heads, size),
        tier or "",
    )
    return y


def combine(kind: str, a: torch.Tensor, b: torch.Tensor, tier: str | None = None) -> torch.Tensor:
    """a + b ("add"), a b ("multiply"), a sigmoid(b) ("sigmoid_gate") or silu(a) b ("silu_gate"), [T, size].

    float32 or bfloat16, computed in float32; tokens may be strided, as in the halves of one projection.
    Raises ValueError for other shapes, dtypes or an unknown kind.
    """
    dtype = dtype_name(a)
    if kind not in COMBINATIONS:
        raise ValueError(f"unknown kind {kind!r}. Known: {', '.join(COMBINATIONS)}")
    if a.dim() != 2 or a.shape != b.shape or b.dtype != a.dtype or b.device != a.device:
        raise ValueError(
            f"expected two [T, size] of one dtype, got {tuple(a.shape)} of {a.dtype}, {tuple(b.shape)} of {b.dtype}"
        )
    a, b = rows_of(a), rows_of(b)
    out = new_result(*a.shape, dtype=a.dtype)
    rows = [(x.data_ptr(), x.stride(0)) for x in (a, b)]
    load().combine(kind, *rows, (out.data_ptr(), a.shape[1]), dtype, tuple(a.shape), tier or "")
    return out
