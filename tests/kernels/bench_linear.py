"""Speed on this machine: `python tests/kernels/bench_linear.py [threads or formats or tier=NAME or experts ...]`.

Decode: GB/s of packed weights at one row, over more weights than the caches hold, and its share of a plain
read just before and after; GFLOP/s at 2, 4 and 8 rows. Prefill: GFLOP/s by the direct path and by the prefill
path at several row counts, weights of one layer; the thresholds in native/isa come from these. Median and
spread of the repeats.
"""

import statistics
import sys
import time

import numpy as np
import torch

from kt_core.formats import FORMATS
from kt_core.kernels import POLICY, Experts, Linear, info, read_rate, set_threads
from kt_core.kernels.native import load
from kt_core.weights import Matrix

ROWS, COLS = 2048, 2048
COUNTS = (16, 64, 256, 512)
NEVER = 1 << 30
MEMORY = 1 << 30  # more than any last-level cache


def stored(fmt, rows, cols, seed=0):
    """Random bits in the stored form; speed does not depend on values, but NaN and subnormals are avoided."""
    size = FORMATS[fmt].block_bytes * cols // FORMATS[fmt].block_size
    data = np.random.default_rng(seed).integers(64, 112, (rows, size), dtype=np.uint8)
    return Matrix(format=fmt, rows=rows, cols=cols, data=data)


def seconds(call, repeats):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times), min(times), max(times)


def rate(amount, took):
    median, low, high = took
    return f"{amount / median / 1e9:7.1f} ({amount / high / 1e9:.1f}..{amount / low / 1e9:.1f})"


def bench(fmt, tier=None):
    matrix = stored(fmt, ROWS, COLS)
    layers = [Linear(matrix, tier=tier)]
    while sum(layer.nbytes for layer in layers) < MEMORY:
        layers.append(Linear(matrix, tier=tier))
    total = sum(layer.nbytes for layer in layers)
    flops = 2 * ROWS * COLS * len(layers)
    before = read_rate(MEMORY, 5)
    few = {n: torch.randn(n, COLS) for n in (1, 2, 4, 8)}
    took = {n: seconds(lambda x=x: [layer(x) for layer in layers], 7) for n, x in few.items()}
    share = total / took[1][0] / max(before, read_rate(MEMORY, 5))
    columns = [f"{rate(total, took[1])} GB/s {share:4.0%}"]
    columns += [f"{n * flops / took[n][0] / 1e9:6.1f}" for n in (2, 4, 8)]
    return " ".join([*columns, "GFLOP/s; direct and prefill at", paths(layers[0])])


def paths(layer):
    """GFLOP/s of the direct and of the prefill path at each of COUNTS."""
    out = []
    for rows in COUNTS:
        x = torch.randn(rows, COLS)
        rates = []
        for first in (NEVER, 1):
            load().force_prefill(first)
            rates.append(2 * rows * ROWS * COLS / seconds(lambda x=x: layer(x), 9)[0] / 1e9)
        out.append(f"{rows}: {rates[0]:.0f} {rates[1]:.0f}")
    load().force_prefill(0)
    return ", ".join(out)


def bench_experts(fmt, experts=64, hidden=2048, intermediate=768, chosen=8):
    layer = Experts(experts, hidden, intermediate)
    gate, down = stored(fmt, intermediate, hidden), stored(fmt, hidden, intermediate)
    for index in range(experts):
        layer.load(index, gate, gate, down)
    x, weights = torch.randn(1, hidden), torch.rand(1, chosen)
    steps = [torch.arange(i, i + chosen).reshape(1, -1) for i in range(0, experts, chosen)]
    decode = seconds(lambda: [layer(x, ids, weights) for ids in steps], 15)
    many = torch.randn(512, hidden)
    ids = torch.stack([torch.randperm(experts)[:chosen] for _ in range(512)])
    prefill = seconds(lambda: layer(many, ids, torch.rand(512, chosen)), 5)
    return rate(layer.nbytes, decode), rate(2 * 512 * chosen * 3 * hidden * intermediate, prefill)


def main():
    torch.set_num_threads(1)
    threads = [int(word) for word in sys.argv[1:] if word.isdigit()] or [1, 2]
    formats = [word for word in sys.argv[1:] if word in POLICY] or list(POLICY)
    tiers = [word[5:] for word in sys.argv[1:] if word.startswith("tier=")] or [None]
    for n in threads:
        set_threads(n, list(range(n)))
        print(f"{n} threads, tier {info()['chosen']}, {info()['note'] or 'pinned'}")
        print(f"  plain read      {read_rate(MEMORY, 9) / 1e9:7.1f} GB/s")
        for fmt in formats:
            for tier in tiers:
                print(f"  linear  {fmt:7} {tier or ''} {bench(fmt, tier)}", flush=True)
        for fmt in formats if "experts" in sys.argv else []:
            decode, prefill = bench_experts(fmt)
            print(f"  experts {fmt:7} {decode} GB/s  {prefill} GFLOP/s", flush=True)


if __name__ == "__main__":
    main()
