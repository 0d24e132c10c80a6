"""Rows to host memory and back as one Triton kernel each way, in place of a copy for every tensor and what is added to them.

The host's memory is pinned, so kernels reach it over the link. A copy would wait in the copy engine's queue, behind all layers'
weights that are on their way for a long prompt.
"""

import torch
import triton
import triton.language as tl

WIDE = 1024  # columns of a program


@triton.jit
def _send(x, ids, weights, x_to, ids_to, weights_to, cols, slots, count, WIDE: tl.constexpr, SLOTS: tl.constexpr):
    """One program takes WIDE columns of a row; the first of a row its ids and weights as well."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    col = block * WIDE + tl.arange(0, WIDE)
    tl.store(x_to + row * cols + col, tl.load(x + row * cols + col, mask=col < cols), mask=col < cols)
    if block == 0:
        slot = tl.arange(0, SLOTS)
        at = row * slots + slot
        tl.store(ids_to + at, tl.load(ids + at, mask=slot < slots).to(tl.int64), mask=slot < slots)
        tl.store(weights_to + at, tl.load(weights + at, mask=slot < slots).to(tl.float32), mask=slot < slots)


@triton.jit
def _collect(there, here, out, cols, PARTS: tl.constexpr, WIDE: tl.constexpr):
    """out = there (float32, if any) + here, of host memory."""
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    at = row * cols + col
    # what the CPU has written since the kernel before must not come from a cache
    value = tl.load(here + at, mask=col < cols, volatile=True).to(tl.float32)
    if PARTS:
        value = tl.load(there + at, mask=col < cols).to(tl.float32) + value
    tl.store(out + at, value.to(out.dtype.element_ty), mask=col < cols)


def send(parts: tuple[torch.Tensor, ...], to: tuple[torch.Tensor, ...]) -> None:
    """x [T, hidden], ids and weights [T, K] of the device into host memory of x's dtype, int64 and float32."""
    x, ids, _ = parts
    rows, cols = x.shape
    grid = (rows, triton.cdiv(cols, WIDE))
    slots = ids.shape[1]
    _send[grid](*parts, *to, cols, slots, rows, WIDE=WIDE, SLOTS=triton.next_power_of_2(slots))


def collect(there: torch.Tensor | None, here: torch.Tensor, device: torch.device) -> torch.Tensor:
    """there [T, hidden] float32 on the device, if any, + here [T, hidden] in host memory, rounded once to here's dtype."""
    out = torch.empty(here.shape, dtype=here.dtype, device=device)
    rows, cols = here.shape
    part = here if there is None else there
    _collect[(rows, triton.cdiv(cols, WIDE))](part, here, out, cols, PARTS=there is not None, WIDE=WIDE)
    return out
