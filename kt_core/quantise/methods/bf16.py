"""bfloat16, to nearest: what a quantised checkpoint is turned back into."""

import numpy as np

from kt_core.quantise import rounding
from kt_core.quantise.methods import Bytes, Floats, Scheme, Stored, raw

LARGEST = float(np.uint32(0x7F7F7FFF).view(np.float32))  # what lies above is rounded to infinity


def tensors(rows: int, cols: int, scheme: Scheme) -> tuple[Stored, ...]:
    return (Stored("weight", "BF16", (rows, cols)),)


def encode(values: Floats, scheme: Scheme, importance: Floats | None = None) -> tuple[Bytes, ...]:
    return (raw((rounding.bf16(values).view("uint32") >> 16).astype("<u2")),)
