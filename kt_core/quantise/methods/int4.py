"""INT4 in groups of 32, 64 or 128 along K with a bfloat16 scale each: compressed-tensors' pack-quantized."""

from typing import Any

import numpy as np

from kt_core.kernels import grids
from kt_core.quantise.columns import Curvature, rounded
from kt_core.quantise.methods import Bytes, Floats, Scheme, Stored, grouped, raw

FORMAT = "pack-quantized"


def tensors(rows: int, cols: int, scheme: Scheme) -> tuple[Stored, ...]:
    groups = cols // scheme.group
    zeros = (Stored("weight_zero_point", "I32", (-(-rows // 8), groups), 8),) if scheme.zero_point else ()
    return (
        Stored("weight_packed", "I32", (rows, cols // 8)),
        Stored("weight_scale", "BF16", (rows, groups)),
        *zeros,
        Stored("weight_shape", "I64", (2,), 0),
    )


def encode(values: Floats, scheme: Scheme, importance: Floats | None = None) -> tuple[Bytes, ...]:
    x, weights = values.reshape(-1, scheme.group), grouped(importance, scheme.group)
    if not scheme.zero_point:
        scales, codes = grids.symmetric(x, 8, "bf16", weights)
        return _pairs(codes), _halves(scales)
    scales, zeros, codes = grids.with_zero_point(x, 15, "bf16", weights)
    return _pairs(codes), _halves(scales), raw(_by_eight(zeros.reshape(len(values), -1).astype(np.uint8)))


def compensated(values: Floats, scheme: Scheme, known: Curvature) -> tuple[Bytes, ...]:
    """`encode` with what each column loses made good by others; see columns.py."""
    if not scheme.zero_point:
        q, scales, _ = rounded(values, scheme.group, _symmetric, (-8, 7), known)
        return _pairs((q + 8).astype(np.uint8)), _halves(scales)
    q, scales, zeros = rounded(values, scheme.group, _with_zero_point, (0, 15), known)
    return _pairs(q.astype(np.uint8)), _halves(scales), raw(_by_eight(zeros.astype(np.uint8)))


def _symmetric(x: Floats, weights: Floats) -> tuple[Floats, Floats]:
    scales, _ = grids.symmetric(x, 8, "bf16", weights)
    return scales, np.zeros_like(scales)


def _with_zero_point(x: Floats, weights: Floats) -> tuple[Floats, Floats]:
    return grids.with_zero_point(x, 15, "bf16", weights)[:2]


def settings(scheme: Scheme) -> dict[str, Any]:
    return {
        "num_bits": 4,
        "type": "int",
        "symmetric": not scheme.zero_point,
        "strategy": "group",
        "group_size": scheme.group,
        "dynamic": False,
    }


def _pairs(codes: Bytes) -> Bytes:
    """Two neighbours in a byte, the first one in its low half."""
    both = codes.reshape(-1).view("<u2")
    packed: Bytes = (both | both >> 4).astype(np.uint8)
    return packed


def _halves(scales: Floats) -> Bytes:
    """The upper halves of float32 numbers that are bfloat16."""
    return raw((scales.view(np.uint32) >> 16).astype("<u2"))


def _by_eight(zeros: Bytes) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """[rows, groups] as words [rows / 8, groups]: row 8 r + i in bits 4 i and up."""
    padded = np.pad(zeros, ((0, -len(zeros) % 8), (0, 0))).reshape(-1, 8, zeros.shape[1]).astype(np.uint32)
    words: np.ndarray[Any, np.dtype[np.uint32]] = np.bitwise_or.reduce(
        padded << np.arange(0, 32, 4, dtype=np.uint32)[:, None], axis=1
    )
    return words
