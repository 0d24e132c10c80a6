"""Models of several shapes on a device and the CPU together, beside what the memories and the link allow:
`python tests/device/bench_shapes.py air FP8_BLOCK --layers 16 --experts 16`.

Decode: medians of samples of 16 single tokens; its bound is the larger of the experts' bytes by the CPU's plain read and the device's
bytes by its memory's rate, and 20 us a layer. Prefill: one prompt, on the CPU, on both sides and streamed; its bound the better of the CPU's own rate and
of the larger of the copies' time and the device's: what it computes with nothing to copy is not known here, so copies alone count.
"""

import argparse
import logging
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
sys.path.insert(0, str(Path(__file__).parent))
import bench_program
from bench_hybrid import FAR, decode, prefill
from shapes import SHAPES, Shaped

from kt_core import kernels
from kt_core.device import open_device
from kt_core.engine.loader import build
from kt_core.engine.placing import Placing
from kt_core.engine.runners import device_runner_for
from kt_core.operators.crossing import Crossing
from kt_core.operators.hybrid import HybridExperts
from kt_core.operators.streamed import Streamer

LAYER = 20e-6  # seconds


def rates(device: torch.device) -> tuple[float, float]:
    """Bytes a second that the device reads, by a sum over 2 GiB, and that reach it from pinned memory."""
    if device.type == "cpu":
        return kernels.read_rate(1 << 28), kernels.read_rate(1 << 28)
    large = torch.ones(1 << 30, dtype=torch.bfloat16, device=device)
    pinned, there = (
        torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True),
        torch.empty(1 << 30, dtype=torch.uint8, device=device),
    )
    found = []
    for run, size in ((large.sum, 2 << 30), (lambda: there.copy_(pinned, non_blocking=True), 1 << 30)):
        times = []
        for _ in range(6):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        found.append(size / statistics.median(times[1:]))
    return found[0], found[1]


def decoding(args, weights, runner, moe, layers, read, memory) -> None:
    for count in args.sequences:
        rate = float(decode(runner, count, 32, args.samples).split()[0])
        share = weights.per_token / weights.count
        asked = (1 - (1 - share) ** count) / share  # experts that so many tokens ask for, of one token's
        here, there = weights.token_bytes(moe, args.experts, asked)
        seconds = max(here / read, there / memory) + LAYER * layers
        print(f"  decode, {count} at once: {rate:.1f} tok/s, {100 * rate * seconds / count:.0f} % of the bound ({1e3 * seconds:.2f} ms: the CPU "
              f"{1e3 * here / read:.2f}, the device {1e3 * there / memory:.2f}), a step {1e3 * count / rate:.2f} ms", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=list(SHAPES))
    parser.add_argument("form")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--experts", type=int, default=0)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--prompts", type=int, nargs="*", default=[8192])
    parser.add_argument("--balance", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=8192)
    parser.add_argument("--sequences", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--samples", type=int, default=6)
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="  %(message)s")
    kernels.set_threads(args.threads)
    device = open_device(args.device)
    memory, link = rates(device.torch)
    weights = Shaped(args.shape, args.form, args.layers)
    bench_program.VOCAB = weights.vocabulary
    crossing, streamer = Crossing(device), Streamer(device, 1)
    begin = time.perf_counter()
    model = build(weights, lambda *_: None, placing=Placing(device, crossing, streamer, args.experts, "uniform"))
    runner = device_runner_for(model, 16384, torch.bfloat16, crossing, args.chunk, tuple(args.sequences))
    layers, moe = model.config.num_hidden_layers, sum(isinstance(m, HybridExperts) for m in model.modules())
    read = kernels.read_rate(1 << 30)
    print(f"{args.shape} {args.form}, {layers} layers, {args.experts} experts of each there, {type(runner).__name__}, loaded in "
          f"{time.perf_counter() - begin:.0f} s; GB/s: plain read {read / 1e9:.0f}, device {memory / 1e9:.0f}, link {link / 1e9:.1f}", flush=True)  # fmt: skip
    streamer.threshold, runner.moves = FAR, []
    with torch.inference_mode():
        decoding(args, weights, runner, moe, layers, read, memory)
        copies = weights.token_bytes(moe, args.experts, weights.count / weights.per_token)[0] / link
        for tokens in args.prompts:
            for name, threshold in (
                ("on the CPU", FAR),
                (f"on both from {args.balance}", args.balance),
                ("streamed", 1),
            ):
                streamer.threshold = threshold
                print(f"  prefill {tokens}, {name}: {prefill(runner, tokens, 1)} tok/s; copies alone {tokens / copies:.0f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
