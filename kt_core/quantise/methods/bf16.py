"""bfloat16, to nearest: what a quantised checkpoint is turned back into."""

from kt_core.quantise import rounding
from kt_core.quantise.methods import Bytes, Floats, Scheme, Stored, raw


def tensors(rows: int, cols: int, scheme: Scheme) -> tuple[Stored, ...]:
    return (Stored("weight", "BF16", (rows, cols)),)


def encode(values: Floats, scheme: Scheme, importance: Floats | None = None) -> tuple[Bytes, ...]:
    return (raw((rounding.bf16(values).view("uint32") >> 16).astype("<u2")),)
