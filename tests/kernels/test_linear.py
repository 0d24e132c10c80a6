"""Linear against the float64 reference: every runnable tier, format, shape and row count."""

import gc

import cases
import numpy as np
import psutil
import pytest
import torch
from plain_blocks import dequantize

from kt_core import errors
from kt_core.bench.blocks import random_blocks, scale_bytes
from kt_core.formats import FORMATS
from kt_core.kernels import POLICY, SUPPORTED, Linear, info, reference, set_deterministic, set_threads
from kt_core.kernels.policy import WITH_SCALES
from kt_core.weights import Matrix, decode_matrix

TIERS = cases.tiers()


@pytest.fixture(autouse=True)
def _one_path():
    """These tests are about the direct path, whatever the number of rows; test_prefill.py has the other."""
    set_deterministic(True)
    yield
    set_deterministic(False)
    set_threads(2)


def magnitude(x, matrix):
    """sum |x w| of each output."""
    return np.abs(reference.round_activations(x, matrix.format)) @ np.abs(matrix.values.astype(np.float64)).T


@pytest.mark.parametrize("case", cases.CASES, ids=str)
@pytest.mark.parametrize("tier", TIERS)
def test_matches_reference_for_every_row_count(tier, case):
    matrix = cases.weight(case)
    layer = Linear(matrix, tier=tier)
    x = cases.inputs(case.tokens, case.cols)
    expected = reference.linear(x, matrix.values, case.format)
    whole = layer(torch.from_numpy(x))
    error, text = cases.worst(whole.numpy(), expected, magnitude(x, matrix))
    assert error <= cases.TOLERANCE[case.format], text
    for count in cases.COUNTS:
        # the same bits for a row alone, with one mate, ..., at any place
        part = layer(torch.from_numpy(x[case.tokens - count :]))
        assert torch.equal(part, whole[case.tokens - count :]), count


@pytest.mark.parametrize("format", sorted(SUPPORTED))
@pytest.mark.parametrize("tier", TIERS)
def test_many_rows_and_threads_do_not_change_a_bit(tier, format):
    matrix = cases.stored(format, 83, cases.columns(format, 192))
    layer = Linear(matrix, tier=tier)
    x = torch.from_numpy(cases.inputs(600, matrix.cols))  # more than one chunk
    results = []
    for threads in (1, 2, 3):
        set_threads(threads)
        results.append(layer(x))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[0][517:518], layer(x[517:518]))
    expected = reference.linear(x.numpy(), matrix.values, format)
    error, text = cases.worst(results[0].numpy(), expected, magnitude(x.numpy(), matrix))
    assert error <= cases.TOLERANCE[format], text


@pytest.mark.parametrize("format", sorted(SUPPORTED))
def test_tiers_agree_on_what_the_contract_allows(format):
    matrix = cases.stored(format, 64, 256)
    x = torch.from_numpy(cases.inputs(5, 256))
    first = Linear(matrix, tier="scalar")(x).numpy().astype(np.float64)
    for tier in TIERS:
        error, text = cases.worst(Linear(matrix, tier=tier)(x).numpy(), first)
        assert error <= cases.CONTRACT, (tier, text)


@pytest.mark.parametrize("format", sorted(SUPPORTED))
def test_bfloat16_in_and_out(format):
    matrix = cases.stored(format, 50, cases.columns(format, 64))
    layer = Linear(matrix)
    x = torch.from_numpy(cases.inputs(7, matrix.cols)).to(torch.bfloat16)
    y = layer(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, layer(x.float()).to(torch.bfloat16))


def test_bias_shapes_and_strides():
    matrix = cases.stored("F32", 19, 23)
    bias = torch.randn(19)
    layer = Linear(matrix, bias=bias)
    x = torch.randn(2, 3, 5, 23)
    y = layer(x)
    assert y.shape == (2, 3, 5, 19)
    expected = reference.linear(x.numpy(), matrix.values, "F32", bias.numpy())
    assert cases.worst(y.numpy(), expected)[0] <= 2e-6
    assert layer(x[0, 0, 0]).shape == (19,)
    turned = torch.randn(23, 4).T
    assert torch.equal(layer(turned), layer(turned.contiguous()))
    assert layer(torch.empty(0, 23)).shape == (0, 19)


def test_rows_of_a_bigger_file_are_read_in_place():
    matrix = cases.stored("Q8_0", 20, 64)
    wide = np.full((20, matrix.data.shape[1] + 30), 255, np.uint8)
    wide[:, : matrix.data.shape[1]] = matrix.data
    view = Matrix(format="Q8_0", rows=20, cols=64, data=wide[:, : matrix.data.shape[1]])
    x = torch.randn(3, 64)
    assert torch.equal(Linear(view)(x), Linear(matrix)(x))


@pytest.mark.parametrize("tier", TIERS)
def test_extreme_int8_weights_and_activations_do_not_saturate(tier):
    # q = -128 meets activations of +-127 in every lane: the largest pair sum that vpmaddubsw can be given
    data = np.zeros((16, 2, 34), np.uint8)
    data[:, :, 0:2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    data[:, :, 2:] = np.tile(np.array([128, 127], np.uint8), 16)
    values = np.tile(np.array([-128, 127], np.float32), 32)
    matrix = Matrix(format="Q8_0", rows=16, cols=64, data=data.reshape(16, 68))
    for x in (np.ones(64), -np.ones(64), np.sign(values), np.repeat(np.sign(values), 1) * -1):
        y = Linear(matrix, tier=tier)(torch.tensor(x, dtype=torch.float32))
        assert np.allclose(y.numpy(), (x * values).sum(), rtol=1e-6)


@pytest.mark.parametrize("tier", TIERS)
def test_extreme_nibbles_do_not_saturate(tier):
    data = np.full((16, 20), 255, np.uint8)
    data[:, 0:4] = np.frombuffer(np.array([1, -3], np.float16).tobytes(), np.uint8)
    matrix = Matrix(format="Q4_1", rows=16, cols=32, data=data)
    for sign in (1, -1):
        y = Linear(matrix, tier=tier)(torch.full((1, 32), float(sign)))
        assert np.allclose(y.numpy(), sign * 32 * 12, rtol=1e-6)


def extremes_match(tier, matrix, values):
    """Activations of +-127 in every lane, with the signs of the first row's weights too."""
    signs = np.where(values[0] < 0, -1, 1).astype(np.float32)
    x = np.stack([np.ones_like(signs), -np.ones_like(signs), signs, -signs])
    expected = reference.linear(x, values, matrix.format)
    got = Linear(matrix, tier=tier)(torch.from_numpy(x)).numpy()
    error, text = cases.worst(got, expected, np.abs(values).sum(axis=1) + 1e-30)
    assert error <= cases.TOLERANCE[matrix.format], text


@pytest.mark.parametrize("format", sorted(f for f in SUPPORTED if POLICY[f] == "int8" and f not in WITH_SCALES))
@pytest.mark.parametrize("tier", TIERS)
def test_all_bits_set_does_not_saturate(tier, format):
    # the largest magnitudes of every field meet activations of +-127 in every lane
    block = FORMATS[format]
    for fill in (0xFF, 0x00, 0x0F, 0xF0):
        raw = random_blocks(format, 16)
        raw[:, sorted(set(range(block.block_bytes)) - scale_bytes(format))] = fill
        values = dequantize(format, raw)
        extremes_match(tier, Matrix(format=format, rows=16, cols=block.block_size, data=raw), values)


@pytest.mark.parametrize("format", sorted(f for f in WITH_SCALES if POLICY[f] == "int8"))
@pytest.mark.parametrize("tier", TIERS)
def test_all_bits_set_beside_scales_does_not_saturate(tier, format):
    for seed, fill in enumerate((0xFF, 0x00, 0x0F, 0xF0, 0x80, 0x7F)):
        random = cases.stored(format, 16, 128, seed)
        fields = {name: getattr(random, name) for name in Matrix.__dataclass_fields__}
        zeros = None if random.zeros is None else np.full_like(random.zeros, 0xFF - fill)
        matrix = Matrix(**{**fields, "data": np.full_like(random.data, fill), "zeros": zeros})
        extremes_match(tier, matrix, decode_matrix(matrix))


@pytest.mark.parametrize("format", sorted(SUPPORTED))
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_spoils_its_row_only(tier, format, bad):
    matrix = cases.stored(format, 33, cases.columns(format, 64))
    x = torch.from_numpy(cases.inputs(9, matrix.cols))
    clean = Linear(matrix, tier=tier)(x)
    x[4, 40] = bad
    y = Linear(matrix, tier=tier)(x)
    assert not torch.isfinite(y[4]).any()
    keep = [0, 1, 2, 3, 5, 6, 7, 8]
    assert torch.equal(y[keep], clean[keep])
    if np.isnan(bad):
        assert torch.isnan(y[4]).all()


@pytest.mark.parametrize("tier", TIERS)
def test_tiny_and_huge_activations(tier):
    matrix = cases.stored("Q8_0", 16, 32)
    underflow = 1.4e-45 * 32 * 127 * 127  # the product of two scales may be off by the smallest subnormal
    for size in (1e-45, 1e-43, 1e-39, 1e-30, 1e30, 3e38):
        x = cases.inputs(4, 32) / 60 * np.float32(size)
        y = Linear(matrix, tier=tier)(torch.from_numpy(x))
        expected = reference.linear(x, matrix.values, "Q8_0")
        assert torch.isfinite(y).all()
        assert np.allclose(y.numpy(), expected, rtol=1e-4, atol=underflow)


@pytest.mark.parametrize("format", sorted(SUPPORTED))
def test_every_output_is_written_and_nothing_else(format):
    layer = Linear(cases.stored(format, 67, cases.columns(format, 32)))
    x = torch.randn(70, layer.in_features)
    y = torch.full((72, layer.out_features), float("nan"))
    layer.native.forward(x.data_ptr(), "float32", 70, y[1:].data_ptr())
    assert torch.equal(y[1:71], layer(x))
    assert torch.isnan(y[[0, 71]]).all()


def test_bad_arguments():
    matrix = cases.stored("Q8_0", 4, 64)
    layer = Linear(matrix)
    with pytest.raises(ValueError, match=r"\.\.\., 64"):
        layer(torch.randn(2, 65))
    with pytest.raises(ValueError, match="float64"):
        layer(torch.randn(2, 64, dtype=torch.float64))
    with pytest.raises(ValueError, match="bias"):
        Linear(matrix, bias=torch.zeros(5))
    with pytest.raises(errors.Unsupported, match="IQ9_X"):
        Linear(Matrix(format="IQ9_X", rows=4, cols=64, data=matrix.data))
    for rows, cols, data in [
        (5, 64, matrix.data),
        (4, 63, matrix.data),
        (4, 96, matrix.data),
        (4, 64, matrix.data[:, :-1]),
        (4, 64, matrix.data.reshape(-1)),
        (4, 64, matrix.data.astype(np.uint16)),
        (-4, 64, matrix.data),
        (4, 64, matrix.data[:, ::-1]),
        (0, 64, matrix.data[:0]),
    ]:
        with pytest.raises(ValueError):
            Linear(Matrix(format="Q8_0", rows=rows, cols=cols, data=data))
    with pytest.raises(ValueError, match="Q4_K needs a multiple of 256 columns, got 288"):
        Linear(Matrix(format="Q4_K", rows=1, cols=288, data=np.zeros((1, 162), np.uint8)))
    with pytest.raises(RuntimeError, match="scalar"):
        Linear(matrix, tier="mmx")


def test_codes_and_scales_that_are_no_numbers_or_subnormal():
    """Every E4M3 code, NaN in one row only; E8M0 exponents at both ends; E4M3 scales of each sign."""
    codes = np.tile(np.arange(256, dtype=np.uint8), (16, 1))
    clean = codes.copy()
    clean[clean % 128 == 127] = 0
    ones = np.ones((16, 1), np.float32).view(np.uint8)
    exponents = np.repeat(np.array([[0], [1], [120], [253], [254], [255], [2], [127]], np.uint8), 8, axis=1)
    fours = np.tile(np.arange(128, dtype=np.uint8), (16, 2))
    scales = np.tile(np.arange(256, dtype=np.uint8), 2)[: 16 * 32].reshape(32, 16)[:16]
    x = torch.eye(256)
    for tier in TIERS:
        for matrix in (
            Matrix("FP8_CHANNEL", 16, 256, codes, ones, scale_format="F32"),
            Matrix("MXFP8", 8, 256, clean[:8], exponents, scale_format="E8M0"),
            Matrix("MXFP4_HF", 8, 256, fours[:8, :128], exponents, scale_format="E8M0"),
            Matrix("NVFP4", 16, 256, fours[:, :128], scales, scale_format="E4M3", multiplier=0.5),
        ):
            y = Linear(matrix, tier=tier)(x).numpy().T
            with np.errstate(over="ignore"):  # 2^127 times a value
                expected = decode_matrix(matrix)
            whole = np.isnan(expected).any(axis=1)  # a NaN spoils all of its output
            assert np.isnan(y[whole]).all(), (tier, matrix.format)
            np.testing.assert_allclose(
                y[~whole], expected[~whole], rtol=1e-6, atol=2e-38, err_msg=f"{tier} {matrix.format}"
            )


@pytest.mark.parametrize("format", sorted(WITH_SCALES))
def test_arrays_of_the_wrong_size_are_refused(format):
    random = cases.stored(format, 24, 256, 4)
    fields = {name: getattr(random, name) for name in Matrix.__dataclass_fields__}
    Linear(Matrix(**fields))
    arrays = [name for name in ("data", "scales", "zeros") if fields[name] is not None]
    for name in arrays:
        array = fields[name]
        for wrong in (array[:-1], array[:, :-1], np.pad(array, ((0, 1), (0, 0))), np.pad(array, ((0, 0), (0, 1)))):
            with pytest.raises(ValueError, match=f"{format} needs"):
                Linear(Matrix(**{**fields, name: wrong}))
        for wrong in (array.reshape(-1), array.astype(np.uint16), array[:, ::-1]):
            if wrong.shape[1:] != (1,):
                with pytest.raises(ValueError, match=name):
                    Linear(Matrix(**{**fields, name: wrong}))
    wrongs = [{"scales": None}, {"scale_format": "F8"}, {"scale_format": ""}, {"group": 48}, {"group": -2}]
    wrongs += [{"rows": 23}, {"rows": 32}, {"cols": 240}, {"cols": 288}, {"rows": 2**62}, {"cols": 2**62}]
    wrongs += [{"zeros": np.zeros((3, 3), np.uint8)}]
    wrongs += [] if format == "NVFP4" else [{"multiplier": 0.5}]
    for wrong in wrongs:
        with pytest.raises(ValueError):
            Linear(Matrix(**{**fields, **wrong}))


def test_scales_of_plain_formats_are_refused():
    random = cases.stored("Q8_0", 4, 64)
    for wrong in ({"scales": random.data}, {"zeros": random.data}, {"scale_format": "F32"}, {"multiplier": 2.0}):
        with pytest.raises(ValueError):
            Linear(Matrix("Q8_0", 4, 64, random.data, **wrong))


def test_the_extension_states_the_same_policies():
    formats = info()["formats"]
    assert {name: entry["policy"] for name, entry in formats.items()} == POLICY


def test_memory_goes_back_when_layers_die():
    process = psutil.Process()
    matrix = Matrix(format="F32", rows=4096, cols=2048, data=np.zeros((4096, 8192), np.uint8))
    before = process.memory_info().rss
    layers = [Linear(matrix) for _ in range(4)]
    grown = process.memory_info().rss - before
    assert grown > 100 << 20
    del layers
    gc.collect()
    assert process.memory_info().rss - before < 16 << 20


def test_a_large_weight_is_packed_in_pieces():
    """After each of them but the last the caller hears of it, and the result is that of its rows apart."""
    rows, cols, called = 20000, 2048, []
    numbers = np.random.default_rng(0).integers(0, 1 << 14, (rows, cols), np.uint16) + np.uint16(0x3C00)  # 0.008 to 2
    raw = numbers.view(np.uint8)
    layer = Linear(Matrix("BF16", rows, cols, raw), between=lambda: called.append(1))
    x = torch.from_numpy(cases.inputs(2, cols))
    parts = [Linear(Matrix("BF16", 4000, cols, raw[at : at + 4000]))(x) for at in range(0, rows, 4000)]
    assert len(called) == 1 and torch.equal(layer(x), torch.cat(parts, 1))
