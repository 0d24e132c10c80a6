"""Keys and values in pages of a device, and attention over them with torch's operations, or where there is Triton, for single
tokens, with kernels that take keys where they lie.

Queries and the softmax's weights are rounded to the pages' dtype, as kernels.attention does it, and so are scores; the
softmax itself is float32. Pages of FP8 are multiplied as bfloat16. Nothing here asks the CPU for a number, so that a step can be captured as a graph.
"""

from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec

import torch
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right

WIDEST = 256  # columns of a key of float32 that kernels take
FP8 = torch.float8_e4m3fn  # 3 bits behind the point, so 2^-4 of a number at most
MOST = 448.0  # that FP8 holds; what is larger is kept as that
QUERIES = 256  # of a prompt whose scores are computed at once where torch's own attention cannot


@dataclass(frozen=True)
class Form:
    """A layer's pages: `page` keys of each of `heads`, in dtype. `shared`: values are the first columns of the keys."""

    heads: int
    key_size: int
    value_size: int
    page: int
    dtype: torch.dtype
    shared: bool = False

    @property
    def products(self) -> torch.dtype:
        """What keys and values are multiplied as."""
        return torch.bfloat16 if self.dtype == FP8 else self.dtype

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of one layer."""
        columns = self.key_size + (0 if self.shared else self.value_size)
        return self.page * self.heads * columns * int(self.dtype.itemsize)


class Pages:
    """`count` pages of one layer on a device."""

    def __init__(self, form: Form, count: int, device: torch.device) -> None:
        self.form = form
        rows = count * form.page
        self.keys = torch.zeros(rows, form.heads, form.key_size, dtype=form.dtype, device=device)
        values = torch.zeros(0 if form.shared else rows, form.heads, form.value_size, dtype=form.dtype, device=device)
        self.values = self.keys[..., : form.value_size] if form.shared else values

    @property
    def storage(self) -> list[torch.Tensor]:
        """Its pages as bytes, uint8 [pages, bytes]: keys, and values where they are not the keys'."""
        parts = [self.keys] if self.form.shared else [self.keys, self.values]
        return [part.view(-1, self.form.page * part[0].numel()).view(torch.uint8) for part in parts]

    def write(self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """keys [T, heads, key size] and values [T, heads, value size] into `slots` [T] int64; equal slots, equal numbers."""
        for place, numbers in ((self.keys, keys), (self.values, values))[: 1 if self.form.shared else 2]:
            if self.form.dtype == FP8:  # torch has few operations for it, and more for bytes
                rounded = numbers.clamp(-MOST, MOST).to(FP8).view(torch.uint8)
                place.view(torch.uint8).index_copy_(0, slots, rounded)
            else:
                place.index_copy_(0, slots, numbers.to(self.form.dtype))

    def rows(self, tables: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [..., pages * page, heads, size] of the pages in `tables` [..., pages], in their order, as they are
        multiplied."""
        keys = self._gathered(self.keys, tables)
        if self.form.shared:
            return keys, keys[..., : self.form.value_size]
        return keys, self._gathered(self.values, tables)

    def _gathered(self, rows: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
        if self.form.dtype == FP8:
            found = rows.view(torch.uint8).unflatten(0, (-1, self.form.page))[tables].flatten(-4, -3)
            return found.view(FP8).to(self.form.products)
        return rows.unflatten(0, (-1, self.form.page))[tables].flatten(-4, -3)


@dataclass(frozen=True)
class Attending:
    """How a layer attends: the scale of scores, the window, sinks [query heads], and the soft cap (0: none)."""

    scale: float
    window: int | None = None
    sinks: torch.Tensor | None = None
    softcap: float = 0.0


def seen_of(lengths: torch.Tensor, count: int, window: int | None) -> torch.Tensor:
    """Which of `count` keys the last query of sequences of those lengths [B] sees: bool [B, count]."""
    places = torch.arange(count, device=lengths.device)
    seen = places < lengths[:, None]
    return seen if window is None else seen & (places >= lengths[:, None] - window)


@dataclass(frozen=True)
class Sequences:
    """B sequences on the device: their pages `tables` [B, P], and `lengths` [B], their keys."""

    tables: torch.Tensor
    lengths: torch.Tensor
    known: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def seen(self, page: int, window: int | None) -> torch.Tensor:
        """As seen_of has it for the last query of each, made once for all layers of a window."""
        if window not in self.known:
            self.known[window] = seen_of(self.lengths, self.tables.shape[1] * page, window)
        return self.known[window]


def last_keys(q: torch.Tensor, pages: Pages, sequences: Sequences, how: Attending) -> torch.Tensor:
    """One query each of B sequences, its keys' last: q [B, query heads, key size] to [B, query heads, value size]."""
    small = (
        pages.form.dtype != torch.float32 or pages.form.key_size <= WIDEST
    )  # else some GPUs lack the memory for tiles
    known = pages.form.dtype != FP8 or (q.is_cuda and torch.cuda.get_device_capability(q.device) >= (8, 9))
    if q.is_cuda and small and known and find_spec("triton"):
        found: torch.Tensor = import_module("kt_core.device.single").last_keys(q, pages, sequences, how)
        return found
    return gathered(q, pages, sequences, how)


def gathered(q: torch.Tensor, pages: Pages, sequences: Sequences, how: Attending) -> torch.Tensor:
    """The same by torch's operations, with copies of all keys."""
    tables, seen = sequences.tables, sequences.seen(pages.form.page, how.window)
    keys, values = pages.rows(tables)  # [B, L, heads, size]
    grouped = q.to(keys.dtype).unflatten(1, (keys.shape[2], -1))  # [B, heads, queries of a head, size]
    sinks = None if how.sinks is None else how.sinks.view(keys.shape[2], -1, 1)
    out = _attend(grouped, keys.transpose(1, 2), values.transpose(1, 2), seen[:, None, None], how, sinks)
    return out.flatten(1, 2).to(q.dtype)


def prompt(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, how: Attending) -> torch.Tensor:
    """The last queries of one sequence: q [T, query heads, key size] to [T, query heads, value size].

    keys and values [L, heads, size]: the sequence's, of which the queries' are the last T.
    """
    count, length, heads = len(q), len(keys), keys.shape[1]
    keys, values, rows = keys.transpose(0, 1), values.transpose(0, 1), q.to(keys.dtype)
    if how.window is None and how.sinks is None and not how.softcap:
        mask = None if count == length else causal_lower_right(count, length)
        out = F.scaled_dot_product_attention(
            rows.transpose(0, 1)[None],
            keys[None],
            values[None],
            attn_mask=mask,
            is_causal=mask is None,
            scale=how.scale,
            enable_gqa=heads != q.shape[1],
        )
        return out[0].transpose(0, 1).to(q.dtype)
    places = torch.arange(length, device=q.device)
    sinks = None if how.sinks is None else how.sinks.view(heads, -1, 1, 1)
    results = []
    for begin in range(0, count, QUERIES):
        part = rows[begin : begin + QUERIES]
        first = length - count + begin + 1  # keys that the first of these queries sees
        ends = torch.arange(first, first + len(part), device=q.device)[:, None]
        seen = places < ends
        if how.window is not None:
            seen &= places >= ends - how.window
        grouped = part.unflatten(1, (heads, -1)).permute(1, 2, 0, 3)  # [heads, of a head, T, size]
        out = _attend(grouped, keys[:, None], values[:, None], seen, how, sinks)
        results.append(out.permute(2, 0, 1, 3).flatten(1, 2))
    return torch.cat(results).to(q.dtype)


def _attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    seen: torch.Tensor,
    how: Attending,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """softmax(scale q k) v: q [..., Q, key size], keys and values [..., L, size]; `seen` and `sinks` as the scores
    [..., Q, L], or broadcast to them."""
    scores = (q @ keys.transpose(-1, -2)).float() * how.scale
    if how.softcap:
        scores = how.softcap * torch.tanh(scores / how.softcap)
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.float().expand_as(scores[..., :1])), -1)
    weights = scores.softmax(-1)[..., : keys.shape[-2]]
    return weights.to(values.dtype) @ values
