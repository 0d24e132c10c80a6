"""Weights as the CPU's kernels hold them, taken apart on a device.

A panel has 16 output rows, and for them one step after the other along K; native/kernels/formats says how each format's step
lies. Here it becomes rows [16, K] again. Formats of few bits have a Triton kernel where that is installed; what it must
give, and what devices without it use, is the plain function beside it.
"""

from collections.abc import Callable
from importlib.util import find_spec

import torch

ROWS = 16
SUPER = 256  # values of a super-block
Q4_K_BYTES = 2304  # of a step of 16 super-blocks


def decode(format: str, panels: torch.Tensor, cols: int, dtype: torch.dtype) -> torch.Tensor:
    """panels uint8 [..., bytes of a panel] to [..., 16, cols] of dtype. Raises KeyError for a format that is not in DECODERS."""
    if format == "Q4_K" and panels.is_cuda and find_spec("triton"):
        from kt_core.device.unpacking import q4_k

        return q4_k(panels, cols, dtype)
    return DECODERS[format](panels, cols).to(dtype)


def _pairs(panels: torch.Tensor, cols: int) -> torch.Tensor:
    """BF16: [K / 2][16][2]; an odd K has a zero behind it."""
    values = panels.view(torch.bfloat16).unflatten(-1, (-1, ROWS, 2))
    return values.transpose(-3, -2).flatten(-2)[..., :cols]


def _singles(panels: torch.Tensor, cols: int) -> torch.Tensor:
    """F32: [K][16]."""
    return panels.view(torch.float32).unflatten(-1, (cols, ROWS)).transpose(-2, -1)


def _q4_k(panels: torch.Tensor, cols: int) -> torch.Tensor:
    """w = d * scale * q - dmin * min. A step: 16 d, 16 dmin, float16; 12 arrays of 16 bytes with 8 scales and 8 minimums of six
    bits; for each of 8 groups of 32 values nibbles [4][16][4], the low ones before the high ones in each eight."""
    steps = panels.unflatten(-1, (cols // SUPER, Q4_K_BYTES))
    d, dmin = steps[..., :64].contiguous().view(torch.float16).float().unflatten(-1, (2, ROWS)).unbind(-2)
    first, second, high = steps[..., 64:256].unflatten(-1, (3, 4, ROWS)).unbind(-3)
    numbers = [first & 15, first >> 4, second & 15, second >> 4]  # [..., 4, 16] each
    numbers = [low | ((high >> 2 * place & 3) << 4) for place, low in enumerate(numbers)]
    scales, minimums = (torch.cat(pair, -2).float() for pair in (numbers[:2], numbers[2:]))  # [..., 8, 16]
    nibbles = steps[..., 256:].unflatten(-1, (8, 4, ROWS, 4))
    values = torch.stack((nibbles & 15, nibbles >> 4), -3).float()  # [..., 8 groups, 4, 2, 16 rows, 4]
    scales, minimums = (
        part[..., None, None, :, None] for part in (d[..., None, :] * scales, dmin[..., None, :] * minimums)
    )
    rows = scales * values - minimums
    return rows.movedim(-2, -6).flatten(-5)  # from [..., steps, groups, 4, 2, 16 rows, 4]


DECODERS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {"BF16": _pairs, "F32": _singles, "Q4_K": _q4_k}
