"""INT4 in groups of 32, 64 or 128 along K with a bfloat16 scale each: compressed-tensors' pack-quantized."""

from typing import Any

import numpy as np

from kt_core.kernels import grids
from kt_core.quantise import rounding
from kt_core.quantise.columns import Curvature, rounded
from kt_core.quantise.methods import Bytes, Floats, Scheme, Stored, grouped, raw

FORMAT = "pack-quantized"
LARGEST = float(np.finfo(np.float32).max)


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
    weights = grouped(importance, scheme.group)
    x, powers = rounding.lowered(values.reshape(-1, scheme.group))
    if not scheme.zero_point:
        scales, codes = grids.symmetric(x, 8, "bf16", weights)
        return _pairs(codes), _halves(_raised(scales, powers, codes, 8))
    scales, zeros, codes = grids.with_zero_point(x, 15, "bf16", weights)
    scales = _raised(scales, powers, codes, zeros[:, None])
    return _pairs(codes), _halves(scales), raw(_by_eight(zeros.reshape(len(values), -1).astype(np.uint8)))


def compensated(values: Floats, scheme: Scheme, known: Curvature) -> tuple[Bytes, ...]:
    """`encode` with what each column loses made good by others; see columns.py."""
    x, powers = rounding.lowered(values)
    grid = (_with_zero_point, (0, 15)) if scheme.zero_point else (_symmetric, (-8, 7))
    q, scales, zeros = rounded(x, scheme.group, *grid, known)
    codes = (q if scheme.zero_point else q + 8).astype(np.uint8)
    if powers is not None:
        each = np.repeat(powers, scales.shape[1], axis=1).reshape(-1, 1)
        scales = _raised(scales.reshape(-1), each, q.reshape(-1, scheme.group), zeros.reshape(-1, 1))
    beside = (raw(_by_eight(zeros.astype(np.uint8))),) if scheme.zero_point else ()
    return _pairs(codes), _halves(scales), *beside


def _symmetric(x: Floats, weights: Floats) -> tuple[Floats, Floats]:
    scales, _ = grids.symmetric(x, 8, "bf16", weights)
    return scales, np.zeros_like(scales)


def _with_zero_point(x: Floats, weights: Floats) -> tuple[Floats, Floats]:
    return grids.with_zero_point(x, 15, "bf16", weights)[:2]


def _raised(scales: Floats, powers: Floats | None, codes: Any, zeros: Any) -> Floats:
    """Scales [n] times the powers [n, 1] that their groups were lowered by; smaller where a weight, scale * (code - zero),
    would be infinite. Codes [n, group], zeros [n, 1]."""
    if powers is None:
        return scales
    steps = np.abs(codes.astype(np.float32) - zeros).max(axis=1)
    most = np.float32(LARGEST) / np.maximum(steps, 1)
    bits = np.clip(scales * powers[:, 0], -most, most).view(np.uint32)
    found: Floats = (bits & np.uint32(0xFFFF0000)).view(np.float32)  # down to bfloat16, which all but `most` are
    return found


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
