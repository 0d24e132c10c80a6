"""Blocks of 32 with a float16 scale and a float16 minimum: GGUF's Q4_1 and Q5_1."""

import numpy as np

from kt_core.kernels import grids
from kt_core.quantise import rounding
from kt_core.quantise.methods import Bytes, Floats, grouped, in_slices, raw

GROUP = 32
LARGEST = rounding.F16_LARGEST  # of a minimum


def encoded(values: Floats, bits: int, importance: Floats | None) -> Bytes:
    """The blocks' bytes."""
    return np.concatenate([_blocks(part, bits, importance) for part in in_slices(values)])


def _blocks(values: Floats, bits: int, importance: Floats | None) -> Bytes:
    weights = grouped(importance, GROUP)
    scale, minimum, q = grids.affine(values.reshape(-1, GROUP), 2**bits - 1, "f16", weights)
    head = np.stack([scale, minimum], axis=-1).astype("<f2").view(np.uint8)
    fifth = [np.packbits(q >> 4, axis=-1, bitorder="little")] if bits == 5 else []
    nibbles = q & 15
    return raw(np.concatenate([head, *fifth, nibbles[:, :16] | nibbles[:, 16:] << 4], axis=-1))
