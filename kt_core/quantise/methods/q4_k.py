"""GGUF's Q4_K: 4.5 bits a weight."""

from kt_core.quantise.methods import Bytes, Floats, Scheme, Stored
from kt_core.quantise.methods._super import LARGEST, encoded

__all__ = ["LARGEST", "encode", "tensors"]


def tensors(rows: int, cols: int, scheme: Scheme) -> tuple[Stored, ...]:
    return (Stored("weight", "Q4_K", (rows, cols)),)


def encode(values: Floats, scheme: Scheme, importance: Floats | None = None) -> tuple[Bytes, ...]:
    return (encoded(values, 4, importance),)
