"""Pools of several groups, as on machines with several NUMA nodes: the same bits, memory bound or not."""

import gc
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import cases
import numpy as np
import pytest
import torch

from kt_core import _native
from kt_core.kernels import Experts, Linear, Pool, set_pools, set_threads

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


def test_limits():
    with pytest.raises(ValueError):
        Pool([])
    with pytest.raises(ValueError):
        Pool([{"threads": 1}, {"threads": 0}])
    with pytest.raises(ValueError):
        Pool([{"threads": 2000}] * 3)
    with pytest.raises(ValueError):
        Pool([{"threads": 1}] * 65)
    with pytest.raises(ValueError):
        Pool([{"threads": 1, "cpus": [-1]}])
    many = pool(1, 64)
    assert many.info()["threads"] == 64 and many.info()["note"] == ""
    weight, x = cases.stored("Q8_0", 210, 64), torch.from_numpy(cases.inputs(9, 64))
    assert torch.equal(Linear(weight, pool=many)(x), Linear(weight, pool=pool(1, 1))(x))


def test_threads_keep_to_their_groups_cpus():
    """One CPU each where there are as many as threads, else all of the group's for each of its threads."""
    allowed = sorted(os.sched_getaffinity(0))
    made = Pool([{"threads": 2, "cpus": allowed[:1] * 2}, {"threads": 3, "cpus": allowed[:2]}])
    assert made.info()["groups"][1] == {"threads": 3, "cpus": allowed[:2], "node": None}
    workers = [task for task in Path("/proc/self/task").iterdir() if (task / "comm").read_text() == "kt-worker\n"]
    masks = [sorted(os.sched_getaffinity(int(task.name))) for task in workers]
    assert masks.count(allowed[:1]) >= 1 and masks.count(allowed[:2]) >= 3
    assert Linear(cases.stored("Q8_0", 210, 64), pool=made)(torch.zeros(2, 64)).count_nonzero() == 0
    assert sorted(os.sched_getaffinity(0)) == allowed


def policies(nbytes):
    """Memory policies of the process's mappings from nbytes on, as "prefer:0" or "default"."""
    found = []
    sizes = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(word, 16) for word in line.split()[0].split("-"))
        sizes[begin] = end - begin
    for line in Path("/proc/self/numa_maps").read_text().splitlines():
        words = line.split()
        if sizes.get(int(words[0], 16), 0) >= nbytes:
            found.append(words[1])
    return found


@pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="the kernel has no NUMA support")
def test_weights_lie_in_their_groups_node():
    """A node that does not exist, or has no memory, is noted; node 0 is there on every machine."""
    before = policies(32 << 20)
    made = Pool([{"threads": 1, "node": 0}, {"threads": 1}])
    if made.info()["note"]:
        pytest.skip("binding is refused here: " + made.info()["note"])
    kept = Linear(cases.stored("Q8_0", 64, 64), pool=made)
    after = policies(32 << 20)
    assert after.count("prefer:0") == before.count("prefer:0") + 1 and kept.nbytes
    assert made.info()["note"] == ""
    gap = Pool([{"threads": 1, "node": 0}, {"threads": 1, "node": 700}])
    x = torch.from_numpy(cases.inputs(3, 64))
    assert torch.equal(Linear(cases.stored("Q8_0", 64, 64), pool=gap)(x), kept(x))
    assert "NUMA node 700" in gap.info()["note"]


# Lets one system call (mbind) fail with a chosen error, as containers do; then runs a layer on two groups.
REFUSED = """
import ctypes, platform, struct, sys
import torch
sys.path[:0] = sys.argv[2:]
import cases
from kt_core.kernels import Linear, Pool

number = {"x86_64": 237, "aarch64": 235}[platform.machine()]
def step(code, jt, jf, k):
    return struct.pack("HBBI", code, jt, jf, k)
program = (
    step(0x20, 0, 0, 0)  # load the system call's number
    + step(0x15, 0, 1, number)  # this one?
    + step(0x06, 0, 0, 0x00050000 | int(sys.argv[1]))  # fail with the error
    + step(0x06, 0, 0, 0x7FFF0000)  # allow
)
buffer = ctypes.create_string_buffer(program)
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
if libc.prctl(22, 2, ctypes.byref(Filter(4, ctypes.addressof(buffer))), 0, 0) != 0:
    sys.exit(77)
weight, x = cases.stored("Q8_0", 210, 64), torch.from_numpy(cases.inputs(9, 64))
expected = Linear(weight, pool=Pool([{"threads": 1}]))(x)
pool = Pool([{"threads": 2, "node": 0}, {"threads": 1, "node": 1}])
assert torch.equal(Linear(weight, pool=pool)(x), expected)
print(pool.info()["note"])
"""


@pytest.mark.parametrize(("error", "text"), [(1, "not permitted"), (38, "not implemented")])
def test_binding_refused(error, text):
    command = [sys.executable, "-c", REFUSED, str(error), *(path for path in sys.path if path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode == 77:
        pytest.skip("this system has no filters for system calls")
    assert done.returncode == 0, done.stderr
    assert "not bound to NUMA node 0" in done.stdout and text in done.stdout


@pytest.mark.alone
def test_more_threads_are_not_slower_for_one_token():
    """As many workers as CPUs against one, at a size where a call is short; also in groups.

    Medians of interleaved runs, several times: other programs may take a CPU for a while, but a worker that
    spins where it should not, or a phase that waits for threads, slows every call several times over.
    """
    cpus = len(os.sched_getaffinity(0))
    where = [pool(1, 1), pool(cpus, 1), pool(1, cpus)]
    layers = [layer("Q8_0", 512, 256, one, experts=8) for one in where]
    x, ids, weights = torch.randn(1, 512), torch.arange(8)[None], torch.rand(1, 8)

    def median(made):
        times = []
        for _ in range(40):
            start = time.perf_counter()
            made(x, ids, weights)
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    for _ in range(6):
        rounds = [[median(made) for made in layers] for _ in range(3)]
        one, many, grouped = (min(times) for times in zip(*rounds, strict=True))
        if max(many, grouped) < 1.25 * one:
            return
    raise AssertionError(f"one thread {one * 1e6:.0f} us, {cpus} threads {many * 1e6:.0f}, groups {grouped * 1e6:.0f}")


def resident():
    """Anonymous memory of the process, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


@pytest.mark.parametrize("groups", [1, 2])
def test_a_deleted_layer_gives_its_memory_back(groups):
    """Up to the huge pages at the edges of its pieces, and what else the process took or freed meanwhile: 10 %."""
    where = pool(1, groups)
    matrix, part = cases.stored("Q8_0", 4096, 4096), cases.stored("Q8_0", 1024, 1024)
    other = Linear(cases.stored("Q8_0", 64, 64), pool=where)  # keeps a mapping alive
    gc.collect()
    before = resident()
    made = [Linear(matrix, pool=where) for _ in range(4)]
    experts = Experts(4, 1024, 1024, pool=where)
    for i in range(12):  # loading again replaces
        experts.load(i % 4, part, part, part)
    weights = sum(linear.nbytes for linear in made) + experts.nbytes
    assert weights > 80e6
    assert 0.9 < (resident() - before) / weights < 1.1
    del made, experts
    assert resident() - before < weights / 10
    assert other.nbytes
