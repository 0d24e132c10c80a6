"""Speed of a model of Qwen3-30B-A3B's shapes on a device and the CPU together: `python tests/device/bench_hybrid.py q4km`.

Decode: single tokens after `--context` tokens, medians of samples of 16. Prefill: a prompt in steps of `--chunk` tokens. Random
weights choose experts evenly, as the peers' do. `--experts` are those of each layer that lie on the device, as they are stored.
With `--trace` the tokens ask for the experts of a trace of routing.py, whatever the router says.
"""

import argparse
import logging
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
sys.path.insert(0, str(Path(__file__).parent))
import routing
from bench_program import SAMPLE, Feeder, spread
from synthetic import Synthetic

from kt_core import kernels
from kt_core.device import open_device
from kt_core.engine.loader import build
from kt_core.engine.placing import Placing
from kt_core.engine.runners import device_runner_for
from kt_core.operators.crossing import Asked, Crossing
from kt_core.operators.hybrid import HybridExperts
from kt_core.operators.streamed import Streamer

FAR = 1 << 62  # tokens: no step is streamed


def prefill(runner, tokens, repeats):
    rates, feeder = [], Feeder(runner, 1, tokens)
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        feeder.prompt(tokens)
        rates.append(tokens / (time.perf_counter() - begin))
    return spread(rates[1:])


def phases(runner, crossing, tokens, layers):
    """Where a prompt's time on the CPU goes, ms of a layer: it waits for rows, computes, and what is left is Python and more."""
    spent = {"waits": 0.0, "computes": 0.0}

    def timed(name, function):
        def run(*args):
            begin = time.perf_counter()
            function(*args)
            spent[name] += time.perf_counter() - begin

        return run

    own, reached = Asked.compute, crossing.device.reached
    feeder = Feeder(runner, 1, tokens)
    Asked.compute = timed("computes", own)
    crossing.device.reached = lambda: timed("waits", reached())
    try:
        begin = time.perf_counter()
        feeder.prompt(tokens)
        spent["all"] = time.perf_counter() - begin
    finally:
        Asked.compute = own
        del crossing.device.reached
    return {name: round(1e3 * seconds / layers, 2) for name, seconds in spent.items()}


def decode(runner, sequences, context, samples):
    feeder = Feeder(runner, sequences, context + (samples + 1) * SAMPLE)
    feeder.prompt(context)
    rates, position = [], context
    for _ in range(samples + 1):
        begin = time.perf_counter()
        for _ in range(SAMPLE):
            feeder.step(position, 1).argmax(-1)
            position += 1
        rates.append(sequences * SAMPLE / (time.perf_counter() - begin))
    return spread(rates[1:])


def without_experts(model, runner, context):
    """ms of a decoding step in which the CPU has nothing to compute: the device, and the way there and back."""
    layers = [module.kernel for module in model.modules() if isinstance(module, HybridExperts)]
    before = [kernel.elsewhere.clone() for kernel in layers]
    for kernel in layers:
        kernel.elsewhere.fill_(True)
    took = 1e3 / float(decode(runner, 1, context, 4).split()[0])
    for kernel, mask in zip(layers, before, strict=True):
        kernel.elsewhere.copy_(mask)
    return took


def traced(layers, runner, kind, context, steps):
    """tok/s of one sequence whose tokens follow a trace, without the first quarter of them, and what moved in a step."""
    trace = torch.from_numpy(getattr(routing, kind)(steps, len(layers), 3)).to(runner.crossing.device.torch)
    now = trace[0].clone()
    for number, layer in enumerate(layers):
        own = type(layer).forward.__get__(layer)
        layer.forward = lambda x, ids, weights, n=number, own=own: own(x, now[n].expand_as(ids).contiguous(), weights)
    feeder = Feeder(runner, 1, context + steps)
    feeder.prompt(context)
    for step, ids in enumerate(trace):
        if step == steps // 4:
            begin, before = time.perf_counter(), dict(runner.moved)
        now.copy_(ids)
        feeder.step(context + step, 1).argmax(-1)
    seconds, count = time.perf_counter() - begin, steps - steps // 4
    for layer in layers:
        del layer.forward
    each = {name: round((value - before[name]) / count, 1) for name, value in runner.moved.items()}
    return f"{count / seconds:.1f} tok/s, of a step {each}"


def profile(runner, context):
    """Where the device's time goes in 8 steps."""
    feeder = Feeder(runner, 1, context + 64)
    feeder.prompt(context)
    for step in range(2):
        feeder.step(context + step, 1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for step in range(8):
            feeder.step(context + 2 + step, 1)
    print(found.key_averages().table(sort_by="self_cuda_time_total", row_limit=28, max_name_column_width=70))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["q4km", "q8_0", "bf16"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--experts", type=int, default=0)
    parser.add_argument("--prompts", type=int, nargs="*", default=[512, 2048, 4096, 8192])
    parser.add_argument("--sequences", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--chunk", type=int, default=4096)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--strategy", default="uniform")
    parser.add_argument("--deferred", type=int, nargs="*", default=[])
    parser.add_argument(
        "--balance", type=int, nargs="*", default=[384], help="tokens for which copies take as long as the CPU"
    )
    parser.add_argument(
        "--compare", action="store_true", help="decode without the kernels of device/crossed.py and turning.py"
    )
    parser.add_argument("--trace", choices=["drifting", "even"], nargs="*", default=[])
    parser.add_argument(
        "--shares", type=float, nargs="*", default=[], help="of a prompt's experts that the CPU computes, tried as well"
    )
    parser.add_argument("--steps", type=int, default=192)
    parser.add_argument("--plain", action="store_true", help="decode without graphs as well")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="  %(message)s")
    kernels.set_threads(args.threads)
    print(f"plain read {kernels.read_rate(1 << 30) / 1e9:.1f} GB/s with {args.threads} threads", flush=True)
    measure(args, open_device(args.device))


def compared(runner, args):
    kernels_of_rows, files = runner.crossing._kernels, runner._rotations
    for name, rows, turns in (("rows copied", None, files), ("queries turned by torch", kernels_of_rows, []), ("both so", None, []), ("neither", kernels_of_rows, files)):  # fmt: skip
        runner.crossing._kernels, runner._rotations = rows, turns
        print(f"  decode, 1 at once, {name}: {decode(runner, 1, args.context, args.samples)} tok/s", flush=True)


def measure(args, device):
    crossing, streamer = Crossing(device), Streamer(device, 1)
    begin = time.perf_counter()
    placing = Placing(device, crossing, streamer, args.experts, args.strategy)
    model = build(Synthetic(args.kind, args.layers), lambda *_: None, placing=placing)
    print(f"{args.kind}, {args.layers} layers, {args.experts} experts of each on the device: loaded in "
          f"{time.perf_counter() - begin:.1f} s, {torch.cuda.memory_allocated() / 2**30 if device.kind == 'cuda' else 0:.1f} GiB there", flush=True)  # fmt: skip
    begin = time.perf_counter()
    runner = device_runner_for(model, 16384, torch.bfloat16, crossing, args.chunk, tuple(args.sequences))
    print(f"{type(runner).__name__} found in {time.perf_counter() - begin:.1f} s", flush=True)
    streamer.threshold, moves, runner.moves = FAR, runner.moves, []
    for count in args.sequences:
        print(f"  decode, {count} at once: {decode(runner, count, args.context, args.samples)} tok/s", flush=True)
    if args.compare:
        compared(runner, args)
    layers = [module for module in model.modules() if isinstance(module, HybridExperts)]
    for count in [*args.deferred, 0] if args.deferred else []:
        crossing.two_sets = count > 0
        for layer in layers[:-1]:
            layer.deferred = count
        print(f"  decode, {count} deferred: {decode(runner, 1, args.context, args.samples)} tok/s", flush=True)
    for kind in args.trace:
        for name, runner.moves in (("as placed", []), ("moving", moves)):
            rate = traced(layers, runner, kind, args.context, args.steps)
            print(f"  decode, {kind}, experts {name}: {rate}", flush=True)
    runner.moves = []
    for tokens in args.prompts:
        both = [(f"on both from {balance}", balance) for balance in args.balance]
        for name, threshold in (("on the CPU", FAR), *both, ("streamed", 1)):
            streamer.threshold = threshold
            print(f"  prefill {tokens}, experts {name}: {prefill(runner, tokens, args.repeats)} tok/s", flush=True)
        own, rows = streamer.part, crossing._kernels
        for share in args.shares:
            streamer.part = lambda tokens, share=share: 1 - share
            for name, crossing._kernels in (("", rows), (", rows copied", None)):
                rate = prefill(runner, tokens, args.repeats)
                print(f"  prefill {tokens}, {share} of the experts on the CPU{name}: {rate} tok/s", flush=True)
                print(f"    of a layer, ms: {phases(runner, crossing, tokens, len(layers))}", flush=True)
        streamer.part, crossing._kernels = own, rows
    streamer.threshold = FAR
    print(f"  a step of 1 without the experts' work: {without_experts(model, runner, args.context):.2f} ms", flush=True)
    if args.profile:
        profile(runner, args.context)
    if args.plain:
        runner = device_runner_for(model, 16384, torch.bfloat16, crossing, args.chunk)
        print(f"  decode without graphs: {decode(runner, 1, args.context, args.samples)} tok/s", flush=True)


if __name__ == "__main__":
    main()
