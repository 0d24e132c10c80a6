"""GGUF's Q6_K: blocks of 256 in sixteen groups whose scales are int8 times a float16 of the block; 6.56 bits a weight."""

import numpy as np

from kt_core.kernels import grids
from kt_core.quantise import rounding
from kt_core.quantise.methods import Bytes, Floats, Scheme, Stored, grouped, in_slices, raw

GROUP = 16
LARGEST = 31 * 127 * rounding.F16_LARGEST


def tensors(rows: int, cols: int, scheme: Scheme) -> tuple[Stored, ...]:
    return (Stored("weight", "Q6_K", (rows, cols)),)


def encode(values: Floats, scheme: Scheme, importance: Floats | None = None) -> tuple[Bytes, ...]:
    return (np.concatenate([_blocks(part, importance) for part in in_slices(values)]),)


def _blocks(values: Floats, importance: Floats | None) -> Bytes:
    x = values.reshape(-1, GROUP)
    scale, _ = grids.scales("symmetric", x, 32, grouped(importance, GROUP))
    scale = scale.reshape(-1, 16)
    d = rounding.f16(np.abs(scale).max(axis=1, keepdims=True) / np.float32(127))
    scales = np.clip(np.rint(rounding.divided(scale, d)), -128, 127)
    codes = grids.nearest_symmetric(x, (d * scales).reshape(-1), 32).reshape(-1, 2, 4, 32)  # halves of four runs of 32
    low = codes & 15
    low = low[:, :, :2] | low[:, :, 2:] << 4
    high = np.bitwise_or.reduce((codes >> 4) << np.array([0, 2, 4, 6], np.uint8)[:, None], axis=2)
    parts = low.reshape(-1, 128), high.reshape(-1, 64), scales.astype(np.int8).view(np.uint8)
    return raw(np.concatenate([*parts, d.astype("<f2").view(np.uint8)], axis=-1))
