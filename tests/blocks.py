"""Random valid blocks of every GGUF format: any bits, with scales that are ordinary numbers."""

import numpy as np

from kt_core.formats import FORMATS

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


def random_blocks(format: str, count: int, seed: int = 0) -> np.ndarray:
    """uint8 [count, block bytes]"""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (count, FORMATS[format].block_bytes), dtype=np.uint8)
    scales = (rng.standard_normal((count, 2)) / 4096).astype(np.float16)
    for i, at in enumerate(HALVES[format]):
        blocks[:, at : at + 2] = scales[:, i : i + 1].view(np.uint8)
    if format == "MXFP4":
        blocks[:, 0] = rng.integers(106, 116, count)  # powers of two below 1
    if format == "IQ1_M":  # a float16 in the upper nibbles of the last four 16-bit words
        words = blocks[:, 48:56].view("<u2")
        nibbles = scales[:, :1].view("<u2") >> np.array([0, 4, 8, 12], np.uint16) & 15
        blocks[:, 48:56] = (words & 0x0FFF | nibbles << 12).astype("<u2").view(np.uint8)
    return blocks
