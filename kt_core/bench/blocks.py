"""Random valid blocks of every format with a kernel: any bits, with scales that are ordinary numbers."""

import numpy as np
import numpy.typing as npt

from kt_core.formats import FORMATS

Bytes = npt.NDArray[np.uint8]

# Byte offsets of the float16 scales of a block.
HALVES = {
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "IQ4_K": (0,),
    "MXFP4": (),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
    "IQ1_S": (0,),
    "IQ1_M": (),
}


def scale_bytes(format: str) -> set[int]:
    """Byte offsets in a block that hold floating-point scales, or parts of them."""
    parts = {"MXFP4": {0}, "IQ1_M": {49, 51, 53, 55}}
    return parts.get(format, {at + i for at in HALVES[format] for i in (0, 1)})


# Of plain numbers: the unsigned type, the bit where the exponent begins, its bits, and the exponents of 2^-7 to 1.
PLAIN = {"F32": ("<u4", 23, 8, 120), "BF16": ("<u2", 7, 8, 120), "F16": ("<u2", 10, 5, 8)}


def random_blocks(format: str, count: int, seed: int = 0) -> Bytes:
    """uint8 [count, block bytes]"""
    rng = np.random.default_rng(seed)
    size = FORMATS[format].block_bytes
    # as 64-bit numbers: four times as fast as bytes one by one
    words = rng.integers(0, 2**64, -(-count * size // 8), dtype=np.uint64)
    blocks = words.view(np.uint8)[: count * size].reshape(count, size)
    if format in PLAIN:
        return _with_exponents(format, blocks, rng)
    scales = (rng.standard_normal((count, 2)) / 4096).astype(np.float16)
    for i, at in enumerate(HALVES[format]):
        blocks[:, at : at + 2] = scales[:, i : i + 1].view(np.uint8)
    if format == "MXFP4":
        blocks[:, 0] = rng.integers(106, 116, count)  # powers of two below 1
    if format == "IQ1_M":  # a float16 in the upper nibbles of the last four 16-bit words
        words16 = blocks[:, 48:56].view("<u2")
        nibbles = scales[:, :1].view("<u2") >> np.array([0, 4, 8, 12], np.uint16) & 15
        blocks[:, 48:56] = (words16 & 0x0FFF | nibbles << 12).astype("<u2").view(np.uint8)
    return blocks


def _with_exponents(format: str, blocks: Bytes, rng: np.random.Generator) -> Bytes:
    """The numbers with exponents of their own: 2^-7 to 1, any sign and mantissa."""
    kind, at, bits, lowest = PLAIN[format]
    numbers = blocks.view(kind)
    exponents = rng.integers(lowest, lowest + 7, numbers.shape, dtype=np.uint8).astype(kind)
    mask = np.array(((1 << bits) - 1) << at, kind)
    changed: Bytes = (numbers & ~mask | exponents << np.array(at, kind)).astype(kind).view(np.uint8)
    return changed
