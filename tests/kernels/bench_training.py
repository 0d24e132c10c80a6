"""Speed of training through one layer's experts, against the bfloat16 peak of the same threads measured just before.

usage: python tests/kernels/bench_training.py [--hidden 1024] [--intermediate 512] [--experts 32] [--slots 4]
       [--tokens 512] [--rank 8] [--format BF16] [--threads 2] [--repeats 7]

Arithmetic that counts: 3 products forward and 3 back (gradients of inputs; experts are frozen), and the low-rank ones.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "weights")]
import cases  # noqa: E402

from kt_core.kernels import Experts, peak_rate, set_threads, units  # noqa: E402
from kt_core.kernels.training import LoraFactors, train  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("hidden", 1024), ("intermediate", 512), ("experts", 32), ("slots", 4), ("tokens", 512)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("rank", 8), ("threads", 2), ("repeats", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--format", default="BF16")
    a = parser.parse_args()
    set_threads(a.threads)
    layer = Experts(a.experts, a.hidden, a.intermediate)
    shapes = [(a.intermediate, a.hidden), (a.intermediate, a.hidden), (a.hidden, a.intermediate)]
    for e in range(a.experts):
        layer.load(e, *(cases.stored(a.format, *shape, seed=i) for i, shape in enumerate(shapes)))
    x = torch.randn(a.tokens, a.hidden).bfloat16().requires_grad_()
    ids = torch.stack([torch.randperm(a.experts)[: a.slots] for _ in range(a.tokens)])
    route = torch.rand(a.tokens, a.slots).requires_grad_()
    lora = tuple(
        LoraFactors(
            torch.randn(a.experts, a.rank, cols).requires_grad_(), torch.randn(a.experts, rows, a.rank).requires_grad_()
        )
        for rows, cols in shapes
    )
    dy = torch.randn(a.tokens, a.hidden).bfloat16()
    times: dict[str, list[float]] = {"forward": [], "back": []}
    for _ in range(a.repeats + 1):
        begin = time.perf_counter()
        y = train(layer, x, ids, route, lora if a.rank else None, 1.0)
        middle = time.perf_counter()
        y.backward(dy)
        times["forward"].append(middle - begin)
        times["back"].append(time.perf_counter() - middle)
    unit = "tile_bf16" if "tile_bf16" in units() else "bf16"
    peak = peak_rate(unit, seconds=0.5)
    weights = sum(rows * cols for rows, cols in shapes)
    low_rank = a.rank * sum(rows + cols for rows, cols in shapes)
    rows = a.tokens * a.slots
    work = {"forward": 2 * rows * (weights + low_rank), "back": 2 * rows * (weights + 3 * low_rank)}
    for name, found in times.items():
        seconds = statistics.median(found[1:])
        rate = work[name] / seconds
        print(f"{name:8} {seconds * 1e3:8.1f} ms  {rate / 1e9:8.1f} GFLOP/s  {100 * rate / peak:5.1f} % of {unit}")
    both = sum(statistics.median(found[1:]) for found in times.values())
    rate = sum(work.values()) / both
    print(
        f"{'both':8} {both * 1e3:8.1f} ms  {rate / 1e9:8.1f} GFLOP/s  {100 * rate / peak:5.1f} %  peak {peak / 1e9:.0f}"
    )


if __name__ == "__main__":
    main()
