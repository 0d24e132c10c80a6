"""Triton kernels that take packed weights apart; device.panels says how they lie."""

import torch
import triton
import triton.language as tl

from kt_core.device.panels import Q4_K_BYTES, ROWS, SUPER


@triton.jit
def _q4_k(steps, out, cols, panel_steps, STEP: tl.constexpr):
    """One program takes one step of 16 super-blocks: [8 groups][4][16 rows][4] bytes of two nibbles."""
    number = tl.program_id(0)
    panel = number // panel_steps
    base = steps + number.to(tl.int64) * STEP
    # a byte: group, eight of the group, row, place in four
    at = tl.arange(0, 2048)
    group, eight, row, place = at // 256, at // 64 % 4, at // 4 % 16, at % 4
    halves = base.to(tl.pointer_type(tl.float16))
    d = tl.load(halves + row).to(tl.float32)
    dmin = tl.load(halves + 16 + row).to(tl.float32)
    # number j of the scales, then of the minimums: two nibbles' arrays and one of their upper bits
    j, upper = group % 4, group // 4
    high = tl.load(base + 192 + 16 * j + row).to(tl.int32)
    scale = tl.load(base + 64 + 16 * j + row).to(tl.int32)
    minimum = tl.load(base + 128 + 16 * j + row).to(tl.int32)
    scale = (scale >> 4 * upper & 15) | (high >> 2 * upper & 3) << 4
    minimum = (minimum >> 4 * upper & 15) | (high >> (4 + 2 * upper) & 3) << 4
    d *= scale.to(tl.float32)
    dmin *= minimum.to(tl.float32)
    both = tl.load(base + 256 + at).to(tl.int32)
    to = out + (panel.to(tl.int64) * 16 + row) * cols + (number % panel_steps) * 256 + group * 32 + eight * 8 + place
    tl.store(to, (d * (both & 15).to(tl.float32) - dmin).to(out.dtype.element_ty))
    tl.store(to + 4, (d * (both >> 4).to(tl.float32) - dmin).to(out.dtype.element_ty))


def q4_k(panels: torch.Tensor, cols: int, dtype: torch.dtype) -> torch.Tensor:
    """panels uint8 [..., bytes of a panel] to [..., 16, cols]."""
    panels = panels.contiguous()
    out = torch.empty(*panels.shape[:-1], ROWS, cols, dtype=dtype, device=panels.device)
    steps = panels.numel() // Q4_K_BYTES
    _q4_k[(steps,)](panels, out, cols, cols // SUPER, STEP=Q4_K_BYTES)
    return out
