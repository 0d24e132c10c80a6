"""Tensors that are not what their memory says."""

import numpy as np
import pytest
import torch

from kt_core import kernels
from kt_core.kernels.attention import Batch, PageLayout, attend, new_pages, write
from kt_core.kernels.norm import combine, rms_norm
from kt_core.kernels.rope import rotate
from kt_core.kernels.routing import Rule, route
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


LAYOUT = PageLayout(2, 32, 32, 16, torch.float32)
ROWS = torch.zeros(3, dtype=torch.int64)
CALLS = {
    "linear": (lambda x: kernels.Linear(matrix(8, 16))(x), [torch.randn(2, 16)]),
    "rms_norm": (lambda x, w, r: rms_norm(x, w, 1e-5, residual=r), [torch.randn(3, 8), torch.ones(8), torch.ones(3, 8)]),
    "combine": (lambda a, b: combine("add", a, b), [torch.ones(2, 8), torch.ones(2, 8)]),
    "rotate": (
        lambda x, p, c, s: rotate(x, p, (c, s)),
        [torch.ones(3, 2, 32), ROWS, torch.ones(4, 8), torch.ones(4, 8)],
    ),
    "route": (lambda x, b: route(x, Rule(2), b), [torch.ones(3, 8), torch.ones(8)]),
    "write": (
        lambda p, s, k, v: write(p, LAYOUT, s, k, v),
        [new_pages(LAYOUT, 1), torch.arange(3), torch.ones(3, 2, 32), torch.ones(3, 2, 32)],
    ),
    "attend": (
        lambda q, p, t, n, s, k: attend(q, p, LAYOUT, Batch(t, n, s), 0.1, sinks=k),
        [torch.ones(1, 2, 32), new_pages(LAYOUT, 1), *(torch.tensor(x, dtype=torch.int32) for x in ([[0]], [1], [0, 1])),
         torch.ones(2)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_tensor_without_memory_here_is_an_error_and_no_crash(name):
    """The extension takes addresses: one of another device, or of none, would end the process."""
    call, arguments = CALLS[name]
    call(*arguments)
    for i, argument in enumerate(arguments):
        with pytest.raises((ValueError, NotImplementedError)):
            call(*arguments[:i], argument.to("meta"), *arguments[i + 1 :])
