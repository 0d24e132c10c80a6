"""E4M3 with a float32 scale for each block of 128 x 128, or for each row where a weight is no whole number of blocks."""

from typing import Any

import numpy as np
import torch

from kt_core.quantise.methods import ROWS, Bytes, Floats, Scheme, Stored, raw

FORMAT = "float-quantized"
BLOCK = 128
LARGEST = 3.4e38  # a scale rounded up for more could make infinity
TOP = 448.0  # of E4M3


def tensors(rows: int, cols: int, scheme: Scheme) -> tuple[Stored, ...]:
    if scheme.group == BLOCK:
        scales = Stored("weight_scale", "F32", (rows // BLOCK, cols // BLOCK), ROWS)
    else:
        scales = Stored("weight_scale", "F32", (rows, 1))
    return Stored("weight", "F8_E4M3", (rows, cols)), scales


def encode(values: Floats, scheme: Scheme, importance: Floats | None = None) -> tuple[Bytes, ...]:
    count, cols = values.shape
    high, wide = (BLOCK, BLOCK) if scheme.group == BLOCK else (1, cols)
    blocks = values.reshape(count // high, high, cols // wide, wide)
    top = np.abs(blocks).max(axis=(1, 3))
    scale = np.where(top == 0, 1, top / np.float32(TOP)).astype(np.float32)
    numbers = torch.from_numpy((blocks / scale[:, None, :, None]).reshape(count, cols)).to(torch.float8_e4m3fn)
    return raw(numbers.view(torch.uint8).numpy()), raw(scale)


def settings(scheme: Scheme) -> dict[str, Any]:
    blocks = scheme.group == BLOCK
    return {
        "num_bits": 8,
        "type": "float",
        "symmetric": True,
        "strategy": "block" if blocks else "channel",
        "block_structure": [BLOCK, BLOCK] if blocks else None,
        "dynamic": False,
    }
