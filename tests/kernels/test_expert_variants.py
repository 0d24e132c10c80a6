"""Activations with their clamps, biases, experts without a gate and experts elsewhere, on every tier and both paths."""

import cases
import numpy as np
import pytest
import torch
from test_experts import TOLERANCE, call, route

from kt_core.kernels import ACTIVATIONS, POLICY, Experts, reference, set_deterministic, set_threads
from kt_core.kernels.native import load

TIERS = cases.tiers()
HIDDEN, INTERMEDIATE, EXPERTS = 96, 64, 5
# Clamps that random products of these sizes cross on both sides; an alpha that is not the default.
SETTINGS = [
    ("silu", None, 1.702),
    ("silu", 0.7, 1.702),
    ("gelu_tanh", None, 1.702),
    ("gelu_tanh", 0.7, 1.702),
    ("swiglu_oai", None, 1.702),
    ("swiglu_oai", 0.7, 0.9),
    ("relu2", None, 1.702),
    ("relu2", 0.7, 1.702),
]


@pytest.fixture(autouse=True)
def _defaults():
    set_deterministic(False)
    yield
    set_deterministic(False)
    load().force_prefill(0)
    set_threads(2)


def build(mix, activation="silu", limit=None, alpha=1.702, biased=True, sizes=(HIDDEN, INTERMEDIATE), **more):
    """A layer and the reference's parts; without a gate the reference is given one that would be noticed."""
    hidden, intermediate = sizes
    layer = Experts(EXPERTS, hidden, intermediate, activation, limit, alpha, **more)
    rng = np.random.default_rng(4)
    parts = {}
    for index in range(EXPERTS):
        shapes = [(intermediate, hidden), (intermediate, hidden), (hidden, intermediate)]
        three = [cases.stored(f, *s, seed=3 * index + i) for i, (f, s) in enumerate(zip(mix, shapes, strict=True))]
        # expert 1 has some, expert 2 has none
        biases = [
            rng.standard_normal(m.rows, dtype=np.float32) if biased and index != 2 and (index, i) != (1, 1) else None
            for i, m in enumerate(three)
        ]
        parts[index] = tuple((m.format, m.values, bias) for m, bias in zip(three, biases, strict=True))
        tensors = [None if bias is None else torch.from_numpy(bias) for bias in biases]
        if activation == "relu2":
            three[0] = tensors[0] = None
        layer.load(index, *three, *tensors)
    return layer, parts


def check(layer, parts, activation, limit, alpha, tolerance, tokens=40, prefill_from=None, scale=1):
    x = cases.inputs(tokens, layer.hidden) * np.float32(scale)
    ids, weights = route(tokens, EXPERTS, 3)
    expected = reference.experts(x, ids, weights, parts, activation, prefill_from, limit, alpha)
    error, text = cases.worst(call(layer, x, ids, weights).numpy(), expected)
    assert error <= tolerance, text


@pytest.mark.parametrize(("activation", "limit", "alpha"), SETTINGS)
@pytest.mark.parametrize("tier", TIERS)
def test_direct_path(tier, activation, limit, alpha):
    set_deterministic(True)
    layer, parts = build(("F32",) * 3, activation, limit, alpha, tier=tier)
    for tokens, scale in ((1, 1), (40, 1), (8, 8)):  # 8: far into both tails
        check(layer, parts, activation, limit, alpha, TOLERANCE["f32"], tokens, scale=scale)


@pytest.mark.parametrize("mix", [("BF16",) * 3, ("Q8_0", "Q8_0", "BF16"), ("BF16", "Q8_0", "F32")], ids="-".join)
@pytest.mark.parametrize(("activation", "limit", "alpha"), SETTINGS)
@pytest.mark.parametrize("tier", TIERS)
def test_prefill_path(tier, activation, limit, alpha, mix):
    """Gate and up of one format are multiplied together, of two formats one after the other."""
    load().force_prefill(1)
    layer, parts = build(mix, activation, limit, alpha, tier=tier)
    check(layer, parts, activation, limit, alpha, TOLERANCE["bf16"], prefill_from=1)


@pytest.mark.parametrize("format", sorted(cases.QUANTISED))
@pytest.mark.parametrize("activation", ["swiglu_oai", "relu2"])
def test_formats(activation, format):
    set_deterministic(True)
    layer, parts = build((format,) * 3, activation, 0.7)
    check(layer, parts, activation, 0.7, 1.702, TOLERANCE[POLICY[format]])


@pytest.mark.parametrize("prefill_from", [0, 1])
@pytest.mark.parametrize("sizes", [(1, 1), (17, 33), (31, 15), (50, 101)])
@pytest.mark.parametrize("activation", ["silu", "relu2"])
def test_odd_sizes(activation, sizes, prefill_from):
    """Biases end where rows do; the panels' padding has none."""
    load().force_prefill(prefill_from)
    layer, parts = build(("BF16",) * 3, activation, sizes=sizes)
    # with one hidden value there is no averaging: a single bf16 step may show
    check(layer, parts, activation, None, 1.702, 2**-7, prefill_from=prefill_from or None)


def test_a_limit_never_reached_changes_no_bit():
    x = cases.inputs(20, HIDDEN)
    ids, weights = route(20, EXPERTS, 2)
    for activation in ACTIVATIONS:
        free, far = (build(("Q8_0",) * 3, activation, limit)[0] for limit in (None, 1e30))
        assert torch.equal(call(free, x, ids, weights), call(far, x, ids, weights))


def test_biases_of_zero_change_no_bit():
    bare, parts = build(("Q8_0",) * 3, biased=False)
    layer = Experts(EXPERTS, HIDDEN, INTERMEDIATE)
    for index in parts:
        shapes = [(INTERMEDIATE, HIDDEN), (INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE)]
        three = [cases.stored("Q8_0", *s, seed=3 * index + i) for i, s in enumerate(shapes)]
        layer.load(index, *three, *(torch.zeros(m.rows, dtype=torch.bfloat16) for m in three))
    assert layer.nbytes > bare.nbytes
    x = cases.inputs(20, HIDDEN)
    assert torch.equal(call(layer, x, *route(20, EXPERTS, 2)), call(bare, x, *route(20, EXPERTS, 2)))


def test_an_expert_without_a_gate_takes_no_memory_for_one():
    matrix = 4 * EXPERTS * HIDDEN * INTERMEDIATE
    assert build(("F32",) * 3, "silu", biased=False)[0].nbytes == 3 * matrix
    assert build(("F32",) * 3, "relu2", biased=False)[0].nbytes == 2 * matrix


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("prefill_from", [0, 1])
def test_threads_and_mates_do_not_change_a_bit(activation, prefill_from):
    load().force_prefill(prefill_from)
    set_deterministic(prefill_from == 0)  # one path for any number of rows
    layer, _ = build(("Q8_0",) * 3, activation, 0.7)
    x = cases.inputs(600, HIDDEN)
    ids, weights = route(600, EXPERTS, 2)
    whole = call(layer, x, ids, weights)
    for threads in (1, 3):
        set_threads(threads)
        assert torch.equal(call(layer, x, ids, weights), whole)
        one = slice(599, 600)
        assert torch.equal(call(layer, x[one], ids[one], weights[one]), whole[one])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_value_that_is_not_finite_spoils_its_token_only(activation):
    """A clamp keeps a NaN, as torch's does; an infinity it makes finite, in float32, where rounding keeps it."""
    layer, _ = build(("Q8_0",) * 3, activation, 0.7)
    x = cases.inputs(5, HIDDEN)
    ids, weights = route(5, EXPERTS, 2)
    clean = call(layer, x, ids, weights)
    for bad in (float("nan"), float("inf")):
        x[2, 11] = bad
        y = call(layer, x, ids, weights)
        assert not torch.isfinite(y[2]).any()
        assert torch.equal(y[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_a_mask_moves_experts_from_the_next_call_on(dtype):
    mask = torch.zeros(2 * EXPERTS, dtype=dtype)[EXPERTS:]
    layer, parts = build(("F32",) * 3, elsewhere=mask)
    x = cases.inputs(30, HIDDEN)
    ids, weights = route(30, EXPERTS, 3)
    for away in ([], [1], [0, 4], [], list(range(EXPERTS))):
        mask.zero_()
        mask[away] = True if dtype == torch.bool else 255
        here = {index: three for index, three in parts.items() if index not in away}
        y = call(layer, x, ids, weights)
        error, text = cases.worst(y.numpy(), reference.experts(x, ids, weights, here, "silu"))
        assert error <= TOLERANCE["f32"], (away, text)
    assert (y == 0).all()


def test_a_mask_written_during_a_call():
    """Each call sees the mask as it was at some moment, and never more or fewer routes than it made room for."""
    import threading

    mask = torch.zeros(EXPERTS, dtype=torch.bool)
    layer, _ = build(("F32",) * 3, elsewhere=mask)
    x = cases.inputs(64, HIDDEN)
    ids, weights = np.full((64, 1), 1, np.int64), np.ones((64, 1), np.float32)
    there = call(layer, x, ids, weights)
    done = threading.Event()

    def flip():
        while not done.is_set():
            mask[1] = not mask[1]

    thread = threading.Thread(target=flip)
    thread.start()
    results = [call(layer, x, ids, weights) for _ in range(300)]
    done.set()
    thread.join()
    assert all(torch.equal(y, there) or (y == 0).all() for y in results)


def test_bad_arguments():
    layer, _ = build(("F32",) * 3)
    wide, tall = cases.stored("F32", INTERMEDIATE, HIDDEN), cases.stored("F32", HIDDEN, INTERMEDIATE)
    ungated = Experts(1, HIDDEN, INTERMEDIATE, "relu2")
    with pytest.raises(ValueError, match="needs a gate"):
        layer.load(0, None, wide, tall)
    with pytest.raises(ValueError, match="has no gate"):
        ungated.load(0, wide, wide, tall)
    with pytest.raises(ValueError, match="has no gate"):
        ungated.load(0, None, wide, tall, torch.zeros(INTERMEDIATE))
    for biases in ((torch.zeros(3),), (None, torch.zeros(HIDDEN)), (None, None, torch.zeros(1, HIDDEN))):
        with pytest.raises(ValueError, match="expected a bias"):
            layer.load(0, wide, wide, tall, *biases)
    for limit in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="limit"):
            Experts(1, HIDDEN, INTERMEDIATE, limit=limit)
    with pytest.raises(ValueError, match="alpha"):
        Experts(1, HIDDEN, INTERMEDIATE, alpha=float("inf"))
    for mask in (torch.zeros(2), torch.zeros(3, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)[::2]):
        with pytest.raises(ValueError, match="mask"):
            Experts(2, HIDDEN, INTERMEDIATE, elsewhere=mask)


@pytest.mark.parametrize("tokens", [3, 300])
def test_results_go_where_they_are_asked_for(tokens):
    layer, _ = build(["BF16"] * 3)
    x = torch.from_numpy(cases.inputs(tokens, HIDDEN))
    ids, weights = map(torch.from_numpy, route(tokens, EXPERTS, 3))
    out = torch.full_like(x, torch.nan)
    assert layer(x, ids, weights, out) is out
    assert torch.equal(out, layer(x, ids, weights))
    for wrong in (out[1:], out.bfloat16(), torch.empty(HIDDEN, tokens).T):
        with pytest.raises(ValueError, match="out"):
            layer(x, ids, weights, wrong)
