"""Rounding to INT4 and Q8_0: the bound of half a step, for ordinary and for hostile values."""

import gguf
import numpy as np
import pytest
import torch

from kt_core.weights import Matrix, decode_matrix
from kt_core.weights.quantize import AT_ONCE, quantize
from kt_core.weights.scaled import bf16


def weights(kind: str) -> torch.Tensor:
    torch.manual_seed(3)
    x = torch.randn(6, 384)
    if kind == "outliers":
        x[torch.rand(x.shape) < 0.02] *= 100
    if kind == "one side":
        x = x.abs() + 3
    if kind == "steps":  # ties
        x = torch.randint(-17, 16, x.shape) / 2
    if kind == "zeros":
        x[:, :128] = 0
        x[1] = 0
    if kind == "tiny":
        x = x * 3e-6  # subnormal float16 scales
    if kind == "huge":
        x = x * 1e6
    return x


KINDS = ("plain", "outliers", "one side", "steps", "zeros", "tiny", "huge")


def steps(matrix: Matrix) -> np.ndarray:
    """The scale of every value."""
    if matrix.format == "Q8_0":
        half = matrix.data.reshape(matrix.rows, -1, 34)[..., :2]
        return np.repeat(np.ascontiguousarray(half).view(np.float16)[..., 0].astype(np.float64), 32, axis=1)
    assert matrix.scales is not None
    return np.repeat(bf16(matrix.scales).astype(np.float64), matrix.group, axis=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("format", "group", "zero_point"),
    [("Q8_0", 32, False), *(("INT4", g, z) for g in (32, 64, 128) for z in (False, True))],
)
def test_no_value_is_off_by_more_than_half_a_step(format, group, zero_point, kind, dtype):
    x = weights(kind).to(dtype)
    matrix = quantize(x, format, group, zero_point)
    assert (matrix.rows, matrix.cols) == (6, 384)
    assert (matrix.zeros is not None) == zero_point
    values = x.double().numpy()
    error = np.abs(decode_matrix(matrix).astype(np.float64) - values)
    # the quotient is rounded by 2^-24 of at most 127, or at most 16 steps, before it is rounded to an integer
    assert (error <= steps(matrix) * (0.5 + 2.0**-16)).all()
    if kind != "zeros":
        assert error.max() > steps(matrix).min() / 8, "nothing was rounded"


def test_scales_are_as_small_as_they_can_be():
    """A step is the range over 15 (or 127 on each side), apart from the rounding of the scale itself."""
    x = weights("plain")
    grouped = x.numpy().reshape(6, -1, 64)
    best = np.maximum(grouped.max(-1) / 7.5, grouped.min(-1) / -8.5)
    scales = quantize(x, "INT4", 64).scales
    assert (bf16(scales) <= best * (1 + 2.0**-7)).all()
    spread = (grouped.max(-1) - grouped.min(-1)) / 15
    assert (bf16(quantize(x, "INT4", 64, True).scales) <= spread * (1 + 2.0**-7)).all()


def test_q8_0_is_ggml_s():
    """The gguf package multiplies by 1 / scale and rounds ties away from zero: at most one step apart, and seldom."""
    x = weights("plain")
    ours = decode_matrix(quantize(x, "Q8_0"))
    theirs = gguf.quants.dequantize(
        gguf.quants.quantize(x.numpy(), gguf.GGMLQuantizationType.Q8_0), gguf.GGMLQuantizationType.Q8_0
    )
    assert np.mean(ours != theirs) < 0.01
    assert np.abs(ours - theirs).max() <= steps(quantize(x, "Q8_0")).max() * 1.01


def test_many_rows_are_done_in_parts(monkeypatch):
    x = torch.randn(50, 128)
    whole = quantize(x, "INT4", 32, True)
    monkeypatch.setattr("kt_core.weights.quantize.AT_ONCE", 1000)
    parts = quantize(x, "INT4", 32, True)
    assert AT_ONCE > 1000
    for name in ("data", "scales", "zeros"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))


def test_what_cannot_be_quantised():
    x = torch.randn(2, 64)
    for arguments in (("INT3",), ("INT4", 48), ("INT4", 128)):
        with pytest.raises(ValueError):
            quantize(x, *arguments)
    for bad in (x[0], torch.randn(0, 64), x[:, :40], x * float("inf"), torch.full((1, 32), float("nan"))):
        with pytest.raises(ValueError):
            quantize(bad, "Q8_0")
    with pytest.raises(ValueError, match="float16"):
        quantize(torch.full((1, 32), 1e7), "Q8_0")
