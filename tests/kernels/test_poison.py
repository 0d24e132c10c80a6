"""What a kernel has to write begins as NaN, in results and between the steps of a call, and none of it is seen again.

The whole suite runs so (tests/conftest.py); here every case of the list does, beside a run without.
"""

from functools import partial

import cases
import numpy as np
import pytest
import torch

from kt_core.bench import cases as listed
from kt_core.kernels import Experts, Linear, attention, norm, rope, routing, set_deterministic, set_threads
from kt_core.kernels.native import load, new_result, set_poison

TIERS = cases.tiers()
CASES = [case for tier in TIERS for case in listed.cases(tier)]
ROWS = (1, 3, 17, 70)  # decoding, part of a tile, more than one, more than a task


@pytest.fixture(autouse=True)
def _defaults():
    yield
    set_poison(True)
    set_deterministic(False)
    load().force_prefill(0)
    set_threads(2)


def test_the_suite_runs_with_it():
    assert load().poisoned()
    assert new_result(2, 3).isnan().all() and new_result(2, dtype=torch.bfloat16).isnan().all()
    assert (new_result(2, dtype=torch.int64) == -(2**63)).all()
    set_poison(False)
    assert not load().poisoned()


def unchanged(call):
    """The result of call(), which has no NaN and is the same bits without poison, on one thread and on two."""
    results = []
    for poison, threads in ((True, 1), (True, 2), (False, 1)):
        set_poison(poison)
        set_threads(threads)
        results.append(call())
    assert not results[0].isnan().any(), f"{results[0].isnan().sum()} of {results[0].numel()} are NaN"
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.tier}-{c.format}-{c.path}")
def test_no_nan_survives_linear_layers_and_experts(case):
    """Sizes that fill neither the last panel nor the last tile; one expert has no rows, one is not loaded."""
    cols = cases.columns(case.format, 160)
    load().force_prefill(1 if case.path == listed.PREFILL else 0)
    set_deterministic(case.path == listed.DIRECT)
    linear = Linear(cases.stored(case.format, cases.rows_of(case.format, 42), cols), tier=case.tier)
    experts = Experts(4, cols, cols, tier=case.tier)
    square = cases.stored(case.format, cols, cols, seed=1)
    experts.load_all([(square, square, square)] * 3)
    for rows in ROWS:
        x = torch.from_numpy(cases.inputs(rows, cols))
        ids = torch.from_numpy(np.random.default_rng(rows).choice([0, 1, 3, -1], (rows, 3)))
        weights = torch.rand(rows, 3)
        for dtype in (torch.float32, torch.bfloat16):
            unchanged(partial(linear, x.to(dtype)))
            unchanged(partial(experts, x.to(dtype), ids, weights))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("tier", cases.layer_tiers())
def test_no_nan_survives_a_layers_other_operations(tier, dtype):
    """Pages too are NaN where no key was written."""
    x = torch.randn(37, 2 * 130).to(dtype)
    half = (x[:, :130], x[:, 130:])
    weight = torch.rand(130)
    unchanged(partial(norm.rms_norm, half[0], weight, 1e-6, tier=tier))
    for kind in norm.COMBINATIONS:
        unchanged(partial(norm.combine, kind, *half, tier))
    tables = rope.tables(torch.rand(32), 50)

    def turned():
        heads = new_result(37, 4, 64, dtype=dtype)
        heads.copy_(x[:, :256].unflatten(1, (4, 64)))
        rope.rotate(heads, torch.arange(37), tables, tier=tier)
        return heads

    unchanged(turned)
    for layout in (attention.PageLayout(2, 37, 21, 16, dtype), attention.PageLayout(1, 48, 32, 16, dtype, True)):
        unchanged(partial(attended, layout, dtype, tier))
    absorbed = attention.HeadLinear(torch.randn(4, 33, 65).to(dtype), tier)
    unchanged(partial(absorbed, x.unflatten(1, (4, 65))))


def attended(layout, dtype, tier):
    """A prompt of 33 tokens, one token after 70, and a sequence without a query."""
    generator = torch.Generator().manual_seed(3)
    pages = attention.new_pages(layout, 16).fill_(0xFF)
    tables = torch.randperm(16, generator=generator, dtype=torch.int32)[:15].view(3, 5)
    lengths = torch.tensor([33, 71, 5], dtype=torch.int32)
    for table, length in zip(tables, lengths.tolist(), strict=True):
        at = torch.arange(length)
        slots = table[at // 16].long() * 16 + at % 16
        keys = torch.randn(length, layout.heads, layout.key_size, generator=generator).to(dtype)
        values = torch.randn(length, layout.heads, layout.value_size, generator=generator).to(dtype)
        attention.write(pages, layout, slots, keys, None if layout.shared else values)
    q = torch.randn(34, 6, layout.key_size, generator=generator).to(dtype)
    batch = attention.Batch(tables, lengths, torch.tensor([0, 33, 34, 34], dtype=torch.int32))
    return attention.attend(q, pages, layout, batch, 0.2, 20, torch.ones(6), 30.0, tier)


@pytest.mark.parametrize("score", routing.SCORES)
@pytest.mark.parametrize("tier", cases.layer_tiers())
def test_no_poison_survives_routing(tier, score):
    logits = torch.randn(37, 64)
    for rule in (routing.Rule(6, score), routing.Rule(6, score, groups=8, top_groups=3, normalise=True, epsilon=1e-20)):
        ids, weights = routing.route(logits, rule, torch.rand(64), tier)
        assert ((ids >= 0) & (ids < 64)).all() and not weights.isnan().any()
