"""The path for many rows: its own rounding, the switch by row count, and what no row count may change."""

import os
import subprocess
import sys

import cases
import numpy as np
import pytest
import torch
from test_experts import build, call, route

from kt_core.kernels import Experts, Linear, info, reference, set_deterministic, set_threads
from kt_core.kernels.native import load

TIERS = cases.tiers()
FORMATS = [
    "BF16", "Q8_0", "Q4_1", "MXFP4_HF", "NVFP4", "INT4", "AWQ", "INT8_CHANNEL", "FP8_BLOCK", "FP8_CHANNEL", "MXFP8",
]  # fmt: skip

E4M3 = ("FP8_BLOCK", "FP8_CHANNEL", "MXFP8")


@pytest.fixture(autouse=True)
def _defaults():
    set_deterministic(False)
    yield
    set_deterministic(False)
    load().force_prefill(0)
    set_threads(2)


def by_prefill(layer, x, rows=1):
    """The layer's result where the prefill path starts at `rows` rows."""
    load().force_prefill(rows)
    y = layer(x)
    load().force_prefill(0)
    return y


def by_direct(layer, x):
    set_deterministic(True)
    y = layer(x)
    set_deterministic(False)
    return y


@pytest.mark.parametrize("shape", [(1, 32), (33, 160), (70, 96), (50, 1056)], ids=str)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tier", TIERS)
def test_matches_reference_for_every_row_count(tier, format, shape):
    matrix = cases.stored(format, *shape)
    layer = Linear(matrix, tier=tier)
    x = cases.inputs(40, shape[1])
    whole = by_prefill(layer, torch.from_numpy(x))
    a, w = reference.rounded(x, matrix.values, format, "prefill")
    error, text = cases.worst(whole.numpy(), a @ w.T, np.abs(a) @ np.abs(w).T)
    # One sum over all K: K roundings of at most 2^-24 sum |x w|, which average out to sqrt(K) of them at most.
    # Random E4M3 codes spread over a factor of 2^16, so that a few products are nearly all of the sum.
    assert error <= (2**-24 * shape[1] ** 0.5 if format in E4M3 else 0) + 1e-6, text
    for count in range(1, 40):
        assert torch.equal(by_prefill(layer, torch.from_numpy(x[40 - count :])), whole[40 - count :]), count


@pytest.mark.parametrize("cols", [1, 31, 33, 257, 515])
@pytest.mark.parametrize("tier", TIERS)
def test_odd_columns(tier, cols):
    matrix = cases.stored("BF16", 33, cols)
    x = cases.inputs(19, cols)
    y = by_prefill(Linear(matrix, tier=tier), torch.from_numpy(x)).numpy()
    a, w = reference.rounded(x, matrix.values, "BF16", "prefill")
    error, text = cases.worst(y, a @ w.T, np.abs(a) @ np.abs(w).T)
    assert error <= 1e-6, text


@pytest.mark.parametrize("format", FORMATS[1:])
def test_the_stated_bound_holds(format):
    matrix = cases.stored(format, 64, 512)
    x = cases.inputs(64, 512)
    exact = x.astype(np.float64) @ matrix.values.astype(np.float64).T
    size = np.abs(x.astype(np.float64)) @ np.abs(matrix.values.astype(np.float64)).T
    for tier in TIERS:
        y = by_prefill(Linear(matrix, tier=tier), torch.from_numpy(x)).numpy()
        error, text = cases.worst(y, exact, size)
        assert error <= 2**-7 + 2**-16 + 1e-6, (tier, text)  # two factors of 8 significant bits: (1 + 2^-8)^2 - 1
        assert error > 1e-5, f"{tier}: nothing was rounded, so this was another path"


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tier", TIERS)
def test_the_switch(tier, format):
    """Below the threshold a row has the direct path's bits, from it on the prefill path's; 0: as measured."""
    layer = Linear(cases.stored(format, 40, 320), tier=tier)
    x = torch.from_numpy(cases.inputs(60, 320))
    direct, prefill = by_direct(layer, x), by_prefill(layer, x)
    measured = load().formats(tier)[format]["prefill_from"]
    for forced, threshold in ((0, measured), (16, 16), (17, 17)):
        for rows in (1, 2, 60) if threshold is None else (1, threshold - 1, threshold, threshold + 1, 60):
            expected = direct if threshold is None or rows < threshold else prefill
            assert torch.equal(by_prefill(layer, x[:rows], forced), expected[:rows]), (forced, rows)
    if format != "BF16":
        assert not torch.equal(direct, prefill)


@pytest.mark.parametrize("tier", TIERS)
def test_both_paths_have_the_same_bits_for_bfloat16_weights_without_tiles(tier):
    layer = Linear(cases.stored("BF16", 70, 515), tier=tier)
    x = torch.from_numpy(cases.inputs(60, 515))
    direct = by_prefill(layer, x, 1000)
    if tier != "amx":
        assert torch.equal(by_prefill(layer, x), direct)
    set_deterministic(True)
    assert torch.equal(by_prefill(layer, x), direct)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tier", TIERS)
def test_threads_and_chunks_do_not_change_a_bit(tier, format):
    layer = Linear(cases.stored(format, 80, 192), bias=torch.randn(80), tier=tier)
    x = torch.from_numpy(cases.inputs(600, 192))
    whole = by_prefill(layer, x)
    for threads in (1, 2, 3):
        set_threads(threads)
        assert torch.equal(by_prefill(layer, x), whole)
    for rows in (slice(517, 518), slice(300, 600), slice(0, 257)):
        assert torch.equal(by_prefill(layer, x[rows]), whole[rows])
    assert torch.equal(by_prefill(layer, x.bfloat16()), by_prefill(layer, x.bfloat16().float()).bfloat16())


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tier", TIERS)
def test_a_value_that_is_not_finite_spoils_its_row_only(tier, format):
    layer = Linear(cases.stored(format, 33, 64), tier=tier)
    x = torch.from_numpy(cases.inputs(30, 64))
    clean = by_prefill(layer, x)
    for bad in (float("nan"), float("inf")):
        x[4, 40] = bad
        y = by_prefill(layer, x)
        assert not torch.isfinite(y[4]).any()
        keep = [row for row in range(30) if row != 4]
        assert torch.equal(y[keep], clean[keep])


# as in test_experts: h may move by one bfloat16 step
TOLERANCE = 1e-3


@pytest.mark.parametrize(
    "mix",
    [("BF16",) * 3, ("Q8_0",) * 3, ("Q4_1", "Q4_1", "Q8_0"), ("BF16", "Q8_0", "F32"), ("F32", "Q4_1", "BF16")],
    ids="-".join,
)
@pytest.mark.parametrize("tier", TIERS)
def test_each_expert_chooses_by_its_own_rows(tier, mix):
    layer, parts = build(mix, 6, 96, 64, tier=tier)
    x = cases.inputs(90, 96)
    ids, weights = route(90, 6, 2)
    ids[:, 0] = 0  # hot: every token; 1 to 3 get 17, 16 and 15 rows, 5 none
    ids[:, 1] = np.concatenate([np.full(17, 1), np.full(16, 2), np.full(15, 3), np.full(40, 4), [-1, 7]])
    load().force_prefill(16)
    y = call(layer, x, ids, weights)
    expected = reference.experts(x, ids, weights, parts, "silu", prefill_from=16)
    error, text = cases.worst(y.numpy(), expected)
    assert error <= TOLERANCE, text
    for threads in (1, 3, 5):
        set_threads(threads)
        assert torch.equal(call(layer, x, ids, weights), y)
    # other mates, but each expert's path is what it was
    keep = np.flatnonzero(ids[:, 1] <= 2)
    assert torch.equal(call(layer, x[keep], ids[keep], weights[keep]), y[torch.from_numpy(keep)])
    # expert 3 has 15 rows: the direct path's bits
    load().force_prefill(0)
    set_deterministic(True)
    few = np.flatnonzero(ids[:, 1] == 3)
    only = ids[few].copy()
    only[:, 0] = -1
    direct = call(layer, x[few], only, weights[few])
    set_deterministic(False)
    load().force_prefill(16)
    assert torch.equal(call(layer, x[few], only, weights[few]), direct)


@pytest.mark.parametrize("sizes", [(1, 1), (17, 33), (31, 15), (50, 101), (1040, 272)])
@pytest.mark.parametrize("tier", TIERS)
def test_odd_sizes_of_experts(tier, sizes):
    hidden, intermediate = sizes
    layer, parts = build(("BF16",) * 3, 3, hidden, intermediate, tier=tier)
    x = cases.inputs(37, hidden)
    ids, weights = route(37, 3, 2)
    load().force_prefill(1)
    expected = reference.experts(x, ids, weights, parts, "silu", prefill_from=1)
    error, text = cases.worst(call(layer, x, ids, weights).numpy(), expected)
    assert error <= 2**-7, text  # with one hidden value there is no averaging: a single bf16 step may show


@pytest.mark.parametrize("format", ["BF16", "Q8_0"])
def test_long_prompts(format):
    """More tokens than a chunk, a hot expert, odd sizes of the last task, the tier of this machine."""
    layer, _ = build((format,) * 3, 4, 64, 96)
    x = cases.inputs(5000, 64)
    ids, weights = route(5000, 4, 2)
    ids[:3000, 0] = 2
    load().force_prefill(1)
    y = call(layer, x, ids, weights)
    set_threads(1)
    assert torch.equal(call(layer, x, ids, weights), y)
    for token in (0, 2999, 4095, 4096, 4999):
        one = slice(token, token + 1)
        assert torch.equal(call(layer, x[one], ids[one], weights[one]), y[one])


def test_every_output_is_written():
    layer = Linear(cases.stored("Q8_0", 67, 32))
    load().force_prefill(1)
    x = torch.randn(70, 32)
    y = torch.full((72, 67), float("nan"))
    layer.native.forward(x.data_ptr(), "float32", 70, y[1:].data_ptr())
    assert torch.equal(y[1:71], layer(x))
    assert torch.isnan(y[[0, 71]]).all()
    experts = Experts(2, 64, 32)
    assert (call(experts, cases.inputs(40, 64), *route(40, 2, 1)) == 0).all()


def test_the_environment_sets_the_mode():
    code = (
        "from kt_core.kernels import info; i = info(); print(i['deterministic'], i['formats']['F32']['prefill_from'])"
    )
    for value, expected in (("1", "True None"), ("0", "False None"), ("", "False None")):
        environment = {**os.environ, "KT_DETERMINISTIC": value}
        result = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert result.stdout.strip() == expected
    assert info()["deterministic"] is False


def test_unknown_path():
    with pytest.raises(ValueError, match="direct, prefill"):
        reference.linear(np.zeros((1, 32), np.float32), np.zeros((1, 32), np.float32), "Q8_0", path="other")
