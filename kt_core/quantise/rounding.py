"""Numbers as formats of fewer bits hold them, and quotients that stay finite."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
TINY = np.float32(1e-33)


def bf16(x: Floats) -> Floats:
    """The nearest bfloat16 numbers, ties to even, as float32."""
    bits = x.view(np.uint32)
    nearest: Floats = ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return nearest


def f16(x: Floats) -> Floats:
    """The nearest float16 numbers, as float32; what float16 has no number for becomes its largest."""
    return np.clip(x, -65504, 65504).astype(np.float16).astype(np.float32)


def divided(x: Floats, by: Floats) -> Floats:
    """x / by, 0 where `by` is 0 or so small that the quotient could overflow."""
    return np.divide(x, by, out=np.zeros(np.broadcast(x, by).shape, np.float32), where=np.abs(by) > TINY)
