"""Numbers as formats of fewer bits hold them, and quotients that stay finite."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
F16_LARGEST = 65504.0
TINY = np.float32(1e-33)
HIGH = 40  # 2^HIGH is the largest number whose squares are summed up as they are: 128 of them, weighed, stay far from overflow


def bf16(x: Floats) -> Floats:
    """The nearest bfloat16 numbers, ties to even, as float32."""
    bits = x.view(np.uint32)
    nearest: Floats = ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return nearest


def f16(x: Floats) -> Floats:
    """The nearest float16 numbers, as float32; what float16 has no number for becomes its largest."""
    return np.clip(x, -F16_LARGEST, F16_LARGEST).astype(np.float16).astype(np.float32)


def divided(x: Floats, by: Floats) -> Floats:
    """x / by, 0 where `by` is 0 or so small that the quotient could overflow."""
    return np.divide(x, by, out=np.zeros(np.broadcast(x, by).shape, np.float32), where=np.abs(by) > TINY)


def lowered(x: Floats) -> tuple[Floats, Floats | None]:
    """(x [rows, columns] with rows of numbers above 2^HIGH brought down by a power of two, those powers [rows, 1]). None where
    no row needs it: x is handed back. Exact but for what such a row has 2^-100 below its largest number."""
    largest = max(x.max(initial=0), -x.min(initial=0))
    if largest < 2.0**HIGH:  # told in an eighth of the time that rows of 32 take
        return x, None
    exponents = np.frexp(np.abs(x).max(axis=1, keepdims=True))[1] - HIGH
    if exponents.max() <= 0:
        return x, None
    powers = np.ldexp(np.float32(1), np.maximum(exponents, 0)).astype(np.float32)
    return x / powers, powers
