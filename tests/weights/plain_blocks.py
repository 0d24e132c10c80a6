"""Blocks as the gguf package decodes them, and IQ4_K, which it does not know, group by group as its layout reads."""

import gguf
import numpy as np

STEPS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
MOVED = np.array([-123, -100, -79, -61, -45, -31, -18, -6, 5, 17, 29, 42, 57, 73, 93, 117], np.float32)


def dequantize(format: str, raw: np.ndarray) -> np.ndarray:
    """float32 [..., elements] of uint8 [..., bytes]."""
    if format != "IQ4_K":
        return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[format])
    return _iq4_k(np.ascontiguousarray(raw).reshape(-1, 144)).reshape(*raw.shape[:-1], -1)


def _iq4_k(blocks: np.ndarray) -> np.ndarray:
    """float32 [blocks, 256]."""
    d = blocks[:, :2].copy().view(np.float16)[:, 0].astype(np.float32)
    extra = blocks[:, 2:4].copy().view("<u2")[:, 0]
    upper, lower, numbers = blocks[:, 4:8], blocks[:, 8:16], blocks[:, 16:]
    values = []
    for group in range(8):
        high = upper[:, group // 2] >> (4 if group % 2 else 0)
        scales = (lower[:, group] % 16 + 16 * (high % 4), lower[:, group] // 16 + 16 * (high // 4 % 4))
        for half, scale in enumerate(scales):
            moved = extra >> (2 * group + half) & 1
            bytes_ = numbers[:, 16 * group : 16 * group + 16]
            step = bytes_ // 16 if half else bytes_ % 16
            size = d * (scale.astype(np.float32) - 32)
            values.append(size[:, None] * np.where(moved[:, None], MOVED[step], STEPS[step]))
    return np.concatenate(values, axis=1)
