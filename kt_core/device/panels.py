"""Weights as the CPU's kernels hold them, taken apart on a device.

A panel has 16 output rows, and for them one step after the other along K; native/kernels/formats says how each format's step
lies. Here it becomes rows [16, K] again. Where Triton is installed, a GPU uses the kernels of device.unpacking; what they
must give, and what other devices use, are the plain functions here.
"""

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

ROWS = 16
SUPER = 256  # values of a super-block
GROUP = 32  # values of a group
Q4_K_BYTES, Q6_K_BYTES = 2304, 3360  # of a step of 16 super-blocks
SCALES = (torch.float32, torch.float16, torch.bfloat16)  # the first kinds that the kernels number, from 1 on
AT_ONCE = 16  # of the first dimension
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


# What INT4's panels say of themselves, the same in all of them: columns of a group, the kind of scales (1, 2, ... as SCALES),
# whether there are zero points. None for other formats.
Detail = tuple[int, int, bool] | None


def detail(format: str, panel: torch.Tensor) -> Detail:
    """What the first bytes of a panel, uint8 on the CPU, say."""
    if format not in ("INT4", "GPTQ", "AWQ"):
        return None
    head = panel[:8].tolist()
    return head[0] | head[1] << 8 | head[2] << 16, head[4], bool(head[5])


def kernels() -> Any:
    """device.unpacking, or None where Triton is missing."""
    return importlib.import_module("kt_core.device.unpacking") if find_spec("triton") else None


def decode(format: str, panels: torch.Tensor, cols: int, dtype: torch.dtype, known: Detail = None) -> torch.Tensor:
    """panels uint8 [N, ..., bytes of a panel] to [N, ..., 16, cols] of dtype; `known` as `detail` has it. Raises KeyError for a
    format that is not in DECODERS."""
    if panels.is_cuda and (own := kernels()) and format in own.FORMATS:
        found: torch.Tensor = own.unpack(format, panels, cols, dtype, known)
        return found
    out = torch.empty(*panels.shape[:-1], ROWS, cols, dtype=dtype, device=panels.device)
    for place, part in zip(out.split(AT_ONCE), panels.split(AT_ONCE), strict=True):  # float32 in between takes memory
        place.copy_(DECODERS[format](part, cols, known))
    return out


def _as(part: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return part.contiguous().view(dtype)


def _halves(part: torch.Tensor) -> torch.Tensor:
    return _as(part, torch.float16).float()


def _nibbles(part: torch.Tensor) -> torch.Tensor:
    """[..., 256] to [..., 4, 2, 16, 4]: of each eight values of a row, the first four are in low nibbles."""
    bytes_ = part.unflatten(-1, (4, ROWS, 4))
    return torch.stack((bytes_ & 15, bytes_ >> 4), -3)


def _ordered(values: torch.Tensor) -> torch.Tensor:
    """[..., steps, vectors, 16, 4] to [..., 16, K]: a vector has four values of each row."""
    return values.movedim(-2, -4).flatten(-3)


def _pairs(panels: torch.Tensor, cols: int, known: Detail) -> torch.Tensor:
    """BF16: [K / 2][16][2]; an odd K has a zero behind it."""
    values = panels.view(torch.bfloat16).unflatten(-1, (-1, ROWS, 2))
    return values.transpose(-3, -2).flatten(-2)[..., :cols]


def _singles(panels: torch.Tensor, cols: int, known: Detail) -> torch.Tensor:
    """F32: [K][16]."""
    return panels.view(torch.float32).unflatten(-1, (cols, ROWS)).transpose(-2, -1)


def _q4_k(panels: torch.Tensor, cols: int, known: Detail) -> torch.Tensor:
    """w = d * scale * q - dmin * min. A step: 16 d, 16 dmin, float16; 12 arrays of 16 bytes with 8 scales and 8 minimums of six
    bits; for each of 8 groups of 32 values its nibbles."""
    steps = panels.unflatten(-1, (cols // SUPER, Q4_K_BYTES))
    d, dmin = _halves(steps[..., :64]).unflatten(-1, (2, ROWS)).unbind(-2)
    first, second, high = steps[..., 64:256].unflatten(-1, (3, 4, ROWS)).unbind(-3)
    numbers = [first & 15, first >> 4, second & 15, second >> 4]  # [..., 4, 16] each
    numbers = [low | ((high >> 2 * place & 3) << 4) for place, low in enumerate(numbers)]
    scales, minimums = (torch.cat(pair, -2).float() for pair in (numbers[:2], numbers[2:]))  # [..., 8, 16]
    scales, minimums = d[..., None, :] * scales, dmin[..., None, :] * minimums
    values = _nibbles(steps[..., 256:].unflatten(-1, (8, 256))).flatten(-4, -3).float()  # [..., 8 groups, 8, 16, 4]
    return _ordered((scales[..., None, :, None] * values - minimums[..., None, :, None]).flatten(-4, -3))


def _q6_k(panels: torch.Tensor, cols: int, known: Detail) -> torch.Tensor:
    """w = d * scale * (q - 32). A step: 16 d, float16; 16 scales of each row, int8; for each of 8 groups nibbles and the upper two
    bits, four vectors of them in a byte."""
    steps = panels.unflatten(-1, (cols // SUPER, Q6_K_BYTES))
    scales = _as(steps[..., 32:288], torch.int8).float().unflatten(-1, (16, ROWS))
    scales = _halves(steps[..., :32])[..., None, :] * scales  # for 16 values of a row each
    groups = steps[..., 288:].unflatten(-1, (8, 384))
    low = _nibbles(groups[..., :256]).flatten(-4, -3)  # [..., 8 groups, 8, 16, 4]
    planes = groups[..., 256:].unflatten(-1, (2, ROWS, 4))
    upper = torch.stack([planes >> 2 * place & 3 for place in range(4)], -3).flatten(-4, -3)
    values = (low | upper << 4).float() - 32
    fours = values.unflatten(-3, (2, 4)).flatten(-5, -4)  # [..., 16 sub-blocks, 4, 16, 4]
    return _ordered((scales[..., None, :, None] * fours).flatten(-4, -3))


def _q8_0(panels: torch.Tensor, cols: int, known: Detail) -> torch.Tensor:
    """w = d * (q - 128). A step of 32 values: 16 d, float16; q."""
    steps = panels.unflatten(-1, (cols // GROUP, 544))
    values = steps[..., 32:].unflatten(-1, (8, ROWS, 4)).float() - 128
    return _ordered(_halves(steps[..., :32])[..., None, :, None] * values)


def _q4_0(panels: torch.Tensor, cols: int, known: Detail) -> torch.Tensor:
    """w = d * (q - 8). A step of 32 values: 16 d, float16; nibbles."""
    steps = panels.unflatten(-1, (cols // GROUP, 288))
    values = _nibbles(steps[..., 32:]).flatten(-4, -3).float() - 8
    return _ordered(_halves(steps[..., :32])[..., None, :, None] * values)


def _mxfp4(panels: torch.Tensor, cols: int, known: Detail) -> torch.Tensor:
    """w = 2^(e - 127) * v, v of E2M1. A step of 32 values: 16 e; nibbles."""
    steps = panels.unflatten(-1, (cols // GROUP, 272))
    table = torch.tensor(E2M1, device=panels.device)
    values = table[_nibbles(steps[..., 16:]).flatten(-4, -3).int()]
    return _ordered(torch.ldexp(values, steps[..., None, :ROWS, None].int() - 127))


def _fp8(panels: torch.Tensor, cols: int, known: Detail) -> torch.Tensor:
    """w = row scale * scale * v, v of E4M3. A panel: 16 row scales, float32; for every 2048 columns 16 scales, one of each 128,
    and the values, of four columns [4][2][4][2]: row / 4, column / 2, row % 4, column % 2."""
    rows, parts, at = _as(panels[..., :64], torch.float32), [], 64
    for begin in range(0, cols, 2048):
        count = min(2048, cols - begin)
        scales = _as(panels[..., at : at + 64], torch.float32).repeat_interleave(128, -1)[..., None, :count]
        values = _as(panels[..., at + 64 : at + 64 + ROWS * count], torch.float8_e4m3fn).float()
        fours = values.unflatten(-1, (count // 4, 4, 2, 4, 2)).movedim((-4, -2), (-5, -4))
        parts.append(scales * fours.flatten(-3).flatten(-3, -2))
        at += 64 + ROWS * count
    return rows[..., None] * torch.cat(parts, -1)


def _int4(panels: torch.Tensor, cols: int, known: Detail) -> torch.Tensor:
    """w = scale * (q - zero). A panel: 64 bytes that say what `known` does; for each group 16 scales, 16 int8 of -zero if there are
    any (else it is 8), nibbles."""
    assert known is not None
    group, dtype, zeros = known[0], SCALES[known[1] - 1], known[2]
    groups = panels[..., 64:].unflatten(-1, (cols // group, -1))
    at = ROWS * dtype.itemsize
    scales = _as(groups[..., :at], dtype).float()
    values = (
        _nibbles(groups[..., at + ROWS * zeros :].unflatten(-1, (-1, 256))).flatten(-5, -3).float()
    )  # [..., vectors, 16, 4]
    less = _as(groups[..., at : at + ROWS], torch.int8).float()[..., None, :, None] if zeros else -8.0
    return _ordered(scales[..., None, :, None] * (values + less))


DECODERS: dict[str, Callable[[torch.Tensor, int, Detail], torch.Tensor]] = {
    "BF16": _pairs,
    "F32": _singles,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "MXFP4": _mxfp4,
    "MXFP4_HF": _mxfp4,
    "FP8_BLOCK": _fp8,
    "FP8_CHANNEL": _fp8,
    "INT4": _int4,
    "GPTQ": _int4,
    "AWQ": _int4,
}
