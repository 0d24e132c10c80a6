"""Attention over keys and values in pages. The caller owns the pages; their form is in docs/attention.md."""

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kt_core import errors
from kt_core.kernels.native import dtype_name, load, new_result, plain, rows_of
from kt_core.kernels.policy import SUPPORTED
from kt_core.weights import Matrix

LANES = 16


@dataclass(frozen=True)
class PageLayout:
    """How a layer's pages hold keys and values: `page` keys of one sequence each, for every kv head.

    `shared`: values are the first value_size columns of the keys and are not stored again (multi-head latent
    attention: key_size = latent + rotary columns, value_size = latent). `page` is a multiple of 16; dtype is
    float32 or bfloat16. Raises ValueError for sizes that a page cannot have.
    """

    heads: int
    key_size: int
    value_size: int
    page: int = 64
    dtype: torch.dtype = torch.bfloat16
    shared: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"pages hold float32 or bfloat16, not {self.dtype}")
        if self.page < LANES or self.page % LANES:
            raise ValueError(f"a page must have a multiple of {LANES} keys, got {self.page}")
        if min(self.heads, self.key_size, self.value_size) < 1:
            raise ValueError("heads, key_size and value_size must be at least 1")
        if self.shared and (self.value_size > self.key_size or self.value_size % LANES):
            raise ValueError(f"shared values must be a multiple of {LANES} of the {self.key_size} key columns")

    @property
    def native(self) -> tuple[str, int, int, int, int, bool]:
        """As the extension takes it."""
        name = "bfloat16" if self.dtype == torch.bfloat16 else "float32"
        return (name, self.heads, self.key_size, self.value_size, self.page, self.shared)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of one layer."""
        return int(load().page_bytes(self.native))


def new_pages(layout: PageLayout, count: int) -> torch.Tensor:
    """Memory for `count` >= 1 pages, uint8 [count, page_bytes], zeros, in huge pages where the system has them."""
    memory = mmap.mmap(-1, count * layout.page_bytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(count, layout.page_bytes)


def write(
    pages: torch.Tensor, layout: PageLayout, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor | None
) -> None:
    """Put keys [T, heads, key_size] and values [T, heads, value_size] into `slots` [T] int64 of the pages.

    Slot s is key s % page of page s // page; a negative slot is left out, and no slot may appear twice. keys and
    values have one dtype, float32 or bfloat16, and are rounded to the pages' to nearest even. Their tokens
    may be strided. values is None for shared ones. Raises ValueError.
    """
    _move(True, pages, layout, slots, keys, values)


def read(pages: torch.Tensor, layout: PageLayout, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys [T, heads, key_size] and values [T, heads, value_size] of the pages' dtype; zeros for negative slots.

    Shared values are a view of the keys. Raises ValueError.
    """
    keys = torch.zeros(slots.numel(), layout.heads, layout.key_size, dtype=layout.dtype)
    if layout.shared:
        _move(False, pages, layout, slots, keys, None)
        return keys, keys[..., : layout.value_size]
    values = torch.zeros(slots.numel(), layout.heads, layout.value_size, dtype=layout.dtype)
    _move(False, pages, layout, slots, keys, values)
    return keys, values


def _move(
    writes: bool,
    pages: torch.Tensor,
    layout: PageLayout,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor | None,
) -> None:
    count = page_count(pages, layout)
    slots = _whole(slots, torch.int64, "slots", 1)
    tokens = slots.numel()
    if (values is None) != layout.shared:
        raise ValueError("values must be None exactly when the layout shares them with the keys")
    parts = [(keys, layout.key_size)] + ([] if values is None else [(values, layout.value_size)])
    addresses, strides = [0, 0], [0, 0]
    for i, (x, size) in enumerate(parts):
        if x.shape != (tokens, layout.heads, size) or x.dtype != keys.dtype:
            raise ValueError(
                f"expected [{tokens}, {layout.heads}, {size}] of {keys.dtype}, got {tuple(x.shape)} of {x.dtype}"
            )
        x = rows_of(x)
        parts[i] = (x, size)  # lives until the call is over
        addresses[i], strides[i] = x.data_ptr(), x.stride(0)
    load().move_rows(
        writes, layout.native, pages.data_ptr(), count, slots.data_ptr(), tokens, addresses, strides, dtype_name(keys)
    )


@dataclass(frozen=True)
class Batch:
    """Which queries and which pages belong to each of B sequences, on the CPU.

    tables [B, P] int32: the sequence's pages in order. lengths [B] int32: its keys, this call's included.
    starts [B + 1] int32: its queries are starts[s] .. starts[s + 1] - 1, the last of its keys; may be none.
    Raises ValueError for other shapes or dtypes.
    """

    tables: torch.Tensor
    lengths: torch.Tensor
    starts: torch.Tensor

    def __post_init__(self) -> None:
        for name, dims in (("tables", 2), ("lengths", 1), ("starts", 1)):
            object.__setattr__(self, name, _whole(getattr(self, name), torch.int32, name, dims))
        sequences = self.lengths.numel()
        if self.tables.shape[0] != sequences or self.starts.numel() != sequences + 1:
            raise ValueError(
                f"expected tables [{sequences}, P] and starts [{sequences + 1}], "
                f"got {tuple(self.tables.shape)} and {tuple(self.starts.shape)}"
            )


def attend(
    q: torch.Tensor,
    pages: torch.Tensor,
    layout: PageLayout,
    batch: Batch,
    scale: float,
    window: int | None = None,
    sinks: torch.Tensor | None = None,
    softcap: float = 0.0,
    tier: str | None = None,
) -> torch.Tensor:
    """softmax(scale q k) v for q [T, query heads, key_size], to [T, query heads, value_size] of q's dtype.

    A query sees the keys of its sequence up to its own, at most the last `window`. Query head h uses kv head
    h // (query heads / heads). `sinks` [query heads] float32: one more score in each softmax's sum, without a
    value. softcap c > 0 makes a score s into c tanh(s / c). q and the softmax's weights are rounded to the
    pages' dtype, sums are float32. The keys must have been written. A query's result is the same bits whatever
    the number of threads and the other queries. T may be 0.
    Raises ValueError for other shapes or dtypes, lengths that do not fit, or a page that does not exist.
    """
    dtype = dtype_name(q)
    if q.dim() != 3 or q.shape[2] != layout.key_size or q.shape[1] == 0 or q.shape[1] % layout.heads:
        raise ValueError(f"expected q [T, a multiple of {layout.heads}, {layout.key_size}], got {tuple(q.shape)}")
    if int(batch.starts[-1]) != q.shape[0]:
        raise ValueError(f"starts end at {int(batch.starts[-1])}, but there are {q.shape[0]} queries")
    if window is not None and window < 1:
        raise ValueError(f"a window must have at least one key, got {window}")
    if softcap < 0:
        raise ValueError(f"softcap must not be negative, got {softcap}")
    if sinks is not None:
        if sinks.shape != (q.shape[1],):
            raise ValueError(f"expected sinks [{q.shape[1]}], got {tuple(sinks.shape)}")
        sinks = plain(sinks.to("cpu", torch.float32))
    count = page_count(pages, layout)
    q = rows_of(q)
    out = new_result(q.shape[0], q.shape[1], layout.value_size, dtype=q.dtype)
    load().attend(
        layout.native,
        pages.data_ptr(),
        count,
        (
            batch.tables.data_ptr(),
            batch.tables.shape[1],
            batch.lengths.data_ptr(),
            batch.starts.data_ptr(),
            batch.lengths.numel(),
        ),
        (q.data_ptr(), q.stride(0), q.shape[1], out.data_ptr(), dtype),
        (scale, softcap, window or 0, 0 if sinks is None else sinks.data_ptr()),
        tier or "",
    )
    return out


class HeadLinear:
    """y[t, h] = W[h] x[t, h]: what latent attention absorbs into its queries and applies to its sums.

    weight [H, rows, cols], float32 or bfloat16; it is packed in that format and not referred to afterwards. For a
    bfloat16 weight x is rounded to bfloat16. Raises ValueError for another shape or dtype.
    """

    def __init__(self, weight: torch.Tensor, tier: str | None = None) -> None:
        dtype = dtype_name(weight)
        if weight.dim() != 3 or 0 in weight.shape:
            raise ValueError(f"expected weight [H, rows, cols], got {tuple(weight.shape)}")
        self.heads, self.rows, self.cols = weight.shape
        data = plain(weight).view(torch.uint8).reshape(self.heads * self.rows, -1).numpy()
        format = "BF16" if dtype == "bfloat16" else "F32"
        self.native = load().HeadLinear(format, self.heads, self.cols, data, tier or "")

    @classmethod
    def stored(cls, matrix: Matrix, heads: int, tier: str | None = None) -> "HeadLinear":
        """The rows of a stored weight [heads * rows, cols], head after head, packed in its own format.

        Raises ValueError for a number of rows that is no multiple of the heads, Unsupported for a format without a
        kernel or with scales beside the data.
        """
        if matrix.scales is not None or matrix.format not in SUPPORTED:
            raise errors.Unsupported("kernels.format", format=matrix.format, known=", ".join(sorted(SUPPORTED)))
        if heads < 1 or matrix.rows % heads:
            raise ValueError(f"{matrix.rows} rows are not shared out evenly over {heads} heads")
        self = cls.__new__(cls)
        self.heads, self.rows, self.cols = heads, matrix.rows // heads, matrix.cols
        data = np.ascontiguousarray(matrix.data)
        self.native = load().HeadLinear(matrix.format, heads, matrix.cols, data, tier or "")
        return self

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights."""
        return int(self.native.nbytes)

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """x [T, H, cols], float32 or bfloat16, to [T, H, rows] of the same dtype; tokens and heads may be strided.

        With `out` the result goes there, for instance into the first columns of longer rows.
        Raises ValueError for other shapes, dtypes or an `out` whose rows are not adjacent numbers.
        """
        dtype = dtype_name(x)
        if x.dim() != 3 or tuple(x.shape[1:]) != (self.heads, self.cols):
            raise ValueError(f"expected x [T, {self.heads}, {self.cols}], got {tuple(x.shape)}")
        if x.stride(2) != 1 or x.is_neg():
            x = plain(x)
        if out is None:
            out = new_result(x.shape[0], self.heads, self.rows, dtype=x.dtype)
        elif out.shape != (x.shape[0], self.heads, self.rows) or out.dtype != x.dtype or out.stride(2) != 1:
            raise ValueError(
                f"expected out [{x.shape[0]}, {self.heads}, {self.rows}] of {x.dtype} with adjacent numbers"
            )
        dtype_name(out)
        strides = (x.stride(0), x.stride(1), out.stride(0), out.stride(1))
        self.native.forward(x.data_ptr(), out.data_ptr(), strides, dtype, x.shape[0])
        return out


def page_count(pages: torch.Tensor, layout: PageLayout) -> int:
    """How many pages they are. Raises ValueError for what is no pages of that layout."""
    if pages.device.type != "cpu" or pages.dtype != torch.uint8 or not pages.is_contiguous():
        raise ValueError("expected pages as contiguous uint8 on the CPU")
    if pages.dim() != 2 or pages.shape[1] != layout.page_bytes:
        raise ValueError(f"expected pages [N, {layout.page_bytes}], got {tuple(pages.shape)}")
    return int(pages.shape[0])


def _whole(x: torch.Tensor, dtype: torch.dtype, name: str, dims: int) -> Any:
    if x.dtype != dtype or x.dim() != dims or x.device.type != "cpu":
        raise ValueError(f"expected {name} as a {dims}-D {dtype} tensor on the CPU, got {tuple(x.shape)} of {x.dtype}")
    return plain(x)
