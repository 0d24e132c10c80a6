"""Blocks of 256 in eight groups whose scales and minimums have 6 bits: GGUF's Q4_K and Q5_K.

weight = d * scale * q - dmin * minimum, with float16 d and dmin for the block.
"""

import numpy as np

from kt_core.kernels import grids
from kt_core.quantise import rounding
from kt_core.quantise.methods import Bytes, Floats, grouped, in_slices, raw

GROUP = 32
LARGEST = 63 * rounding.F16_LARGEST  # of a minimum


def encoded(values: Floats, bits: int, importance: Floats | None) -> Bytes:
    """The blocks' bytes."""
    return np.concatenate([_blocks(part, bits, importance) for part in in_slices(values)])


def _blocks(values: Floats, bits: int, importance: Floats | None) -> Bytes:
    top = 2**bits - 1
    x = values.reshape(-1, GROUP)
    found = np.stack(grids.scales("affine", x, top, grouped(importance, GROUP), below_zero=True)).reshape(2, -1, 8)
    found[1] *= -1
    factors, integers = _six_bits(found)
    scale, minimum = (factors * integers).reshape(2, -1)
    q = grids.nearest_affine(x, scale, -minimum, top).reshape(-1, 8, GROUP)
    heads = np.stack(list(factors[..., 0]), axis=-1).astype("<f2").view(np.uint8)
    fifth = [np.bitwise_or.reduce((q >> 4) << np.arange(8, dtype=np.uint8)[:, None], axis=1)] if bits == 5 else []
    eights = (q & 15 if bits == 5 else q).reshape(-1, 4, 2, GROUP).view(np.uint64)
    numbers = (eights[:, :, 0] | eights[:, :, 1] << np.uint64(4)).reshape(-1, 16).view(np.uint8)
    return raw(np.concatenate([heads, _packed(*integers), *fifth, numbers], axis=-1))


def _six_bits(x: Floats) -> tuple[Floats, Floats]:
    """x >= 0 [..., 8] as float16 factors [..., 1] and integers 0 ... 63 [..., 8]."""
    factor = rounding.f16(x.max(axis=-1, keepdims=True) / np.float32(63))
    return factor, np.clip(np.rint(rounding.divided(x, factor)), 0, 63)


def _packed(scales: Floats, minimums: Floats) -> Bytes:
    """The 12 bytes of eight scales and eight minimums: the later four give their top bits to the first eight bytes."""
    s, m = scales.astype(np.uint8), minimums.astype(np.uint8)
    first = s[:, :4] | s[:, 4:] >> 4 << 6
    second = m[:, :4] | m[:, 4:] >> 4 << 6
    return np.concatenate([first, second, s[:, 4:] & 15 | m[:, 4:] << 4], axis=-1)
