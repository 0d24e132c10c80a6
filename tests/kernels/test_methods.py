"""Every method's format has a kernel, and those that quantise do it with what the kernel takes."""

import pytest
import torch

from kt_core.kernels import SUPPORTED, Linear
from kt_core.kernels.methods import METHODS
from kt_core.weights import decode_matrix
from kt_core.weights.quantize import quantize


def test_formats_have_kernels():
    assert {method.format for method in METHODS.values()} <= SUPPORTED | {""}


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.quantises])
def test_online_quantisation_ends_in_a_kernel(name):
    method = METHODS[name]
    weight = torch.randn(48, 256).bfloat16()
    matrix = quantize(weight, method.format, method.group)
    assert matrix.format == method.format
    x = torch.randn(4, 256)
    exact = x @ torch.from_numpy(decode_matrix(matrix)).T
    size = x.abs() @ torch.from_numpy(abs(decode_matrix(matrix))).T
    assert ((Linear(matrix)(x) - exact).abs() <= size / 100).all()  # int8 activations: 1/254 of a group's largest
