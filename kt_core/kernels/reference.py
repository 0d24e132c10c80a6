"""The kernels' numeric contract in plain numpy: the same rounding of activations, sums in float64.

It is written from policy.py's words, decodes nothing itself (weights come as float arrays), and shares no
code with the extension. Tests and quality reports compare with it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from kt_core.kernels.policy import GROUP, POLICY

Array = np.ndarray[Any, np.dtype[Any]]


def round_bf16(x: Array) -> Array:
    """float32 values rounded to bfloat16, to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    y: Array = np.where(np.isnan(x), np.float32(np.nan), rounded)
    return y


def round_int8(x: Array) -> Array:
    """x [..., K] as scale * q in groups of 32 along K, in float64; a group that is not finite is NaN."""
    groups = np.ascontiguousarray(x, np.float32).reshape(*x.shape[:-1], -1, GROUP)
    scale = np.abs(groups).max(axis=-1, keepdims=True) / np.float32(127)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.clip(np.rint(groups / scale), -127, 127)
    q = np.where(scale == 0, 0, q).astype(np.float64)
    finite = np.isfinite(groups).all(axis=-1, keepdims=True)
    y: Array = np.where(finite, q * scale.astype(np.float64), np.nan).reshape(x.shape)
    return y


def round_activations(x: Array, format: str) -> Array:
    """x [..., K] as a weight of `format` sees it on its direct path, float64."""
    rounding: dict[str, Callable[[Array], Array]] = {
        "f32": lambda values: values,
        "bf16": round_bf16,
        "int8": round_int8,
    }
    return rounding[POLICY[format]](np.asarray(x, np.float32)).astype(np.float64)


def rounded(x: Array, weight: Array, format: str, path: str = "direct") -> tuple[Array, Array]:
    """Both factors as `path` multiplies them, float64. "prefill" differs for formats of policy int8."""
    if path not in ("direct", "prefill"):
        raise ValueError(f"unknown path {path!r}. Known: direct, prefill")
    if path == "direct" or POLICY[format] != "int8":
        return round_activations(x, format), weight.astype(np.float64)
    return round_bf16(np.asarray(x, np.float32)).astype(np.float64), round_bf16(weight).astype(np.float64)


def linear(x: Array, weight: Array, format: str, bias: Array | None = None, path: str = "direct") -> Array:
    """x [..., K] with weight [N, K] (decoded) of `format` by "direct" or "prefill": float64 [..., N]."""
    a, w = rounded(x, weight, format, path)
    y: Array = a @ w.T
    return y if bias is None else y + bias.astype(np.float64)


def silu(x: Array) -> Array:
    y: Array = x / (1 + np.exp(-x))
    return y


def gelu_tanh(x: Array) -> Array:
    y: Array = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return y


def hidden(gate: Array, up: Array, activation: str, limit: float | None = None, alpha: float = 1.702) -> Array:
    """h of gate and up (of up alone for relu2); clamps as torch's, so a NaN stays."""
    if limit is not None:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    rules: dict[str, Callable[[], Array]] = {
        "silu": lambda: silu(gate) * up,
        "gelu_tanh": lambda: gelu_tanh(gate) * up,
        "swiglu_oai": lambda: gate / (1 + np.exp(-alpha * gate)) * (up + 1),
        "relu2": lambda: np.maximum(up, 0) ** 2,
    }
    return rules[activation]()


Part = tuple[str, Array] | tuple[str, Array, Array | None]  # format, decoded weight, bias


def experts(
    x: Array,
    ids: Array,
    weights: Array,
    parts: dict[int, tuple[Part, Part, Part]],
    activation: str,
    prefill_from: int | None = None,
    limit: float | None = None,
    alpha: float = 1.702,
) -> Array:
    """x [T, H], ids and weights [T, K], parts[expert] = (gate, up, down): float64 [T, H].

    ids without parts contribute nothing; experts add up in ascending order. h is float32. Experts with at
    least prefill_from rows take the prefill path. A gate that the activation has no use for changes nothing.
    """
    rows = {expert: int((ids == expert).sum()) for expert in parts}
    paths = {e: "direct" if prefill_from is None or n < prefill_from else "prefill" for e, n in rows.items()}
    y: Array = np.zeros(x.shape, np.float64)
    for token in range(x.shape[0]):
        for slot in np.argsort(ids[token], kind="stable"):
            index = int(ids[token, slot])
            if index not in parts:
                continue
            gate, up, down = parts[index]
            path = paths[index]
            h = hidden(_part(x[token], gate, path), _part(x[token], up, path), activation, limit, alpha)
            y[token] += float(weights[token, slot]) * _part(h.astype(np.float32), down, path)
    return y


def _part(x: Array, part: Part, path: str) -> Array:
    format, weight, *bias = part
    return linear(x, weight, format, bias[0] if bias else None, path)
