"""Speed of the expert kernels: `python tests/kernels/bench_experts.py --threads 1 2 --formats Q8_0 Q4_K`.

Calls go round over layers that no cache holds. Every sample stands between two plain reads, because the read
rate of a shared machine changes while the program runs; `share` is the median, over the samples, of the touched
weight bytes a second over the mean of those two. `panels` counts bytes as packed, `stored` as in the file.

On a machine that other programs keep busy, --cpu-time counts what the process itself used, in the reads too; with
one thread only.

Two kinds of calls: T tokens that choose their experts at random (--tokens), and T tokens that all choose the
same experts (--rows), so that each expert gets T rows; these are given in GFLOP/s as well.
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from kt_core.formats import FORMATS
from kt_core.kernels import POLICY, Experts, info, read_rate, set_threads
from kt_core.weights import Matrix

# hidden, intermediate, experts, chosen
SHAPES = {"qwen3": (2048, 768, 128, 8), "deepseek": (7168, 2048, 32, 8)}

FORMATS_SHOWN = [
    "BF16",
    "Q8_0",
    "Q4_0",
    "Q4_1",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_XS",
    "MXFP4",
    "Q3_K",
    "Q2_K",
    "IQ3_XXS",
    "IQ2_XXS",
    "IQ1_S",
]


def cached():
    """MiB of the last-level cache; 32 where the system does not say."""
    try:
        return int(Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().rstrip("K\n")) >> 10
    except (OSError, ValueError):
        return 32


def stored(fmt, rows, cols, seed=0):
    """Random bits in the stored form; speed does not depend on values, but NaN and subnormals are avoided."""
    size = FORMATS[fmt].block_bytes * cols // FORMATS[fmt].block_size
    data = np.random.default_rng(seed).integers(64, 112, (rows, size), dtype=np.uint8)
    return Matrix(format=fmt, rows=rows, cols=cols, data=data)


@dataclass
class Weights:
    """Layers of one format and shape, and the bytes of one expert, packed and stored."""

    layers: list
    experts: int
    chosen: int
    hidden: int
    weights: int
    packed: int
    stored: int


def build(fmt, shape, limit):
    """As many layers as hold more than `limit` bytes, the last with as many experts as are missing."""
    hidden, intermediate, experts, chosen = SHAPES[shape]
    gate, down = stored(fmt, intermediate, hidden), stored(fmt, hidden, intermediate)
    one = Experts(1, hidden, intermediate)
    one.load(0, gate, gate, down)
    packed = one.nbytes
    experts = max(2 * chosen, min(experts, -(-limit // packed)))
    layers = []
    for _ in range(max(1, -(-limit // (packed * experts)))):
        layer = Experts(experts, hidden, intermediate)
        for index in range(experts):
            layer.load(index, gate, gate, down)
        layers.append(layer)
    weights = 3 * hidden * intermediate
    size = weights // FORMATS[fmt].block_size * FORMATS[fmt].block_bytes
    return Weights(layers, experts, chosen, hidden, weights, packed, size)


def calls(w, tokens, same, seed):
    """Arguments of calls that go once round the layers' experts, and how many experts they touch."""
    rng = np.random.default_rng(seed)
    out, touched = [], 0
    for layer in w.layers:
        order = rng.permutation(w.experts)
        for first in range(0, w.experts - w.chosen + 1, w.chosen):
            if same:
                ids = np.tile(order[first : first + w.chosen], (tokens, 1))
            else:
                ids = np.stack([rng.permutation(w.experts)[: w.chosen] for _ in range(tokens)])
            if not same and tokens == 1:
                ids[0] = order[first : first + w.chosen]
            touched += len(np.unique(ids))
            out.append((layer, torch.from_numpy(ids.astype(np.int64))))
    return out, touched


@cache
def memory(size):
    return np.ones(size // 8, np.int64)


def read(options):
    """Bytes a second of a plain read, the best of three."""
    if not options.cpu_time:
        return read_rate(options.probe, 3)
    best = 0.0
    for _ in range(3):
        start = time.process_time()
        memory(options.probe).sum()
        best = max(best, options.probe / (time.process_time() - start))
    return best


def sample(w, tokens, same, options, seed):
    """Samples (seconds a round, read before, read after), and experts touched in a round."""
    clock = time.process_time if options.cpu_time else time.perf_counter
    plan, touched = calls(w, tokens, same, seed)
    x, route = torch.randn(tokens, w.hidden), torch.rand(tokens, w.chosen)

    def turn():
        for layer, ids in plan:
            layer(x, ids, route)

    turn()
    start = clock()
    turn()
    rounds = max(1, round(options.sample / max(clock() - start, 1e-6)))
    out, before = [], read(options)
    for _ in range(options.repeats):
        start = clock()
        for _ in range(rounds):
            turn()
        took = (clock() - start) / rounds
        after = read(options)
        out.append((took, before, after))
        before = after
    return out, touched, len(plan)


def spread(values, digits=1):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}..{max(values):.{digits}f})"


def measure(w, fmt, shape, threads, tokens, same, options):
    samples, touched, count = sample(w, tokens, same, options, seed=tokens)
    bytes_ = touched * w.packed
    rates = [bytes_ / took / 1e9 for took, _, _ in samples]
    reads = [(before + after) / 2e9 for _, before, after in samples]
    share = [rate / read for rate, read in zip(rates, reads, strict=True)]
    flops = 2 * count * tokens * w.chosen * w.weights
    row = {
        "format": fmt, "shape": shape, "threads": threads, "tokens": tokens, "same": same,
        "call_us": statistics.median(took for took, _, _ in samples) / count * 1e6,
        "gbs": statistics.median(rates), "read": statistics.median(reads), "share": statistics.median(share),
        "share_low": min(share), "share_high": max(share),
        "share_stored": statistics.median(share) * w.stored / w.packed,
        "gflops": statistics.median(flops / took / 1e9 for took, _, _ in samples),
        "bits": 8 * w.packed / w.weights, "bits_stored": 8 * w.stored / w.weights,
    }  # fmt: skip
    print(
        f"{shape:8} {fmt:8} {threads:2} threads {tokens:3} {'rows each' if same else 'tokens   '} "
        f"{row['call_us']:7.0f} us {spread(rates):20} GB/s of {spread(reads):20} "
        f"panels {row['share']:4.0%} ({min(share):.0%}..{max(share):.0%}) stored {row['share_stored']:4.0%} "
        f"{row['gflops']:7.1f} GFLOP/s {row['bits']:.2f} bits",
        flush=True,
    )
    return row


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--formats", nargs="+", default=FORMATS_SHOWN, choices=list(POLICY))
    parser.add_argument("--shapes", nargs="+", default=["qwen3"], choices=list(SHAPES))
    parser.add_argument("--tokens", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--rows", type=int, nargs="*", default=[])
    parser.add_argument("--memory", type=int, default=max(640, 4 * cached()), help="MiB of a format, at least")
    parser.add_argument("--probe", type=int, default=max(256, 4 * cached()), help="MiB of a plain read")
    parser.add_argument("--sample", type=float, default=0.06, help="seconds of a sample")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--unpinned", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    options.probe <<= 20
    return options


def main():
    options = arguments()
    torch.set_num_threads(1)
    rows = []
    for shape in options.shapes:
        for fmt in options.formats:
            set_threads(max(options.threads))
            weights = build(fmt, shape, options.memory << 20)
            for threads in options.threads:
                set_threads(threads, None if options.unpinned else list(range(threads)))
                for tokens, same in [(t, False) for t in options.tokens] + [(t, True) for t in options.rows]:
                    rows.append(measure(weights, fmt, shape, threads, tokens, same, options))
            del weights
    if options.json:
        Path(options.json).write_text(json.dumps({"kernels": str(info()), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
