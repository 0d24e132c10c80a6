"""Threads: sizes, pinning, several callers, fork."""

import os
import threading

import cases
import pytest
import torch

from kt_core.kernels import Experts, Linear, Pool, info, read_rate, set_threads


@pytest.fixture(autouse=True)
def _threads():
    yield
    set_threads(2)


@pytest.fixture(scope="module")
def layer():
    return Linear(cases.stored("Q8_0", 200, 64))


def test_sizes_and_pinning(layer):
    x = torch.randn(3, 64)
    expected = layer(x)
    allowed = sorted(os.sched_getaffinity(0))
    for cpus in (allowed[:1], allowed[:2], allowed[:1] * 4):
        set_threads(len(cpus), cpus)
        assert info()["threads"] == len(cpus)
        assert info()["cpus"] == cpus
        assert info()["note"] == ""
        assert torch.equal(layer(x), expected)
        assert sorted(os.sched_getaffinity(0)) == allowed  # the caller's own mask is left alone
    set_threads(5)
    assert (info()["threads"], info()["cpus"]) == (5, [])
    assert torch.equal(layer(x), expected)


def test_refused_pinning_is_noted_and_goes_on(layer):
    set_threads(2, [min(os.sched_getaffinity(0)), 1000])
    assert "CPU 1000" in info()["note"]
    assert layer(torch.randn(2, 64)).shape == (2, 200)
    set_threads(2)
    assert info()["note"] == ""


@pytest.mark.parametrize(
    ("n", "cpus"), [(0, None), (-1, None), (2**31, None), (4097, None), (2, [0]), (1, [-1]), (1, [10**6])]
)
def test_bad_sizes(layer, n, cpus):
    with pytest.raises(ValueError):
        set_threads(n, cpus)
    assert layer(torch.randn(1, 64)).shape == (1, 200)


def test_callers_on_several_threads_take_turns(layer):
    x = torch.randn(5, 64)
    expected = layer(x)
    wrong = []

    def work():
        for i in range(200):
            if i % 50 == 7:
                set_threads(1 + i % 3)
            if not torch.equal(layer(x), expected):
                wrong.append(i)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong


def test_users_with_their_own_pools(layer):
    x = torch.randn(5, 64)
    expected = layer(x)
    own = Pool([{"threads": 3}])
    mine = Linear(cases.stored("Q8_0", 200, 64), pool=own)
    set_threads(1)
    assert (own.info()["threads"], info()["threads"]) == (3, 1)
    experts = Experts(2, 64, 64, pool=own)
    with pytest.raises(TypeError):
        Experts(2, 64, 64, pool=3)
    del own  # layers keep their pool
    assert torch.equal(mine(x), expected)
    assert experts(x, torch.zeros(5, 1, dtype=torch.int64), torch.ones(5, 1)).count_nonzero() == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_can_compute(layer):
    set_threads(3)
    x = torch.randn(5, 64)
    expected = layer(x)
    own = Pool([{"threads": 2}])
    other = Linear(cases.stored("Q8_0", 200, 64), pool=own)
    child = os.fork()
    if child == 0:
        good = torch.equal(layer(x), expected) and torch.equal(other(x), expected)
        set_threads(2)
        os._exit(0 if good and torch.equal(layer(x), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(layer(x), expected)


def test_read_rate():
    assert 1e8 < read_rate(32 << 20, 2) < 1e13


def test_the_callers_float_settings_do_not_matter():
    layer = Linear(cases.stored("F32", 64, 8))
    x = torch.full((3, 8), 1e-40)
    expected = layer(x)
    assert (expected != 0).any()
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush")
    try:
        for threads in (1, 3):
            set_threads(threads)  # new threads inherit the caller's settings
            got = layer(x).view(torch.int32)
            assert torch.equal(got, expected.view(torch.int32))
    finally:
        torch.set_flush_denormal(False)
