"""float32, as GGUF files keep norms, biases and routers."""

import numpy as np

from kt_core.quantise.methods import Bytes, Floats, Scheme, Stored, raw

LARGEST = float(np.finfo(np.float32).max)


def tensors(rows: int, cols: int, scheme: Scheme) -> tuple[Stored, ...]:
    return (Stored("weight", "F32", (rows, cols)),)


def encode(values: Floats, scheme: Scheme, importance: Floats | None = None) -> tuple[Bytes, ...]:
    return (raw(values),)
