"""Blocks of 32 with a float16 scale and a float16 minimum: GGUF's Q4_1 and Q5_1."""

import numpy as np

from kt_core.quantise import search
from kt_core.quantise.methods import Bytes, Floats, in_slices, raw, tiled

GROUP = 32


def encoded(values: Floats, bits: int, importance: Floats | None) -> Bytes:
    """The blocks' bytes."""
    return np.concatenate([_blocks(part, bits, importance) for part in in_slices(values)])


def _blocks(values: Floats, bits: int, importance: Floats | None) -> Bytes:
    x = search.columns(values, GROUP)
    scale, minimum = search.affine(x, 2**bits - 1, search.f16, tiled(importance, GROUP, len(values)))
    q = np.clip(np.rint(search.divided(x - minimum, scale)), 0, 2**bits - 1).astype(np.uint8).T
    head = np.stack([scale, minimum], axis=-1).astype("<f2").view(np.uint8)
    fifth = [np.packbits(q >> 4, axis=-1, bitorder="little")] if bits == 5 else []
    nibbles = q & 15
    return raw(np.concatenate([head, *fifth, nibbles[:, :16] | nibbles[:, 16:] << 4], axis=-1))
