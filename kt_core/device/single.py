"""Attention of single tokens over pages where they lie, as Triton kernels: device.pages has the same with torch's operations.

Parts of a sequence's keys are attended to side by side, and their results merged in order: a second kernel does that, since
only it knows the largest score. Scores, softmax and sums are float32; products take rows of the pages' dtype.
"""

import torch
import triton
import triton.language as tl

from kt_core.device.pages import Attending, Pages, Sequences

PART = 4  # pages that one program attends to
HEADS = 16  # query heads of a program, the least that a product of tiles takes
COLUMNS = 64  # of a key that are loaded at once


@triton.jit
def _part(
    q, keys, values, tables, lengths, out, best, sums, scale, softcap, window, heads, group, pages, parts, row_k, row_v,
    DK: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr, H: tl.constexpr, PAGE: tl.constexpr,
    PART: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """One program: H query heads of a kv head, over PART pages. out [B, query heads, parts, DV], best and sums without DV."""
    batch, part = tl.program_id(0).to(tl.int64), tl.program_id(2)
    blocks = tl.cdiv(group, H)
    head = tl.program_id(1) // blocks
    row = tl.program_id(1) % blocks * H + tl.arange(0, H)
    length = tl.load(lengths + batch)
    least = tl.maximum(length - window, 0)
    begin = part * PART * PAGE
    at, d, v = tl.arange(0, PAGE), tl.arange(0, BD), tl.arange(0, BV)
    mine = (batch * heads + head) * group + row  # among all query heads
    top = tl.full((H,), float("-inf"), tl.float32)
    total = tl.zeros((H,), tl.float32)
    sum_ = tl.zeros((H, BV), tl.float32)
    for number in range(PART):
        start = begin + number * PAGE
        if (start < length) & (start + PAGE > least):
            page = tl.load(tables + batch * pages + part * PART + number)
            rows = page * PAGE + at
            scores = tl.zeros((H, PAGE), tl.float32)
            for first in tl.static_range(0, DK, BD):
                inside = first + d < DK
                some = tl.load(
                    q + mine[:, None] * DK + first + d[None, :], mask=(row < group)[:, None] & inside[None, :], other=0
                )
                # where nothing was loaded is 0 in the products' dtype: not all pages' dtypes can be made from it
                key = tl.load(keys + rows[None, :] * row_k + head * DK + first + d[:, None], mask=inside[:, None])
                key = tl.where(inside[:, None], key.to(some.dtype), 0.0)
                scores = tl.dot(some, key, scores, input_precision="ieee")
            scores *= scale
            if CAPPED:
                scores = softcap * (2 * tl.sigmoid(2 * scores / softcap) - 1)
            seen = (start + at < length) & (start + at >= least)
            scores = tl.where(seen[None, :], scores, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 1))
            weights = tl.exp(scores - higher[:, None])
            less = tl.exp(top - higher)
            value = tl.load(values + rows[:, None] * row_v + head * DV + v[None, :], mask=(v < DV)[None, :])
            value = tl.where((v < DV)[None, :], value.to(q.dtype.element_ty), 0.0)
            sum_ = tl.dot(weights.to(value.dtype), value, sum_ * less[:, None], input_precision="ieee")
            total = total * less + tl.sum(weights, 1)
            top = higher
    to = mine * parts + part
    tl.store(best + to, top, mask=row < group)
    tl.store(sums + to, total, mask=row < group)
    tl.store(out + to[:, None] * DV + v[None, :], sum_, mask=(row < group)[:, None] & (v < DV)[None, :])


@triton.jit
def _merge(out, best, sums, sinks, result, parts, heads, DV: tl.constexpr, BV: tl.constexpr, SINKS: tl.constexpr):
    """One program: the parts of one query head. They are gone through twice, for the largest score first."""
    one = tl.program_id(0).to(tl.int64)
    v = tl.arange(0, BV)
    top = tl.load(best + one * parts)
    if SINKS:
        sink = tl.load(sinks + one % heads).to(tl.float32)
        top = tl.maximum(top, sink)
    for part in range(1, parts):
        top = tl.maximum(top, tl.load(best + one * parts + part))
    total = tl.exp(sink - top) if SINKS else 0.0
    whole = tl.zeros((BV,), tl.float32)
    for part in range(parts):
        share = tl.exp(tl.load(best + one * parts + part) - top)
        total += share * tl.load(sums + one * parts + part)
        whole += share * tl.load(out + (one * parts + part) * DV + v, mask=v < DV, other=0)
    tl.store(result + one * DV + v, (whole / total).to(result.dtype.element_ty), mask=v < DV)


def last_keys(q: torch.Tensor, pages: Pages, sequences: Sequences, how: Attending) -> torch.Tensor:
    """As pages.last_keys."""
    tables, lengths = sequences.tables, sequences.lengths
    form, (batch, count, size) = pages.form, q.shape
    group, parts = count // form.heads, triton.cdiv(tables.shape[1], PART)
    wide = triton.next_power_of_2(form.value_size)
    best, sums = torch.empty(2, batch, count, parts, dtype=torch.float32, device=q.device)
    out = torch.empty(batch, count, parts, form.value_size, dtype=torch.float32, device=q.device)
    window = 1 << 30 if how.window is None else how.window
    rows = q.to(form.products).contiguous()
    _part[(batch, form.heads * triton.cdiv(group, HEADS), parts)](
        rows, pages.keys, pages.values, tables.contiguous(), lengths.contiguous(), out, best, sums, how.scale, how.softcap,
        window, form.heads, group, tables.shape[1], parts, pages.keys.stride(0), pages.values.stride(0),
        DK=size, BD=max(16, min(COLUMNS, triton.next_power_of_2(size))), DV=form.value_size, BV=max(16, wide), H=HEADS,
        PAGE=form.page, PART=PART, CAPPED=how.softcap != 0,
    )  # fmt: skip
    result = torch.empty(batch, count, form.value_size, dtype=q.dtype, device=q.device)
    sinks = best if how.sinks is None else how.sinks
    merged = (out, best, sums, sinks, result, parts, count)
    _merge[(batch * count,)](*merged, DV=form.value_size, BV=wide, SINKS=how.sinks is not None)
    return result
