"""GGUF's Q8_0: blocks of a float16 scale and 32 int8."""

import numpy as np

from kt_core.quantise.methods import Bytes, Floats, Scheme, Stored, in_slices, raw
from kt_core.quantise.methods.int8 import LARGEST, rounded

__all__ = ["LARGEST", "encode", "tensors"]


def tensors(rows: int, cols: int, scheme: Scheme) -> tuple[Stored, ...]:
    return (Stored("weight", "Q8_0", (rows, cols)),)


def encode(values: Floats, scheme: Scheme, importance: Floats | None = None) -> tuple[Bytes, ...]:
    parts = []
    for part in in_slices(values):
        q, scale = rounded(part)
        parts.append(raw(np.concatenate([scale[..., None].view(np.uint8), q.view(np.uint8)], axis=-1)))
    return (np.concatenate(parts),)
