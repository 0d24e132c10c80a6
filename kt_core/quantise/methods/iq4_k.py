"""IQ4_K of ik_llama.cpp: blocks of 256 in sixteen groups with 6-bit scales, sixteen uneven steps and a second set of them; 4.5 bits."""

import numpy as np

from kt_core.kernels import grids
from kt_core.quantise import rounding
from kt_core.quantise.methods import Bytes, Floats, Scheme, Stored, grouped, in_slices, raw

GROUP = 16
LARGEST = 113 * 31 * rounding.F16_LARGEST  # the outermost step that both sides have
GROUPS = 16  # of a block


def tensors(rows: int, cols: int, scheme: Scheme) -> tuple[Stored, ...]:
    return (Stored("weight", "IQ4_K", (rows, cols)),)


def encode(values: Floats, scheme: Scheme, importance: Floats | None = None) -> tuple[Bytes, ...]:
    return (np.concatenate([_blocks(part, importance) for part in in_slices(values)]),)


def _blocks(values: Floats, importance: Floats | None) -> Bytes:
    x = values.reshape(-1, GROUP)
    found, shifts = grids.scales("uneven", x, 15, grouped(importance, GROUP))
    d, scales = _six_bits(found.reshape(-1, GROUPS))
    codes = grids.nearest_uneven(x, (d * scales).reshape(-1), shifts).reshape(-1, 8, 2, GROUP)
    bits = np.packbits(shifts.reshape(-1, GROUPS) > 0, axis=1, bitorder="little")
    stored = (scales + 32).astype(np.uint8).reshape(-1, 8, 2)
    low = stored[..., 0] & 15 | stored[..., 1] << 4
    upper = stored[..., 0] >> 4 | stored[..., 1] >> 4 << 2
    high = upper[:, ::2] | upper[:, 1::2] << 4
    numbers = (codes[:, :, 0] | codes[:, :, 1] << 4).reshape(-1, 128)
    return raw(np.concatenate([d.astype("<f2").view(np.uint8), bits, high, low, numbers], axis=-1))


def _six_bits(x: Floats) -> tuple[Floats, Floats]:
    """x [blocks, 16] as float16 factors [blocks, 1] and integers -32 ... 31, the largest in size being -32."""
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=1, keepdims=True), axis=1)
    factor = rounding.f16(extreme / np.float32(-32))
    return factor, np.clip(np.rint(rounding.divided(x, factor)), -32, 31)
