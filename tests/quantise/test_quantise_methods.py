"""Each method against float64: codes are the nearest, errors are what the format allows, layouts are those of others."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_blocks import dequantize

from kt_core import kernels
from kt_core.errors import BadData
from kt_core.quantise import methods, write
from kt_core.quantise.columns import Curvature
from kt_core.quantise.methods import Scheme
from kt_core.weights import Matrix, decode_matrix
from kt_core.weights.decode import decode

GGUF = ("Q8_0", "Q4_1", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_K")
INT4 = [Scheme("int4", group, zero) for group in (32, 64, 128) for zero in (False, True)]
OTHERS = [Scheme("int8"), Scheme("fp8", 128), Scheme("fp8"), Scheme("mxfp4")]


def encoded(values: np.ndarray, scheme: Scheme, importance: np.ndarray | None = None) -> Matrix:
    """The weight as kernels and decoders take it; its arrays have the sizes that `tensors` says."""
    rows, cols = values.shape
    method = methods.find(scheme.method)
    parts = method.encode(values, scheme, importance)
    stored = [one for one in method.tensors(rows, cols, scheme) if one.per]
    assert [part.nbytes for part in parts] == [one.nbytes for one in stored]
    data, *beside = (part.reshape(-(-rows // one.per), -1) for part, one in zip(parts, stored, strict=True))
    if scheme.method in GGUF:
        return Matrix(scheme.method, rows, cols, data)
    if scheme.method == "int4":
        zeros = nibble_rows(beside[1], rows) if scheme.zero_point else None
        return Matrix("INT4", rows, cols, data, beside[0], zeros, scale_format="BF16", group=scheme.group)
    if scheme.method == "int8":
        blocks = np.concatenate([beside[0].reshape(rows, -1, 2), (data ^ 0x80).reshape(rows, -1, 32)], axis=-1)
        return Matrix("Q8_0", rows, cols, blocks.reshape(rows, -1))
    if scheme.method == "fp8":
        return Matrix("FP8_BLOCK" if scheme.group else "FP8_CHANNEL", rows, cols, data, beside[0], scale_format="F32")
    return Matrix("MXFP4_HF", rows, cols, data, beside[0], scale_format="E8M0")


def nibble_rows(packed: np.ndarray, rows: int) -> np.ndarray:
    """Words [N / 8, groups], row 8 r + i in bits 4 i, one row after another as nibbles [N, groups / 2]."""
    words = packed.view("<u4")
    values = np.array([[word >> 4 * (row % 8) & 15 for word in words[row // 8]] for row in range(rows)], np.uint8)
    values = np.pad(values, ((0, 0), (0, values.shape[1] % 2)))
    return values[:, ::2] | values[:, 1::2] << 4


def gaussian(rows: int, cols: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, cols), np.float32) * np.float32(0.02)


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("format", GGUF)
def test_blocks_are_those_of_the_gguf_package(format):
    values = gaussian(6, 512)
    matrix = encoded(values, Scheme(format))
    np.testing.assert_array_equal(decode(format, matrix.data), dequantize(format, matrix.data))


@pytest.mark.parametrize("scheme", [*INT4, *OTHERS, *(Scheme(name) for name in GGUF)], ids=str)
def test_no_error_beyond_half_a_step_but_where_the_grid_ends(scheme):
    """Every weight has the nearest of the values that its group's scales allow, computed in float64."""
    values = gaussian(128, 256)
    found = decode_matrix(encoded(values, scheme)).astype(np.float64)
    group = {"int4": scheme.group, "mxfp4": 32, "Q6_K": 16, "IQ4_K": 16}.get(scheme.method, 32)
    off = np.abs(found - values).reshape(-1, group)
    for grid, x, error in zip(found.reshape(-1, group), values.reshape(-1, group), off, strict=True):
        allowed = np.unique(grid)  # values that others of the group took: none of them may be nearer
        nearest = np.abs(allowed[:, None] - x.astype(np.float64)).min(axis=0)
        assert (error <= nearest * (1 + 1e-5) + 1e-9).all()


# Relative errors of the weights: Gaussian, 256 columns. A plain rounding over the whole range has 5 to 15 % more.
ERRORS = {
    Scheme("int4", 32): 0.082, Scheme("int4", 64): 0.0915, Scheme("int4", 128): 0.0985, Scheme("int4", 32, True): 0.079,
    Scheme("int8"): 0.0055, Scheme("fp8", 128): 0.0275, Scheme("fp8"): 0.0275, Scheme("mxfp4"): 0.118,
    Scheme("Q4_1"): 0.0735, Scheme("Q5_1"): 0.0365, Scheme("Q4_K"): 0.0745, Scheme("Q5_K"): 0.0385,
    Scheme("Q6_K"): 0.0185, Scheme("Q8_0"): 0.0055, Scheme("IQ4_K"): 0.063,
}  # fmt: skip


@pytest.mark.parametrize("scheme", ERRORS, ids=str)
def test_errors_of_gaussian_weights(scheme):
    values = gaussian(128, 256, 1)
    assert relative(decode_matrix(encoded(values, scheme)), values) < ERRORS[scheme]


@pytest.mark.parametrize(
    ("scheme", "bound", "with_int8"),
    [
        (Scheme("int8"), 0.011, 0.016),
        (Scheme("int4", 32), 0.145, None),
        (Scheme("Q4_1"), 0.125, None),
        (Scheme("Q4_K"), 0.127, None),
        (Scheme("IQ4_K"), 0.108, None),  # as many bits as Q4_K
    ],
    ids=str,
)
def test_output_error_of_a_layer(scheme, bound, with_int8):
    """gate, up, silu, down with Gaussian weights and inputs: exact arithmetic, and the kernels' with int8 activations."""
    hidden, width = 1024, 512
    parts = [gaussian(width, hidden, 2), gaussian(width, hidden, 3), gaussian(hidden, width, 4)]
    x = np.random.default_rng(5).standard_normal((128, hidden), np.float32)

    def layer(gate, up, down):
        a, b = (x.astype(np.float64) @ m.T.astype(np.float64) for m in (gate, up))
        return a / (1 + np.exp(-a)) * b @ down.T.astype(np.float64)

    matrices = [encoded(part, scheme) for part in parts]
    expected = layer(*parts)
    assert relative(layer(*map(decode_matrix, matrices)), expected) <= bound
    if with_int8:
        experts = kernels.Experts(1, hidden, width, "silu")
        experts.load_all([(*matrices, None, None, None)])
        ids, weights = torch.zeros(128, 1, dtype=torch.int64), torch.ones(128, 1)
        found = experts(torch.from_numpy(x), ids, weights).numpy()
        assert relative(found, expected) <= with_int8


@pytest.mark.parametrize(
    "scheme", [Scheme("int4", 32), Scheme("int4", 32, True), Scheme("Q4_K"), Scheme("IQ4_K"), Scheme("mxfp4")], ids=str
)
def test_importance_moves_the_error_to_where_it_counts_less(scheme):
    values = gaussian(64, 256)
    importance = np.where(np.arange(256) % 4 == 0, 50, 1).astype(np.float32)
    plain, weighted = (decode_matrix(encoded(values, scheme, i)) - values for i in (None, importance))
    share = 0.98 if scheme.method == "mxfp4" else 0.9  # of two powers of two there is less to choose
    assert (importance * weighted**2).sum() < share * (importance * plain**2).sum()


numbers = st.floats(-1e4, 1e4, width=32)


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(st.lists(numbers, min_size=4, max_size=4), min_size=1, max_size=3),
    scale=st.sampled_from([1e-30, 1e-3, 1.0]),
)
def test_odd_numbers(rows, scale):
    """Zeros, constants, tiny numbers, one large among small: nothing is ever worse than leaving the weight out."""
    values = np.repeat(np.array(rows, np.float32) * np.float32(scale), 64, axis=1)
    for scheme in (
        Scheme("int4", 32),
        Scheme("int4", 64, True),
        Scheme("int8"),
        Scheme("mxfp4"),
        Scheme("Q4_K"),
        Scheme("Q6_K"),
        Scheme("IQ4_K"),
    ):
        found = decode_matrix(encoded(values, scheme))
        assert np.isfinite(found).all()
        assert np.linalg.norm(found - values) <= 1.001 * np.linalg.norm(values) + 1e-12


HUGE = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    "scheme", [*INT4, *OTHERS, *(Scheme(name) for name in GGUF), Scheme("bf16"), Scheme("f32")], ids=str
)
def test_numbers_up_to_the_largest_are_as_close_as_small_ones(scheme):
    """The same weights times a power of two: nothing overflows on the way, and nothing is cut off at the format's end."""
    method = methods.find(scheme.method)
    values = gaussian(128, 256)
    values /= np.abs(values).max()
    values[5] *= np.float32(
        1e-9
    )  # rows far below the others stay as good as they are, where they have their own scales
    for size in (1.0, method.LARGEST / 4, method.LARGEST):
        scaled = values * np.float32(size)
        if scheme.method in ("bf16", "f32"):
            (data,) = method.encode(scaled, scheme)
            found = (
                data.view(np.float32) if scheme.method == "f32" else (data.view("<u2").astype("<u4") << 16).view("<f4")
            )
            found = found.reshape(values.shape)
        else:
            found = decode_matrix(encoded(scaled, scheme))
        assert np.isfinite(found).all()
        assert relative(found.astype(np.float64), scaled.astype(np.float64)) < 1.02 * ERRORS.get(scheme, 0.1)
        if scheme.method == "int4":
            small = relative(found[5].astype(np.float64), scaled[5].astype(np.float64))
            assert small < 0.15


@pytest.mark.parametrize("zero_point", [False, True])
@pytest.mark.parametrize("compensated", [False, True])
def test_int4_of_the_largest_numbers_there_are(compensated, zero_point):
    """Scales that a fit makes a little larger than the weights stay finite times every integer."""
    values = np.full((16, 64), HUGE, np.float32)
    values[1::2] *= np.random.default_rng(0).uniform(-1, 1, (8, 64)).astype(np.float32)
    values[4, ::2] *= -1
    scheme, method = Scheme("int4", 32, zero_point), methods.find("int4")
    known = Curvature(torch.eye(64), np.ones(64, np.float32))
    parts = method.compensated(values, scheme, known) if compensated else method.encode(values, scheme)
    zeros = nibble_rows(parts[2].reshape(2, -1), 16) if zero_point else None
    data, scales = parts[0].reshape(16, -1), parts[1].reshape(16, -1)
    found = decode_matrix(Matrix("INT4", 16, 64, data, scales, zeros, scale_format="BF16", group=32))
    assert np.isfinite(found).all()
    assert relative(found / HUGE, values / HUGE) < 0.09


@pytest.mark.parametrize(
    "scheme", [Scheme("int8"), Scheme("mxfp4"), Scheme("bf16"), *(Scheme(name) for name in GGUF)], ids=str
)
def test_larger_numbers_than_a_method_has_are_refused_by_name(scheme):
    piece = SimpleNamespace(
        weight=SimpleNamespace(name="model.up_proj.weight", rows=1, cols=256, order=None), scheme=scheme
    )
    values = np.zeros((1, 256), np.float32)
    values[0, 3] = -HUGE
    task = write.Task(piece, Matrix("F32", 1, 256, values.view(np.uint8)), "", 0, 0, 1)
    with pytest.raises(BadData, match=r"model\.up_proj\.weight cannot become .*3\.4e\+38"):
        write.made(task, lambda *_: None)
    values[0, 3] = -methods.find(scheme.method).LARGEST
    write.made(task, lambda *_: None)
