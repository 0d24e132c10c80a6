"""INT4 in groups of 32, 64 or 128 along K with a bfloat16 scale each: compressed-tensors' pack-quantized."""

from typing import Any

import numpy as np

from kt_core.quantise import search
from kt_core.quantise.methods import Bytes, Floats, Scheme, Stored, in_slices, raw, tiled

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
    parts = [_encoded(part, scheme, importance) for part in in_slices(values)]
    numbers, scales, zeros = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    halves = (scales.view(np.uint32) >> 16).astype("<u2")
    return raw(numbers), raw(halves), *((raw(_by_eight(zeros)),) if scheme.zero_point else ())


def settings(scheme: Scheme) -> dict[str, Any]:
    return {
        "num_bits": 4,
        "type": "int",
        "symmetric": not scheme.zero_point,
        "strategy": "group",
        "group_size": scheme.group,
        "dynamic": False,
    }


def _encoded(values: Floats, scheme: Scheme, importance: Floats | None) -> tuple[Bytes, Floats, Bytes]:
    """Nibbles [rows, K / 2], scales and zero points [rows, groups]."""
    count, cols = values.shape
    x, weights = search.columns(values, scheme.group), tiled(importance, scheme.group, count)
    if scheme.zero_point:
        scale, zero, q = search.with_zero_point(x, 15, search.bf16, weights)
    else:
        scale, q = search.symmetric(x, 8, search.bf16, weights)
        zero, q = np.full_like(scale, 8), q + 8
    nibbles = search.rows(q.astype(np.uint8), cols)
    packed: Bytes = nibbles[:, ::2] | np.left_shift(nibbles[:, 1::2], np.uint8(4))
    return packed, scale.reshape(count, -1), zero.reshape(count, -1).astype(np.uint8)


def _by_eight(zeros: Bytes) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """[rows, groups] as words [rows / 8, groups]: row 8 r + i in bits 4 i and up."""
    padded = np.pad(zeros, ((0, -len(zeros) % 8), (0, 0))).reshape(-1, 8, zeros.shape[1]).astype(np.uint32)
    words: np.ndarray[Any, np.dtype[np.uint32]] = np.bitwise_or.reduce(
        padded << np.arange(0, 32, 4, dtype=np.uint32)[:, None], axis=1
    )
    return words
