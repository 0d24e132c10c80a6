"""Paged attention against a float64 model and torch's, on every tier; pages, heads and latent attention."""

import functools
import itertools
from dataclasses import dataclass

import cases
import pytest
import torch

from kt_core.kernels import attention, set_threads
from kt_core.kernels.attention import Batch, HeadLinear, PageLayout

TIERS = cases.layer_tiers()
F32, BF16 = torch.float32, torch.bfloat16


@dataclass(frozen=True)
class Shape:
    query_heads: int
    heads: int
    key_size: int
    value_size: int
    page: int
    shared: bool = False


SHAPES = [
    Shape(8, 2, 64, 64, 64),
    Shape(5, 1, 80, 80, 16),
    Shape(3, 3, 96, 96, 32),
    Shape(12, 2, 128, 128, 256),
    Shape(4, 4, 192, 128, 64),
    Shape(9, 1, 256, 256, 48),
    Shape(2, 1, 37, 21, 64),  # no size that a kernel likes
    Shape(20, 1, 576, 512, 64, shared=True),
]
# (queries, keys): a first token, a prompt, long and short decodes, a prompt with a prefix, none, nothing at all
SEQUENCES = ((1, 1), (37, 37), (1, 1050), (1, 16), (0, 5), (66, 530), (1, 63), (0, 0), (2, 130))
SHORTER = ((37, 37), (1, 1030), (0, 5), (9, 514), (1, 63))  # for the tier without vectors


@dataclass(frozen=True)
class Rule:
    window: int | None = None
    softcap: float = 0.0
    sinks: bool = False


RULES = [Rule(), Rule(window=7, sinks=True), Rule(window=600, softcap=20.0)]


# Shapes, rules and dtypes do not know of each other: each pair of a shape and a rule comes on one tier at least, and
# each tier and dtype has every shape and every rule.
PRODUCTS = list(enumerate(itertools.product(TIERS, (F32, BF16), SHAPES, RULES)))
CASES = [
    pytest.param(*case, marks=() if (at + at // 3 + at // 48) % 3 == 0 else pytest.mark.full) for at, case in PRODUCTS
]


@pytest.fixture(autouse=True)
def _threads():
    yield
    set_threads(2)


class Cache:
    """Sequences with random keys and values, written to pages in random order; all else of the pages is NaN."""

    def __init__(self, shape, dtype, sequences, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.layout = PageLayout(shape.heads, shape.key_size, shape.value_size, shape.page, dtype, shape.shared)
        counts = [-(-keys // shape.page) for _, keys in sequences]
        total = sum(counts) + 3
        self.pages = attention.new_pages(self.layout, total).fill_(0xFF)
        free = torch.randperm(total, generator=generator).tolist()
        tables = torch.full((len(sequences), max(*counts, 1)), -1, dtype=torch.int32)
        self.keys, self.values, self.slots = [], [], []
        for s, (_, keys) in enumerate(sequences):
            own = torch.tensor([free.pop() for _ in range(counts[s])], dtype=torch.int64)
            tables[s, : counts[s]] = own
            at = torch.arange(keys)
            self.slots.append(own[at // shape.page] * shape.page + at % shape.page if keys else at)
            k = torch.randn(keys, shape.heads, shape.key_size, generator=generator).to(dtype)
            v = torch.randn(keys, shape.heads, shape.value_size, generator=generator).to(dtype)
            self.keys.append(k)
            self.values.append(k[..., : shape.value_size] if shape.shared else v)
            attention.write(self.pages, self.layout, self.slots[-1], k, None if shape.shared else v)
        starts = torch.tensor([0, *(queries for queries, _ in sequences)]).cumsum(0).to(torch.int32)
        lengths = torch.tensor([keys for _, keys in sequences], dtype=torch.int32)
        self.batch = Batch(tables, lengths, starts)
        tokens = int(starts[-1])
        self.q = torch.randn(tokens, shape.query_heads, shape.key_size, generator=generator).to(dtype).float()
        self.sinks = torch.randn(shape.query_heads, generator=generator)
        self.scale = shape.key_size**-0.5

    def attend(self, rule=RULES[0], tier=None, q=None, batch=None):
        return attention.attend(
            self.q if q is None else q,
            self.pages,
            self.layout,
            batch or self.batch,
            self.scale,
            rule.window,
            self.sinks if rule.sinks else None,
            rule.softcap,
            tier,
        )

    def parts(self):
        """(queries, their positions, keys, values) of each sequence with queries, float64, kv heads repeated."""
        for s in range(len(self.keys)):
            begin, end = self.batch.starts[s : s + 2].tolist()
            if begin == end:
                continue
            group = self.q.shape[1] // self.layout.heads
            k, v = (x[s].double().repeat_interleave(group, 1) for x in (self.keys, self.values))
            yield self.q[begin:end].double(), torch.arange(len(k) - (end - begin), len(k)), k, v


def visible(positions, keys, window):
    key = torch.arange(keys)
    seen = key <= positions[:, None]
    return seen if window is None else seen & (key > positions[:, None] - window)


@functools.cache
def common(shape, dtype, sequences):
    """For tests that do not change it."""
    return Cache(shape, dtype, sequences)


@functools.cache
def model(cache, rule):
    """The result in float64, and a bound on the kernels' error.

    A score is a sum of products, each within 1e-6 of the sum of their sizes (cases.TOLERANCE says why), and a cap c
    adds c times a few roundings. An error d of the scores moves the result by at most 2 d sum p |v|; exp, sums and
    the division add 1e-6 of that sum, and weights that are rounded to bfloat16 2^-8 of it.
    """
    out, bound = [], []
    for q, positions, k, v in cache.parts():
        scores = torch.einsum("thd,lhd->htl", q, k) * cache.scale
        size = torch.einsum("thd,lhd->htl", q.abs(), k.abs()).amax(-1) * cache.scale
        if rule.softcap:
            scores = rule.softcap * torch.tanh(scores / rule.softcap)
        scores = scores.masked_fill(~visible(positions, len(k), rule.window), -torch.inf)
        if rule.sinks:
            sink = cache.sinks.double()[:, None, None].expand(-1, len(q), 1)
            scores = torch.cat([scores, sink], -1)
        p = scores.softmax(-1)[..., : len(k)]
        out.append(torch.einsum("htl,lhd->thd", p, v))
        step = 2e-6 * size + 1e-6 * rule.softcap + 1e-6 + (2**-8 if cache.layout.dtype == BF16 else 0)
        bound.append(torch.einsum("htl,lhd->thd", p, v.abs()) * step.T[..., None])
    return torch.cat(out), torch.cat(bound)


@pytest.mark.parametrize(("tier", "dtype", "shape", "rule"), CASES, ids=str)
def test_matches_float64_with_every_thread_count(tier, dtype, shape, rule):
    cache = common(shape, dtype, SHORTER if tier == "scalar" else SEQUENCES)
    results = []
    for threads in (1, 2, 3):
        set_threads(threads)
        results.append(cache.attend(rule, tier))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    expected, bound = model(cache, rule)
    error = (results[0] - expected).abs()
    assert (error <= bound).all(), (error / bound).max()


@pytest.mark.parametrize("shape", SHAPES[:2] + SHAPES[4:5], ids=str)
@pytest.mark.parametrize("window", [None, 9])
def test_matches_torch(shape, window):
    cache = Cache(shape, F32, SEQUENCES)
    _, bound = model(cache, Rule(window))
    expected = [
        torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1),
            k.transpose(0, 1),
            v.transpose(0, 1),
            attn_mask=visible(positions, len(k), window),
            scale=cache.scale,
        ).transpose(0, 1)
        for q, positions, k, v in cache.parts()
    ]
    assert ((cache.attend(Rule(window)) - torch.cat(expected)).abs() <= bound).all()


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[5], SHAPES[7]], ids=str)
@pytest.mark.parametrize("tier", TIERS)
def test_a_query_gives_the_same_bits_alone(tier, shape, rule):
    sequences = SHORTER if tier == "scalar" else SEQUENCES
    cache = common(shape, BF16, sequences)
    whole = cache.attend(rule, tier)
    for s, (queries, keys) in enumerate(sequences):
        first = int(cache.batch.starts[s])
        for query in sorted({0, queries // 2, queries - 1} if queries else ()):
            batch = Batch(
                cache.batch.tables[s : s + 1],
                torch.tensor([keys - queries + query + 1], dtype=torch.int32),
                torch.tensor([0, 1], dtype=torch.int32),
            )
            at = first + query
            alone = cache.attend(rule, tier, cache.q[at : at + 1], batch)
            assert torch.equal(alone[0], whole[at]), (s, query)


@pytest.mark.parametrize("tier", cases.tiers())
def test_every_tier_has_the_operations_of_the_ones_below(tier):
    cache = common(SHAPES[0], BF16, SHORTER)
    own = max((t for t in TIERS if cases.tiers().index(t) <= cases.tiers().index(tier)), key=cases.tiers().index)
    assert torch.equal(cache.attend(tier=tier), cache.attend(tier=own))


def test_pages_before_the_window_are_not_read():
    cache = Cache(SHAPES[1], BF16, [(3, 200)])
    rule = Rule(window=20)
    expected = cache.attend(rule)
    tables = cache.batch.tables.clone()
    live = (200 - 3 - 19) // 16
    cache.pages[tables[0, :live].long()] = 0xFF
    tables[0, :live] = -1
    assert torch.equal(cache.attend(rule, batch=Batch(tables, cache.batch.lengths, cache.batch.starts)), expected)


@pytest.mark.parametrize("tier", TIERS)
def test_a_key_that_is_not_finite_reaches_those_who_see_it(tier):
    cache = Cache(SHAPES[0], F32, [(40, 40)])
    keys = cache.keys[0].clone()
    keys[20, 0, 3] = float("nan")
    attention.write(cache.pages, cache.layout, cache.slots[0], keys, cache.values[0])
    out = cache.attend(tier=tier)
    assert out[:20].isfinite().all()
    assert out[20:, :4].isnan().all()
    assert out[20:, 4:].isfinite().all()


def test_queries_are_rounded_and_results_have_their_dtype():
    cache = Cache(SHAPES[0], BF16, SEQUENCES)
    q = cache.q + 1e-3 * torch.randn_like(cache.q)
    exact = cache.attend(q=q.to(BF16).float())
    assert torch.equal(cache.attend(q=q), exact)
    assert torch.equal(cache.attend(q=q.to(BF16)), exact.to(BF16))
    wide = torch.cat([q, q], -1).reshape(len(q), -1)[:, : q[0].numel()].view(q.shape)
    assert torch.equal(cache.attend(q=wide), cache.attend(q=wide.contiguous()))


@pytest.mark.parametrize("stored", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("given", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[6], SHAPES[7]], ids=str)
def test_rows_come_back_from_pages(shape, given, stored):
    layout = PageLayout(shape.heads, shape.key_size, shape.value_size, shape.page, stored, shape.shared)
    pages = attention.new_pages(layout, 4).fill_(0xFF)
    tokens = 2 * shape.page + 3
    slots = torch.randperm(4 * shape.page)[:tokens]
    slots[5] = -1
    columns = shape.heads * (shape.key_size + shape.value_size)
    row = torch.randn(tokens, columns).to(given)  # keys and values of one projection: strided
    k = row[:, : shape.heads * shape.key_size].unflatten(1, (shape.heads, -1))
    v = row[:, shape.heads * shape.key_size :].unflatten(1, (shape.heads, -1))
    attention.write(pages, layout, slots, k, None if shape.shared else v)
    keys, values = attention.read(pages, layout, slots)
    expected = k.to(stored)
    expected[5] = 0
    assert torch.equal(keys, expected)
    assert torch.equal(
        values, expected[..., : shape.value_size] if shape.shared else v.to(stored) * (slots >= 0)[:, None, None]
    )
    written = torch.zeros(4 * shape.page, dtype=torch.bool)
    written[slots[slots >= 0]] = True
    others = torch.arange(4 * shape.page)[~written]
    assert attention.read(pages, layout, others)[0].isnan().all()


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 16, 128), (5, 33, 31), (16, 40, 64)], ids=str)
def test_head_linear(sizes, tier, dtype):
    heads, rows, cols = sizes
    weight = torch.randn(heads, rows, cols).to(dtype)
    layer = HeadLinear(weight, tier)
    for tokens in (0, 1, 35):
        x = torch.randn(tokens, heads, cols + 7).to(dtype).float()[..., :cols]
        results = []
        for threads in (1, 2, 3):
            set_threads(threads)
            results.append(layer(x))
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])
        expected = torch.einsum("hrc,thc->thr", weight.double(), x.double())
        bound = 1e-6 * torch.einsum("hrc,thc->thr", weight.double().abs(), x.double().abs())
        assert ((results[0] - expected).abs() <= bound).all()
        wide = torch.full((tokens, heads, rows + 5), 7.0)
        layer(x, wide[..., 2 : 2 + rows])
        assert torch.equal(wide[..., 2 : 2 + rows], results[0])
        assert (wide[..., :2] == 7).all()
        assert (wide[..., 2 + rows :] == 7).all()


def test_latent_attention_is_attention_over_the_expanded_keys():
    """Queries through W_UK, attention over latent and rotary columns, sums through W_UV: float64 of the plain form."""
    heads, nope, rope, latent, value = 6, 32, 16, 64, 24
    generator = torch.Generator().manual_seed(3)
    up_key, up_value = (torch.randn(heads, n, latent, generator=generator) / 8 for n in (nope, value))
    cache = Cache(Shape(heads, 1, latent + rope, latent, 32, shared=True), F32, [(1, 70), (9, 9)])
    cache.scale = (nope + rope) ** -0.5
    q = torch.randn(10, heads, nope + rope, generator=generator)
    absorbed = torch.full((10, heads, latent + rope), float("nan"))
    HeadLinear(up_key.transpose(1, 2))(q[..., :nope], absorbed[..., :latent])
    absorbed[..., latent:] = q[..., nope:]
    got = HeadLinear(up_value)(cache.attend(q=absorbed))
    begin = 0
    for s, queries in enumerate((1, 9)):
        c = cache.keys[s][:, 0].double()
        k = torch.einsum("hnc,lc->lhn", up_key.double(), c[:, :latent])
        k = torch.cat([k, c[:, None, latent:].expand(-1, heads, -1)], -1)
        v = torch.einsum("hvc,lc->lhv", up_value.double(), c[:, :latent])
        part = q[begin : begin + queries].double()
        scores = torch.einsum("thd,lhd->htl", part, k) * cache.scale
        scores = scores.masked_fill(~visible(torch.arange(len(c) - queries, len(c)), len(c), None), -torch.inf)
        expected = torch.einsum("htl,lhd->thd", scores.softmax(-1), v)
        # 1e-6 of what is summed in each of the three products; sums of some 100 values of size 1 stay below 30
        assert (got[begin : begin + queries] - expected).abs().max() <= 1e-4
        begin += queries


def test_what_does_not_fit_is_refused():
    cache = Cache(SHAPES[0], BF16, [(2, 70)])
    tables, lengths, starts = cache.batch.tables, cache.batch.lengths, cache.batch.starts
    for wrong in (
        Batch(tables, torch.tensor([200], dtype=torch.int32), starts),  # more keys than the table holds
        Batch(tables, torch.tensor([1], dtype=torch.int32), starts),  # fewer keys than queries
        Batch(tables.clone().fill_(99), lengths, starts),
        Batch(tables.clone().fill_(-1), lengths, starts),
        Batch(tables, lengths, torch.tensor([1, 2], dtype=torch.int32)),
        Batch(tables, lengths, torch.tensor([0, 1], dtype=torch.int32)),
    ):
        with pytest.raises(ValueError):
            cache.attend(batch=wrong)
    for q in (cache.q[:, :7], cache.q[..., :63], cache.q.double(), cache.q[0]):
        with pytest.raises(ValueError):
            cache.attend(q=q)
    for rule in (Rule(window=0), Rule(softcap=-1.0)):
        with pytest.raises(ValueError):
            cache.attend(rule)
    with pytest.raises(ValueError, match="beyond"):
        attention.read(cache.pages, cache.layout, torch.tensor([64 * len(cache.pages)]))
    with pytest.raises(ValueError):
        attention.attend(cache.q, cache.pages[:, :-1], cache.layout, cache.batch, 1.0)
    with pytest.raises(ValueError):
        attention.write(cache.pages, cache.layout, torch.tensor([0]), cache.keys[0][:1], None)
    for sizes in ((0, 8, 8, 64), (1, 8, 8, 24), (1, 8, 8, 0)):
        with pytest.raises(ValueError):
            PageLayout(*sizes)
    with pytest.raises(ValueError):
        PageLayout(1, 64, 24, shared=True)
    with pytest.raises(ValueError):
        Batch(tables.long(), lengths, starts)
