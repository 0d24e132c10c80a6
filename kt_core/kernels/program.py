"""A model's step as a list of operations over rows of float32, replayed by one call without Python in between."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kt_core.formats import nbytes
from kt_core.kernels.attention import Batch, HeadLinear, PageLayout, page_count
from kt_core.kernels.experts import Experts
from kt_core.kernels.linear import Linear
from kt_core.kernels.native import load, plain
from kt_core.kernels.rope import Tables
from kt_core.kernels.routing import Rule
from kt_core.kernels.training import LoraFactors, lora_factors


@dataclass(frozen=True)
class Rows:
    """Columns first .. first + width - 1 of a buffer that has one row for each token of a step."""

    buffer: int
    width: int
    first: int = 0

    def columns(self, first: int, width: int) -> "Rows":
        """A part of these columns. Raises ValueError where there are not as many."""
        if first < 0 or width < 1 or first + width > self.width:
            raise ValueError(f"no columns {first} to {first + width} in rows of {self.width}")
        return Rows(self.buffer, width, self.first + first)

    @property
    def native(self) -> tuple[int, int]:
        return (self.buffer, self.first)


@dataclass(frozen=True)
class Norm:
    """RMSNorm: x / sqrt(mean(x^2) + epsilon) * (weight + offset); weight [size] float32."""

    weight: torch.Tensor
    epsilon: float
    offset: float = 0.0


@dataclass(frozen=True)
class Source:
    """The rows that products meet: x; norm(x) where there is a norm; silu(x) * other where there is another.

    `keep`: rows that the normed or gated ones are wanted in as well.
    """

    x: Rows
    norm: Norm | None = None
    other: Rows | None = None
    keep: Rows | None = None


class Program:
    """Operations in the order of a step; every method but `rows`, `layer`, `set_pages` and `run` appends one.

    Weights, pages and embedding tables are kept alive and not copied; other arrays are. Every method raises ValueError
    for what does not fit together. `results` is the width of a step's results.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.results = 0
        self.given = False
        self._native = load().Program(max_tokens)
        self._alive: list[Any] = []
        self._pages: dict[int, torch.Tensor] = {}
        self._layouts: list[PageLayout] = []
        # id of what computes -> where: operations, and the place among a linear one's products
        self._places: dict[int, list[tuple[int, int]]] = {}
        self._adapters: dict[int, list[Any]] = {}  # what is added, kept alive

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return int(self._native.nbytes)

    def rows(self, width: int) -> Rows:
        """A new buffer of max_tokens rows of `width` float32."""
        return Rows(self._native.rows(width), width)

    def layer(self, layout: PageLayout) -> int:
        """The number of a new attention layer whose pages come later."""
        self._layouts.append(layout)
        return int(self._native.layer(layout.native))

    @property
    def layouts(self) -> tuple[PageLayout, ...]:
        """Of the attention layers, in order."""
        return tuple(self._layouts)

    def set_pages(self, layer: int, pages: torch.Tensor) -> None:
        """Pages [N, page_bytes] uint8 of a layer, as kernels.attention.new_pages makes them."""
        count = page_count(pages, self._layouts[layer])
        self._pages[layer] = pages
        self._native.set_pages(layer, pages.data_ptr(), count)

    def embed(self, format: str, data: Any, width: int, x: Rows) -> None:
        """x = rows of the table, uint8 [vocab, bytes of a row] in `format`; where that has no decoder here, rows that
        each step brings (`given`). Those are also what no format asks for."""
        if data is None or not load().decodes_rows(format):
            self.given = True
            self._native.given(width, x.native)
            return
        row = nbytes(format, width)
        if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != row or data.strides[1] != 1:
            raise ValueError(f"expected rows of {row} adjacent bytes, got {data.shape} of {data.dtype}")
        self._alive.append(data)
        self._native.embed(format, data.ctypes.data, (data.shape[0], data.strides[0], width), x.native)

    def linear(self, source: Source, products: Sequence[tuple[Linear, Rows | None, bool]]) -> None:
        """Products of one source's rows: (weight, where it goes, whether it is added to what is there).

        None: to the step's results, which have as many columns as the weight has rows.
        """
        kind = "norm" if source.norm else "silu_gate" if source.other else "rows"
        norm = source.norm or Norm(torch.empty(0), 0.0)
        other = source.other or source.x
        keep = source.keep.native if source.keep else None
        values = (kind, source.x.native, other.native, _numbers(norm.weight), norm.offset, norm.epsilon, keep)
        targets = []
        for weight, y, add in products:
            self._alive.append(weight)
            self.results = self.results if y else weight.out_features
            targets.append((weight.native, y.native if y else None, add))
        operation = self._native.linear(values, targets)
        for place, (weight, y, _) in enumerate(products):
            if y:
                self._places.setdefault(id(weight), []).append((operation, place))

    def norm(self, x: Rows, heads: int, norm: Norm) -> None:
        """Norm each of `heads` runs of columns in place."""
        weight = _numbers(norm.weight)
        self._native.norm(x.native, x.native, heads, x.width // heads, weight, norm.offset, norm.epsilon)

    def table(self, tables: Tables) -> int:
        """Rotary tables, as kernels.rope.tables makes them, for `rotate`."""
        return int(self._native.table(*(_numbers(table) for table in tables), tables[0].shape[1]))

    def rotate(self, x: Rows, heads: int, table: int, interleaved: bool, first: int = 0) -> None:
        """Rotary embedding of the columns of each head from `first` on, in place; see kernels.rope.rotate."""
        self._native.rotate(x.native, heads, x.width // heads, first, interleaved, table)

    def write(self, layer: int, keys: Rows, values: Rows | None) -> None:
        """Put the step's keys and values into its slots of the layer's pages."""
        self._native.write(layer, keys.native, (values or keys).native)

    def attend(
        self,
        layer: int,
        q: Rows,
        out: Rows,
        scale: float,
        window: int | None = None,
        sinks: torch.Tensor | None = None,
        softcap: float = 0.0,
    ) -> None:
        """out = attention of q over the layer's pages; see kernels.attention.attend."""
        heads = q.width // self._layouts[layer].key_size
        sink = None if sinks is None else _numbers(sinks)
        self._native.attend(layer, q.native, heads, scale, softcap, window or 0, sink, out.native)

    def heads(self, weight: HeadLinear, x: Rows, y: Rows) -> None:
        """A linear map of its own for each head; heads lie width / heads columns apart."""
        strides = (x.width // weight.heads, y.width // weight.heads)
        operation = self._native.heads(weight.native, x.native, strides[0], y.native, strides[1])
        self._alive.append(weight)
        self._places.setdefault(id(weight), []).append((operation, 0))

    def copy(self, x: Rows, x_first: int, y: Rows, y_first: int, heads: int, size: int) -> None:
        """Columns x_first .. x_first + size - 1 of each head of x to those from y_first on of each head of y."""
        source, target = (x.buffer, x.first + x_first), (y.buffer, y.first + y_first)
        self._native.copy(source, x.width // heads, target, y.width // heads, heads, size)

    def route(self, logits: Rows, rule: Rule, bias: torch.Tensor | None = None) -> None:
        """The choice of experts for the `experts` after it; see kernels.routing.route."""
        group_best = rule.group_best if rule.groups > 1 else 1
        self._native.route(
            logits.native,
            logits.width,
            rule.slots,
            (rule.score, 0, rule.groups, rule.top_groups, group_best, rule.outside),
            (rule.softmax_last, rule.normalise, rule.epsilon, rule.floor, rule.scale),
            None if bias is None else _numbers(bias),
        )

    def experts(self, experts: Experts, x: Rows, y: Rows, add: bool) -> None:
        """y = the chosen experts' weighted sum, or y += it. Not for experts of which some live elsewhere."""
        if experts.elsewhere is not None:
            raise ValueError("a program's experts are all its own")
        self._alive.append(experts)
        operation = self._native.experts(experts.native, x.native, y.native, add)
        self._places.setdefault(id(experts), []).append((operation, 0))

    def combine(self, kind: str, a: Rows, b: Rows, out: Rows) -> None:
        """See kernels.norm.combine."""
        self._native.combine(kind, a.native, b.native, out.native, out.width)

    def add_gated(self, x: Rows, gate: Rows, y: Rows) -> None:
        """y += sigmoid(gate) x, one gate a row."""
        self._native.add_gated(x.native, gate.native, y.native, y.width)

    def gather(self, rows: Sequence[Rows]) -> None:
        """From here on only the step's outputs go on, in these buffers."""
        self._native.gather([x.buffer for x in rows])

    def give(self, x: Rows) -> None:
        """The step's results are these rows."""
        self.results = x.width
        self._native.give(x.native, x.width)

    def adapt(self, adapter: int, to: Linear, a: Linear, b: Linear) -> None:
        """For sequences that take `adapter` (0 or more): y = to(x) + b(a(x)). Between two steps, from any thread.

        This and the next two raise ValueError for what is not in the program, or has another shape.
        """
        for operation, place in self._found(to):
            self._native.adapt(adapter, operation, place, a.native, b.native)
            self._adapters.setdefault(adapter, []).append((a, b))

    def adapt_heads(self, adapter: int, to: HeadLinear, heads: HeadLinear) -> None:
        """The same for `heads`, which the sequences have in place of the program's own."""
        for operation, _ in self._found(to):
            self._native.adapt_heads(adapter, operation, heads.native)
            self._adapters.setdefault(adapter, []).append(heads)

    def adapt_experts(
        self, adapter: int, to: Experts, lora: tuple[LoraFactors | None, LoraFactors, LoraFactors], scale: float
    ) -> None:
        """The same for experts: lora as kernels.training.train takes it, of one rank; kept as bfloat16."""
        rank, factors = lora_factors(to, lora)
        rounded = [None if f is None else plain(f).to(torch.bfloat16).contiguous() for f in factors]
        at = [0 if f is None else f.data_ptr() for f in rounded]
        for operation, _ in self._found(to):
            pairs = [(at[i], at[i + 1]) for i in range(0, len(at), 2)]
            self._native.adapt_experts(adapter, operation, rank, scale, pairs)
            self._adapters.setdefault(adapter, []).append(rounded)

    def forget(self, adapter: int) -> None:
        """Between two steps: no sequence takes this adapter any more."""
        self._native.forget(adapter)
        self._adapters.pop(adapter, None)

    def _found(self, part: Any) -> list[tuple[int, int]]:
        if id(part) not in self._places:
            raise ValueError("the program has no such part")
        return self._places[id(part)]

    def run(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        batch: Batch,
        outputs: torch.Tensor,
        embedded: torch.Tensor | None = None,
        adapters: Sequence[int] = (),
    ) -> torch.Tensor:
        """One step: tokens, positions and slots [T] int64, outputs [R] int64 rising; float32 [R, results].

        `embedded` [T, width] float32 where `given` is set. `adapters`: of each sequence, or -1; (): none takes any. Raises ValueError for what does not fit; pages may have been
        written then.
        """
        count = tokens.numel()
        for name, x in (("tokens", tokens), ("positions", positions), ("slots", slots), ("outputs", outputs)):
            if x.dtype != torch.int64 or x.dim() != 1 or (name != "outputs" and x.numel() != count):
                raise ValueError(f"expected {name} as int64 [{count}], got {tuple(x.shape)} of {x.dtype}")
        if embedded is not None and (embedded.dtype != torch.float32 or embedded.shape[0] != count):
            raise ValueError(f"expected embedded rows as float32 [{count}, width], got {tuple(embedded.shape)}")
        held = [plain(x) for x in (tokens, positions, slots, outputs)]
        rows = None if embedded is None else plain(embedded)
        results = torch.empty(outputs.numel(), self.results)
        if adapters and len(adapters) != batch.lengths.numel():
            raise ValueError(f"expected an adapter for each of {batch.lengths.numel()} sequences, got {len(adapters)}")
        taken = torch.tensor(adapters, dtype=torch.int32)
        addresses = [x.data_ptr() for x in held]
        tables = (
            batch.tables.data_ptr(),
            batch.tables.shape[1],
            batch.lengths.data_ptr(),
            batch.starts.data_ptr(),
            batch.lengths.numel(),
        )
        self._native.run(
            (
                addresses[:3],
                count,
                tables,
                addresses[3],
                outputs.numel(),
                0 if rows is None else rows.data_ptr(),
                results.data_ptr(),
                taken.data_ptr() if adapters else 0,
            )
        )
        return results

    def keep_times(self, on: bool = True) -> None:
        """Whether `times` is to be known; it costs two looks at the clock an operation."""
        self._native.keep_times(on)

    def times(self) -> dict[str, float]:
        """Seconds spent in each kind of operation since the last call."""
        return dict(self._native.times())


def _numbers(x: torch.Tensor) -> Any:
    return np.ascontiguousarray(plain(x.to("cpu", torch.float32)).numpy())
