"""Pools of several groups, as on machines with several NUMA nodes: the same bits, memory bound or not."""

import ctypes
import os
import subprocess
import sys
import textwrap

import cases
import numpy as np
import pytest
import torch

from kt_core import _native
from kt_core.kernels import Experts, Linear, Pool, info, set_pools, set_threads

FORMATS = ["BF16", "F16", "Q8_0", "Q4_K", "Q6_K", "IQ2_XS"]
SIZES = [(threads, groups) for threads in (1, 2, 3) for groups in (1, 2, 3)]


def pool(threads, groups):
    return Pool([{"threads": threads}] * groups)


@pytest.fixture(params=["direct", "prefill"])
def path(request):
    _native.force_prefill({"direct": 10**9, "prefill": 1}[request.param])
    yield request.param
    _native.force_prefill(0)


def layer(format, hidden, intermediate, where, experts=3):
    made = Experts(experts, hidden, intermediate, pool=where)
    for e in range(experts):
        gate, up = (cases.stored(format, intermediate, hidden, seed=10 * e + i) for i in (0, 1))
        made.load(e, gate, up, cases.stored(format, hidden, cases.columns(format, intermediate), seed=10 * e + 2))
    return made


def routed(tokens, hidden, experts=3):
    rng = np.random.default_rng(tokens)
    x = torch.from_numpy(cases.inputs(tokens, hidden))
    ids = torch.from_numpy(rng.integers(-1, experts, (tokens, 2)))
    return x, ids, torch.from_numpy(rng.random((tokens, 2), np.float32))


@pytest.mark.parametrize("format", FORMATS)
def test_experts_are_the_same_bits_for_any_groups(format, path):
    """One token, a few, and enough for several runs of experts (64 routes each)."""
    size = cases.columns(format, 96)
    calls = [routed(tokens, size) for tokens in (1, 5, 150)]
    one = layer(format, size, size, pool(1, 1))
    expected = [one(*call) for call in calls]
    for threads, groups in SIZES:
        made = layer(format, size, size, pool(threads, groups))
        for call, right in zip(calls, expected, strict=True):
            assert torch.equal(made(*call), right), (threads, groups, len(call[0]))


@pytest.mark.parametrize("format", FORMATS)
def test_linear_is_the_same_bits_for_any_groups(format, path):
    weight = cases.stored(format, 210, cases.columns(format, 64))
    calls = [torch.from_numpy(cases.inputs(tokens, weight.cols)) for tokens in (1, 9, 600)]
    bias = torch.randn(210)
    one = Linear(weight, bias, pool=pool(1, 1))
    expected = [one(x) for x in calls]
    for threads, groups in SIZES:
        made = Linear(weight, bias, pool=pool(threads, groups))
        assert made.nbytes == one.nbytes
        for x, right in zip(calls, expected, strict=True):
            assert torch.equal(made(x), right), (threads, groups, len(x))


@pytest.mark.parametrize("size", [1, 16, 32, 48, 96])
def test_uneven_sizes(size, path):
    """Sizes that leave groups with little or nothing."""
    call = routed(7, size)
    expected = layer("BF16", size, size, pool(1, 1))(*call)
    for groups in (2, 3, 9):
        for threads in (1, 2):
            assert torch.equal(layer("BF16", size, size, pool(threads, groups))(*call), expected), (groups, threads)
    uneven = Pool([{"threads": 1}, {"threads": 3}, {"threads": 2}])
    assert torch.equal(layer("BF16", size, size, uneven)(*call), expected)


def test_groups_may_change_after_loading():
    call = routed(40, 96)
    layers = []
    try:
        for threads, groups in SIZES:
            set_pools([{"threads": threads}] * groups)
            layers.append(layer("Q8_0", 96, 96, None))
            results = [made(*call) for made in layers]
            assert all(torch.equal(result, results[0]) for result in results)
    finally:
        set_threads(2)
    assert torch.equal(layers[-1](*call), results[0])
