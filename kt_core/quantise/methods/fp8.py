"""E4M3 with a float32 scale for each block of 128 x 128, or for each row where a weight is no whole number of blocks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kt_core.quantise.methods import ROWS, Bytes, Floats, Scheme, Stored, raw
from kt_core.weights import Matrix

FORMAT = "float-quantized"
BLOCK = 128
LARGEST = 3.4e38  # a scale rounded up for more could make infinity
TOP = 448.0  # of E4M3
FLOATS: dict[str, Callable[[Bytes], Floats]] = {  # scales of other forms; no number is rounded
    "F32": lambda raw: raw.view("<f4").astype(np.float32),
    "F16": lambda raw: raw.view("<f2").astype(np.float32),
    "BF16": lambda raw: (raw.view("<u2").astype("<u4") << 16).view("<f4"),
}


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


def same(form: str, rows: int, cols: int) -> Scheme | None:
    """The scheme whose numbers and scales a stored form has already; None where there is none."""
    if form == "FP8_BLOCK" and rows % BLOCK == cols % BLOCK == 0:
        return Scheme("fp8", BLOCK)
    return Scheme("fp8") if form == "FP8_CHANNEL" else None


def stored(matrix: Matrix, first: int, count: int) -> tuple[Bytes, ...] | None:
    """`encode` of rows that have the form already: the same numbers, their scales as float32. None where the rows have a
    number, or the weight a factor, that it has no place for. `first` begins a block."""
    high = BLOCK if matrix.format == "FP8_BLOCK" else 1
    data = matrix.data[first : first + count]
    if matrix.scales is None or matrix.multiplier != 1 or matrix.scale_format not in FLOATS:
        return None
    scales = FLOATS[matrix.scale_format](
        np.ascontiguousarray(matrix.scales[first // high : -(-(first + count) // high)])
    )
    if not np.isfinite(scales).all() or (data & 0x7F == 0x7F).any():  # E4M3's only numbers that are none
        return None
    return raw(data), raw(scales)


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
