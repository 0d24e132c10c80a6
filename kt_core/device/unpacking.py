"""Triton kernels over packed weights: rows of numbers from panels, and products with a few rows.

device.panels says how panels lie. A kernel looks at 16 rows and a few groups of columns at a time; what is the same for a
group is loaded once for it. Format "ROWS" is no panel but 16 rows of bfloat16, one after the other, as decoded weights are.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from kt_core.device.panels import Detail

ROWS = 16
FORMATS = frozenset(
    (
        "BF16",
        "F32",
        "Q4_K",
        "Q6_K",
        "Q8_0",
        "Q4_0",
        "MXFP4",
        "MXFP4_HF",
        "FP8_BLOCK",
        "FP8_CHANNEL",
        "INT4",
        "GPTQ",
        "AWQ",
    )
)
_SAME = {"MXFP4_HF": "MXFP4", "FP8_CHANNEL": "FP8", "FP8_BLOCK": "FP8", "GPTQ": "INT4", "AWQ": "INT4"}
COLUMNS = 256  # of a pass through a kernel's loop


@triton.jit
def _nibble(at, row, col, seen):
    """Of [vectors of 8 columns][16 rows][4] bytes: the first four columns of a vector are in low nibbles."""
    byte = tl.load(at + col // 8 * 64 + row * 4 + col % 4, mask=seen, other=0).to(tl.int32)
    return byte >> (col % 8 // 4 * 4) & 15


@triton.jit
def _half(at):
    return at.to(tl.pointer_type(tl.float16))


@triton.jit
def _plain(panel, row, group, place, cols, FORMAT: tl.constexpr, WIDE: tl.constexpr):
    col = group * WIDE + place
    seen, some = col < cols, group * WIDE < cols
    if FORMAT == "ROWS":
        at = panel.to(tl.pointer_type(tl.bfloat16)) + row.to(tl.int64) * cols + col
        value = tl.load(at, mask=seen, other=0).to(tl.float32)
    elif FORMAT == "BF16":
        at = panel.to(tl.pointer_type(tl.bfloat16)) + col // 2 * 32 + row * 2 + col % 2
        value = tl.load(at, mask=seen, other=0).to(tl.float32)
    elif FORMAT == "F32":
        value = tl.load(panel.to(tl.pointer_type(tl.float32)) + col * 16 + row, mask=seen, other=0)
    elif FORMAT == "Q8_0":
        d = tl.load(_half(panel) + group * 272 + row, mask=some, other=0).to(tl.float32)
        at = group * 544 + 32 + place // 4 * 64 + row * 4 + place % 4
        value = d * (tl.load(panel + at, mask=seen, other=0).to(tl.float32) - 128)
    elif FORMAT == "Q4_0":
        d = tl.load(_half(panel) + group * 144 + row, mask=some, other=0).to(tl.float32)
        value = d * (_nibble(panel + group * 288 + 32, row, place, seen).to(tl.float32) - 8)
    else:
        tl.static_assert(FORMAT == "MXFP4")
        e = tl.load(panel + group * 272 + row, mask=some, other=0).to(tl.float32)
        q = _nibble(panel + group * 272 + 16, row, place, seen)
        m = q & 7
        big = (2 + (m & 1)).to(tl.float32) * tl.exp2(((m >> 1) - 2).to(tl.float32))
        plus = tl.where(m < 2, m.to(tl.float32) * 0.5, big)
        # 2^(e - 127) in two factors: the smallest is no normal number
        half = tl.floor(e * 0.5)
        value = tl.where(q > 7, -plus, plus) * tl.exp2(half - 63) * tl.exp2(e - half - 64)
    return value


@triton.jit
def _super(panel, row, group, place, cols, FORMAT: tl.constexpr, WIDE: tl.constexpr):
    seen, some = group * WIDE + place < cols, group * WIDE < cols
    if FORMAT == "Q4_K":
        step = panel + group // 8 * 2304
        number, upper = group % 4, group % 8 // 4
        high = tl.load(step + 192 + 16 * number + row, mask=some, other=0).to(tl.int32)
        scale = tl.load(step + 64 + 16 * number + row, mask=some, other=0).to(tl.int32)
        least = tl.load(step + 128 + 16 * number + row, mask=some, other=0).to(tl.int32)
        scale = (scale >> 4 * upper & 15) | (high >> 2 * upper & 3) << 4
        least = (least >> 4 * upper & 15) | (high >> (4 + 2 * upper) & 3) << 4
        halves = _half(panel) + group // 8 * 1152 + row
        d = tl.load(halves, mask=some, other=0).to(tl.float32) * scale.to(tl.float32)
        dmin = tl.load(halves + 16, mask=some, other=0).to(tl.float32) * least.to(tl.float32)
        value = d * _nibble(step + 256 + group % 8 * 256, row, place, seen).to(tl.float32) - dmin
    else:  # Q6_K; WIDE is 16, a scale's columns
        step, within = panel + group // 16 * 3360, group % 16
        scale = tl.load(step + 32 + within * 16 + row, mask=some, other=0).to(tl.int8, bitcast=True).to(tl.float32)
        scale *= tl.load(_half(panel) + group // 16 * 1680 + row, mask=some, other=0).to(tl.float32)
        block, at = step + 288 + within // 2 * 384, within % 2 * 16 + place
        low = _nibble(block, row, at, seen)
        vector = at // 4
        plane = tl.load(block + 256 + vector // 4 * 64 + row * 4 + at % 4, mask=seen, other=0).to(tl.int32)
        value = scale * ((low | (plane >> 2 * (vector % 4) & 3) << 4).to(tl.float32) - 32)
    return value


@triton.jit
def _fp8(panel, row, group, place, cols, WIDE: tl.constexpr):
    col = group * WIDE + place
    seen = col < cols
    block = col // 2048 * (64 + 16 * 2048) + 64  # of 2048 columns: 16 scales, then its values
    floats = panel.to(tl.pointer_type(tl.float32))
    scale = tl.load(floats + block // 4 + col % 2048 // 128, mask=seen, other=0)
    at = block + 64 + col % 2048 // 4 * 64 + row // 4 * 16 + col % 4 // 2 * 8 + row % 4 * 2 + col % 2
    byte = tl.load(panel + at, mask=seen, other=0).to(tl.int32)
    exponent, fraction = byte >> 3 & 15, byte & 7
    normal = (8 + fraction).to(tl.float32) * tl.exp2((exponent - 10).to(tl.float32))
    value = tl.where(exponent == 0, fraction.to(tl.float32) * 0.001953125, normal)
    return tl.load(floats + row) * (scale * tl.where(byte > 127, -value, value))


@triton.jit
def _int4(
    panel, row, group, place, cols, WIDE: tl.constexpr, EACH: tl.constexpr, KIND: tl.constexpr, ZEROS: tl.constexpr
):  # fmt: skip
    seen, some = group * WIDE + place < cols, group * WIDE < cols
    one: tl.constexpr = 2 if KIND != 1 else 4
    more: tl.constexpr = 16 if ZEROS else 0
    number, begin = group * WIDE // EACH, group * WIDE % EACH
    at = panel + 64 + number * (16 * one + more + 8 * EACH)
    if KIND == 1:
        scale = tl.load(at.to(tl.pointer_type(tl.float32)) + row, mask=some, other=0)
    elif KIND == 2:
        scale = tl.load(_half(at) + row, mask=some, other=0).to(tl.float32)
    else:
        scale = tl.load(at.to(tl.pointer_type(tl.bfloat16)) + row, mask=some, other=0).to(tl.float32)
    q = _nibble(at + 16 * one + more, row, begin + place, seen).to(tl.float32)
    if ZEROS:
        q += tl.load(at + 16 * one + row, mask=some, other=0).to(tl.int8, bitcast=True).to(tl.float32)
    else:
        q -= 8
    return scale * q


@triton.jit
def _weights(
    panel, row, group, place, cols, FORMAT: tl.constexpr, WIDE: tl.constexpr, EACH: tl.constexpr,
    KIND: tl.constexpr, ZEROS: tl.constexpr,
):  # fmt: skip
    """float32 [16, groups, WIDE] of a panel: row [16, 1, 1], group [1, groups, 1], place [1, 1, WIDE] in a group of columns.
    EACH: columns of a scale, KIND: what scales are, ZEROS: whether there are zero points, all of INT4."""
    if FORMAT == "Q4_K" or FORMAT == "Q6_K":
        values = _super(panel, row, group, place, cols, FORMAT, WIDE)
    elif FORMAT == "FP8":
        values = _fp8(panel, row, group, place, cols, WIDE)
    elif FORMAT == "INT4":
        values = _int4(panel, row, group, place, cols, WIDE, EACH, KIND, ZEROS)
    else:
        values = _plain(panel, row, group, place, cols, FORMAT, WIDE)
    return values


@triton.jit
def _unpack(
    packed, out, cols, size, FORMAT: tl.constexpr, WIDE: tl.constexpr, GROUPS: tl.constexpr, EACH: tl.constexpr,
    KIND: tl.constexpr, ZEROS: tl.constexpr,
):  # fmt: skip
    """One program takes GROUPS groups of columns of a panel of `size` bytes."""
    number = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, 16)[:, None, None]
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)[None, :, None]
    place = tl.arange(0, WIDE)[None, None, :]
    values = _weights(packed + number * size, row, group, place, cols, FORMAT, WIDE, EACH, KIND, ZEROS)
    col = group * WIDE + place
    tl.store(out + (number * 16 + row) * cols + col, values.to(out.dtype.element_ty), mask=col < cols)


@triton.jit
def _product(
    packed, chosen, x, out, cols, rows, slots, experts, expert_bytes, size, first, second, first_row, second_row, between, width,
    FORMAT: tl.constexpr, WIDE: tl.constexpr, GROUPS: tl.constexpr, EACH: tl.constexpr, KIND: tl.constexpr,
    ZEROS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """One program: 16 rows of one of two matrices, that begin `first` and `second` bytes into an expert, with one row of x.
    Their results go to columns first_row and second_row of out, `between` apart."""
    number, panel, which = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    expert = tl.load(chosen + number).to(tl.int64)
    row = tl.arange(0, 16)[:, None, None]
    total = tl.zeros((16, GROUPS, WIDE), tl.float32)
    if expert < experts:
        begin = tl.where(which == 0, first, second).to(tl.int64)
        base = packed + expert * expert_bytes + begin + panel.to(tl.int64) * size
        place = tl.arange(0, WIDE)[None, None, :]
        for block in range(BLOCKS):
            group = block * GROUPS + tl.arange(0, GROUPS)[None, :, None]
            col = group * WIDE + place
            values = tl.load(x + (number // slots).to(tl.int64) * cols + col, mask=col < cols, other=0).to(tl.float32)
            total += _weights(base, row, group, place, cols, FORMAT, WIDE, EACH, KIND, ZEROS) * values
    sums = tl.sum(tl.sum(total, 2), 1)
    row = panel * 16 + tl.arange(0, 16)
    to = tl.where(which == 0, first_row, second_row) + row * between
    tl.store(out + number.to(tl.int64) * width + to, sums.to(out.dtype.element_ty), mask=row < rows)


def _form(format: str, detail: Detail) -> dict[str, Any]:
    wide = 16 if format == "Q6_K" else 32
    each, kind, zeros = detail or (0, 0, False)
    name = _SAME.get(format, format)
    return {"FORMAT": name, "WIDE": wide, "GROUPS": COLUMNS // wide, "EACH": each, "KIND": kind, "ZEROS": zeros}


def unpack(format: str, panels: torch.Tensor, cols: int, dtype: torch.dtype, detail: Detail) -> torch.Tensor:
    """As panels.decode, for FORMATS."""
    panels = panels.contiguous()
    size = panels.shape[-1]
    out = torch.empty(*panels.shape[:-1], ROWS, cols, dtype=dtype, device=panels.device)
    if count := panels.numel() // size:
        _unpack[(count, triton.cdiv(cols, COLUMNS))](panels, out, cols, size, **_form(format, detail))
    return out


def product(
    format: str, packed: torch.Tensor, chosen: torch.Tensor, x: torch.Tensor, out: torch.Tensor, slots: int, rows: int,
    size: int, begins: tuple[int, ...], to: tuple[int, ...], between: int, detail: Detail,
) -> None:  # fmt: skip
    """One or two matrices [rows, cols] of the experts `chosen` [M] with rows of x [M / slots, cols].

    packed uint8 [experts, bytes]: each matrix begins `begins` bytes into an expert, in panels of `size` bytes; its row r goes to
    column to + between * r of out [M, ...]. Where `chosen` is no expert, that gets zeros.
    """
    grid = (len(chosen), triton.cdiv(rows, ROWS), len(begins))
    if len(chosen):
        numbers = (len(x[0]), rows, slots, len(packed), packed[0].numel(), size)
        ends = (begins[0], begins[-1], to[0], to[-1], between, out.shape[1])
        blocks = triton.cdiv(len(x[0]), COLUMNS)
        _product[grid](packed, chosen, x, out, *numbers, *ends, BLOCKS=blocks, **_form(format, detail))
