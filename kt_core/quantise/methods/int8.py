"""INT8 in groups of 32 along K with a float16 scale each: compressed-tensors' pack-quantized of 8 bits.

The scales are float16 so that the kernels, which have them so, compute with exactly what is stored.
"""

from typing import Any

import numpy as np

from kt_core.quantise import columns, rounding
from kt_core.quantise.methods import Bytes, Floats, Scheme, Stored, in_slices, raw

FORMAT = "pack-quantized"
GROUP = 32
LARGEST = 127 * rounding.F16_LARGEST


def tensors(rows: int, cols: int, scheme: Scheme) -> tuple[Stored, ...]:
    return (
        Stored("weight_packed", "I32", (rows, cols // 4)),
        Stored("weight_scale", "F16", (rows, cols // GROUP)),
        Stored("weight_shape", "I64", (2,), 0),
    )


def encode(values: Floats, scheme: Scheme, importance: Floats | None = None) -> tuple[Bytes, ...]:
    parts = [rounded(part) for part in in_slices(values)]
    numbers = np.concatenate([q for q, _ in parts])
    scales = np.concatenate([scale for _, scale in parts])
    return raw((numbers.astype(np.int16) + 128).astype(np.uint8)), raw(scales)


def compensated(values: Floats, scheme: Scheme, known: columns.Curvature) -> tuple[Bytes, ...]:
    """`encode` with what each column loses made good by others; see columns.py."""
    q, scales, _ = columns.rounded(values, GROUP, _widest, (-127, 127), known)
    return raw((q + 128).astype(np.uint8)), raw(scales.astype(np.float16))


def _widest(x: Floats, weights: Floats) -> tuple[Floats, Floats]:
    scales = rounded(x)[1][:, 0].astype(np.float32)
    return scales, np.zeros_like(scales)


def rounded(values: Floats) -> tuple[np.ndarray[Any, np.dtype[np.int8]], np.ndarray[Any, np.dtype[np.float16]]]:
    """int8 [rows, K / 32, 32] and float16 scales [rows, K / 32]: to nearest, up to the group's largest weight.

    A search for a better scale gains less than 1 % of the error at 8 bits.
    """
    groups = values.reshape(len(values), -1, GROUP)
    scale = np.minimum(np.abs(groups).max(axis=-1) / np.float32(127), np.float32(rounding.F16_LARGEST)).astype(
        np.float16
    )
    q = np.rint(rounding.divided(groups, scale.astype(np.float32)[..., None]))
    return np.clip(q, -127, 127).astype(np.int8), scale


def settings(scheme: Scheme) -> dict[str, Any]:
    return {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": GROUP,
        "dynamic": False,
    }
