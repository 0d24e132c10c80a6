"""Maps of each head over rows of a stored weight, as latent attention has them."""

import numpy as np
import pytest
import torch

from kt_core.errors import Unsupported
from kt_core.kernels import reference
from kt_core.kernels.attention import HeadLinear
from kt_core.weights import Matrix, decode_matrix
from kt_core.weights.quantize import quantize

HEADS, ROWS, COLS = 3, 20, 64


def test_rows_of_a_stored_weight():
    torch.manual_seed(2)
    matrix = quantize(torch.randn(HEADS * ROWS, COLS), "Q8_0")
    x = torch.randn(5, HEADS, COLS)
    got = HeadLinear.stored(matrix, HEADS)(x).numpy()
    weight = decode_matrix(matrix).reshape(HEADS, ROWS, COLS)
    expected = [reference.linear(x[:, h].numpy(), weight[h], "Q8_0", None) for h in range(HEADS)]
    assert np.abs(got - np.stack(expected, 1)).max() / np.abs(expected).max() < 1e-5


def test_what_cannot_be_shared_out():
    matrix = quantize(torch.randn(HEADS * ROWS, COLS), "Q8_0")
    with pytest.raises(ValueError, match="not shared out evenly"):
        HeadLinear.stored(matrix, 7)
    with pytest.raises(Unsupported):
        HeadLinear.stored(quantize(torch.randn(6, 128), "INT4"), 3)
    with pytest.raises(Unsupported):
        HeadLinear.stored(Matrix("NONE", 6, 8, np.zeros((6, 8), np.uint8)), 3)
