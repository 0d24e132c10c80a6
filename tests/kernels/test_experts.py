"""Experts against the float64 reference: formats, tiers, masks, row counts, threads."""

import cases
import numpy as np
import pytest
import torch
from expert_bounds import bound

from kt_core import errors
from kt_core.kernels import POLICY, SUPPORTED, Experts, reference, set_deterministic, set_threads

TIERS = cases.tiers()

# For whole rows of plain and well-behaved weights: where h lies between two int8 or bf16 values, a kernel may round to
# the other one, 1/127 of the group's largest or 2^-7 of the value away (twice what rounding errs by, 1/254 and 2^-8);
# few values lie so (expert_bounds.py says exactly which).
TOLERANCE = {"f32": 5e-6, "bf16": 1e-3, "int8": 2e-3}
MIXES = [
    *((format,) * 3 for format in POLICY),
    ("Q4_1", "Q4_1", "Q8_0"),
    ("Q4_K", "Q4_K", "Q6_K"),
    ("Q2_K", "Q2_K", "Q5_0"),
    ("BF16", "Q8_0", "F32"),
    ("F32", "Q4_1", "BF16"),
]


@pytest.fixture(autouse=True)
def _one_path():
    """These tests are about the direct path, whatever the number of rows; test_prefill.py has the other."""
    set_deterministic(True)
    yield
    set_deterministic(False)
    set_threads(2)


def build(mix, experts, hidden, intermediate, tier=None, skip=()):
    layer = Experts(experts, hidden, intermediate, tier=tier)
    parts = {}
    for index in range(experts):
        if index in skip:
            continue
        shapes = [(intermediate, hidden), (intermediate, hidden), (hidden, intermediate)]
        three = [cases.stored(f, *s, seed=3 * index + i) for i, (f, s) in enumerate(zip(mix, shapes, strict=True))]
        layer.load(index, *three)
        parts[index] = tuple((m.format, m.values) for m in three)
    return layer, parts


def size(mix, usual):
    """A hidden or intermediate size that every format of the mix can have."""
    return max(cases.columns(format, usual) for format in mix)


def route(tokens, experts, slots, seed=5):
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.permutation(experts)[:slots] for _ in range(tokens)]) if tokens else np.zeros((0, slots))
    return ids.astype(np.int64), rng.random((tokens, slots), dtype=np.float32)


def call(layer, x, ids, weights):
    return layer(torch.from_numpy(x), torch.from_numpy(ids), torch.from_numpy(weights))


@pytest.mark.parametrize("mix", MIXES, ids="-".join)
@pytest.mark.parametrize("tier", TIERS)
def test_matches_reference(tier, mix):
    hidden = size(mix, 96)
    layer, parts = build(mix, 6, hidden, size(mix, 64), tier=tier)
    for tokens in (1, 2, 9, 40):
        x = cases.inputs(tokens, hidden)
        ids, weights = route(tokens, 6, 3)
        y = call(layer, x, ids, weights)
        margin = bound(x, ids, weights, parts, "silu")
        error, text = cases.worst(y.numpy(), reference.experts(x, ids, weights, parts, "silu"), margin)
        assert error <= 1, (tokens, text)


@pytest.mark.parametrize("format", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("sizes", [(1, 1), (17, 33), (31, 15), (50, 101)])
def test_odd_sizes(format, sizes):
    hidden, intermediate = sizes
    layer, parts = build((format,) * 3, 3, hidden, intermediate)
    x = cases.inputs(11, hidden)
    ids, weights = route(11, 3, 2)
    error, text = cases.worst(call(layer, x, ids, weights).numpy(), reference.experts(x, ids, weights, parts, "silu"))
    # with one hidden value there is no averaging: a single bf16 step may show
    assert error <= (2**-7 if format == "BF16" else 1e-5), text


@pytest.mark.parametrize("format", sorted(SUPPORTED))
@pytest.mark.parametrize("tier", TIERS)
def test_a_token_does_not_depend_on_its_mates_or_the_threads(tier, format):
    hidden = size([format], 64)
    layer, _ = build((format,) * 3, 5, hidden, size([format], 96), tier=tier)
    x = cases.inputs(600, hidden)  # more than one chunk
    ids, weights = route(600, 5, 2)
    whole = call(layer, x, ids, weights)
    for threads in (1, 2, 3):
        set_threads(threads)
        assert torch.equal(call(layer, x, ids, weights), whole)
        for token in (0, 3, 511, 512, 599):
            one = slice(token, token + 1)
            assert torch.equal(call(layer, x[one], ids[one], weights[one]), whole[one])
        part = slice(37, 74)
        assert torch.equal(call(layer, x[part], ids[part], weights[part]), whole[part])


def test_masked_ids_contribute_nothing():
    layer, parts = build(("Q8_0",) * 3, 5, 64, 64, skip=(2,))
    x = cases.inputs(6, 64)
    ids = np.array([[0, 2, -1], [5, 1, 4], [-1, -7, 2], [3, 2**40, 1], [-(2**40), 4, 0], [2, 2, 2]], np.int64)
    weights = np.random.default_rng(0).random((6, 3), dtype=np.float32)
    y = call(layer, x, ids, weights)
    error, text = cases.worst(y.numpy(), reference.experts(x, ids, weights, parts, "silu"))
    assert error <= TOLERANCE["int8"], text
    assert (y[2] == 0).all()
    assert (y[5] == 0).all()


def test_counts_of_what_was_asked():
    """Also of experts elsewhere or not loaded; never of ids that are none."""
    layer = Experts(5, 8, 4, elsewhere=torch.tensor([False, True, False, False, False]))
    ids = np.array([[0, 1], [1, -1], [5, 3], [2**40, 1]], np.int64)
    for times in (1, 2):
        call(layer, cases.inputs(4, 8), ids, np.ones((4, 2), np.float32))
        assert layer.asked == [times, 3 * times, 0, times, 0]


def test_no_tokens_no_slots_nothing_loaded():
    layer, _ = build(("F32",) * 3, 2, 8, 4)
    assert call(layer, np.zeros((0, 8), np.float32), *route(0, 2, 2)).shape == (0, 8)
    none = np.zeros((3, 0), np.int64), np.zeros((3, 0), np.float32)
    assert (call(layer, cases.inputs(3, 8), *none) == 0).all()
    empty = Experts(2, 8, 4)
    assert (call(empty, cases.inputs(3, 8), *route(3, 2, 2)) == 0).all()
    assert empty.nbytes == 0


def test_all_tokens_on_one_expert_and_duplicates():
    layer, parts = build(("Q4_1",) * 3, 4, 64, 64)
    x = cases.inputs(150, 64)
    weights = np.random.default_rng(1).random((150, 2), dtype=np.float32)
    for ids in (np.full((150, 2), 3, np.int64), np.tile(np.array([[1, 1]], np.int64), (150, 1))):
        y = call(layer, x, ids, weights)
        error, text = cases.worst(y.numpy(), reference.experts(x, ids, weights, parts, "silu"))
        assert error <= TOLERANCE["int8"], text


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("format", sorted(SUPPORTED))
def test_a_value_that_is_not_finite_spoils_its_token_only(format, bad):
    hidden = size([format], 64)
    layer, _ = build((format,) * 3, 4, hidden, hidden)
    x = cases.inputs(5, hidden)
    ids, weights = route(5, 4, 2)
    clean = call(layer, x, ids, weights)
    x[2, 11] = bad
    y = call(layer, x, ids, weights)
    assert not torch.isfinite(y[2]).any()
    assert torch.equal(y[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])
    weights[0, 0] = bad
    assert not torch.isfinite(call(layer, x, ids, weights)[0]).any()


def test_every_output_is_written():
    layer, _ = build(("F32",) * 3, 3, 48, 16)
    x = np.ones((700, 48), np.float32)
    ids, weights = route(700, 3, 1)
    ids[::2] = -1
    native, args = layer.native, [torch.from_numpy(a) for a in (x, ids, weights)]
    y = torch.full((700, 48), float("nan"))
    native.forward(*(a.data_ptr() for a in args), y.data_ptr(), "float32", 700, 1, 0)
    assert torch.isfinite(y).all()
    assert (y[::2] == 0).all()


def test_bfloat16_in_and_out():
    layer, _ = build(("Q8_0",) * 3, 4, 64, 32)
    x = torch.from_numpy(cases.inputs(9, 64)).to(torch.bfloat16)
    ids, weights = (torch.from_numpy(a) for a in route(9, 4, 2))
    y = layer(x, ids, weights)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, layer(x.float(), ids, weights).to(torch.bfloat16))


def test_loading_again_replaces():
    layer, parts = build(("F32",) * 3, 1, 32, 16)
    size = layer.nbytes
    new = [
        cases.stored("Q8_0", 16, 32, seed=9),
        cases.stored("F16", 16, 32, seed=8),
        cases.stored("F32", 32, 16, seed=7),
    ]
    layer.load(0, *new)
    assert 0 < layer.nbytes < size
    x = cases.inputs(3, 32)
    ids, weights = route(3, 1, 1)
    parts = {0: tuple((m.format, m.values) for m in new)}
    error, text = cases.worst(call(layer, x, ids, weights).numpy(), reference.experts(x, ids, weights, parts, "silu"))
    assert error <= TOLERANCE["f32"], text


def test_bad_arguments():
    layer, _ = build(("F32",) * 3, 2, 8, 4)
    wide, tall = cases.stored("F32", 4, 8), cases.stored("F32", 8, 4)
    with pytest.raises(ValueError, match="there are 2"):
        layer.load(2, wide, wide, tall)
    with pytest.raises(ValueError):
        layer.load(-1, wide, wide, tall)
    with pytest.raises(ValueError, match="down must be 8 x 4"):
        layer.load(0, wide, wide, wide)
    with pytest.raises(errors.Unsupported, match="silu"):
        Experts(2, 8, 4, "relu9")
    with pytest.raises(ValueError):
        Experts(0, 8, 4)
    with pytest.raises(ValueError):
        Experts(-1, 8, 4)
    x, ids, weights = torch.zeros(3, 8), torch.zeros(3, 1, dtype=torch.int64), torch.zeros(3, 1)
    for args in [
        (x[:, :7], ids, weights),
        (x, ids[:2], weights[:2]),
        (x, ids.int(), weights),
        (x, ids, weights.double()),
        (x.double(), ids, weights),
        (x, ids, torch.zeros(3, 2)),
        (x[0], ids, weights),
    ]:
        with pytest.raises(ValueError):
            layer(*args)
