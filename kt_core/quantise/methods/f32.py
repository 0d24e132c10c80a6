"""float32, as GGUF files keep norms, biases and routers."""

from kt_core.quantise.methods import Bytes, Floats, Scheme, Stored, raw


def tensors(rows: int, cols: int, scheme: Scheme) -> tuple[Stored, ...]:
    return (Stored("weight", "F32", (rows, cols)),)


def encode(values: Floats, scheme: Scheme, importance: Floats | None = None) -> tuple[Bytes, ...]:
    return (raw(values),)
