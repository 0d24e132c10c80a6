"""Tensors that are not what their memory says."""

import numpy as np
import torch

from kt_core import kernels
from kt_core.weights import Matrix


def matrix(rows, cols):
    values = np.random.default_rng(0).standard_normal((rows, cols)).astype("<f4")
    return Matrix("F32", rows, cols, values.view(np.uint8).reshape(rows, -1))


def test_a_lazily_negated_input_of_a_linear_layer():
    """PyTorch keeps a negation as a bit of the tensor; its memory holds the positive numbers."""
    layer = kernels.Linear(matrix(8, 16))
    x = torch._neg_view(torch.randn(2, 16))
    assert torch.equal(layer(x), layer(x.resolve_neg()))


def test_lazily_negated_inputs_of_experts():
    experts = kernels.Experts(1, 16, 8)
    experts.load(0, matrix(8, 16), matrix(8, 16), matrix(16, 8))
    x, weights = torch._neg_view(torch.randn(2, 16)), torch._neg_view(torch.ones(2, 1))
    ids = torch.zeros(2, 1, dtype=torch.int64)
    assert torch.equal(experts(x, ids, weights), experts(x.resolve_neg(), ids, weights.resolve_neg()))
