"""Speed of a whole model as one native call: `python tests/engine/bench_program.py q4km --threads 1 2`.

Decode: single tokens after `--context` tokens. Every sample of 16 tokens stands between two plain reads, because the
read rate of a shared machine changes while the program runs; `share` is the stored bytes that the sample read a second
over the mean of those two. `outside` is the time of everything but products, experts and attention, Python included.
Prefill: prompts in steps of the runner's size, logits of the last token. `--modules` measures the same model module
by module as well.

On a machine that other programs keep busy, --cpu-time counts what the process itself used, in the reads too; with one
thread only. `best` lists the least time of each kind of operation in one step, in us.
"""

import argparse
import statistics
import time

import torch
from synthetic import VOCAB, Synthetic
from transformers import DynamicCache

from kt_core import kernels, programs
from kt_core.engine.loader import build
from kt_core.engine.runners.program import ProgramRunner
from kt_core.engine.step import Step
from kt_core.kernels.attention import Batch

KERNELS = {"linear", "experts", "attend", "heads", "head"}
SAMPLE = 16  # tokens between two reads
PROBE = 1 << 30  # bytes


class Feeder:
    """Sequences of a runner whose pages come one after the other."""

    def __init__(self, runner: ProgramRunner, sequences: int, tokens: int) -> None:
        self.runner, self.sequences = runner, sequences
        self.each = -(-tokens // runner.page)
        runner.allocate(sequences * self.each)
        self.tables = torch.arange(sequences * self.each, dtype=torch.int32).view(sequences, -1)

    def step(self, begin: int, count: int, wanted: bool = True) -> torch.Tensor:
        """`count` new tokens of every sequence, from position `begin` on."""
        page, b = self.runner.page, self.sequences
        positions = torch.arange(begin, begin + count)
        slots = (self.tables[:, positions // page].long() * page + positions % page).flatten()
        starts = torch.arange(0, b * count + 1, count, dtype=torch.int32)
        batch = Batch(self.tables, torch.full((b,), begin + count, dtype=torch.int32), starts)
        tokens = torch.randint(0, VOCAB, (b * count,))
        outputs = starts[1:].long() - 1 if wanted else torch.empty(0, dtype=torch.int64)
        return self.runner.forward(Step(tokens, positions.repeat(b), slots, batch, outputs, tuple(range(b))))

    def prompt(self, tokens: int) -> None:
        most = self.runner.max_tokens // self.sequences
        for begin in range(0, tokens, most):
            self.step(begin, min(most, tokens - begin), begin + most >= tokens)


class Reads:
    """Plain reads: bytes a second."""

    def __init__(self, clock) -> None:
        self.probe, self.clock = kernels.ReadProbe(PROBE), clock

    def rate(self) -> float:
        begin = self.clock()
        self.probe.rate()
        return PROBE / (self.clock() - begin)


def decode(runner, sequences, context, samples, nbytes, clock):
    feeder, reads = Feeder(runner, sequences, context + (samples + 2) * SAMPLE), Reads(clock)
    feeder.prompt(context)
    position = context
    for _ in range(SAMPLE):
        feeder.step(position, 1)
        position += 1
    rates, shares, outside, best = [], [], [], {}
    runner.code.keep_times()
    for _ in range(samples):
        before, begin, inside = reads.rate(), clock(), 0.0
        for _ in range(SAMPLE):
            runner.code.times()
            feeder.step(position, 1).argmax(-1)
            position += 1
            for kind, seconds in runner.code.times().items():
                best[kind] = min(best.get(kind, seconds), seconds)
                inside += seconds if kind in KERNELS else 0
        took = clock() - begin
        rates.append(sequences * SAMPLE / took)
        shares.append(nbytes * SAMPLE / took / ((before + reads.rate()) / 2))
        outside.append(1 - inside / took)
    runner.code.keep_times(False)
    least = {kind: round(1e6 * seconds) for kind, seconds in best.items()}
    print(f"  decode, {sequences} at once, context {context}: {spread(rates)} tok/s, read share {spread(shares, 100)} %,"
          f" outside {spread(outside, 100)} %; best: {least}", flush=True)  # fmt: skip


def spread(values, factor=1.0):
    values = [factor * value for value in values]
    return f"{statistics.median(values):.1f} ({min(values):.1f}..{max(values):.1f})"


def prefill(runner, tokens, repeats, clock):
    rates, kinds = [], []
    feeder = Feeder(runner, 1, tokens)
    runner.code.keep_times()
    for _ in range(repeats + 1):
        begin = clock()
        runner.code.times()
        feeder.prompt(tokens)
        rates.append(tokens / (clock() - begin))
        kinds.append(runner.code.times())
    runner.code.keep_times(False)
    last = {kind: round(1e3 * seconds, 1) for kind, seconds in kinds[-1].items() if seconds > 1e-4}
    print(f"  prefill {tokens}: {spread(rates[1:])} tok/s; ms of the last: {last}", flush=True)


def modules(model, tokens, clock):
    """transformers' own modules around the same kernels."""
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        for name, size, count in (("prefill", tokens, 1), ("decode", 1, 32)):
            begin = clock()
            for _ in range(count):
                model(torch.randint(0, VOCAB, (1, size)), past_key_values=cache, logits_to_keep=1)
            print(f"  modules, {name} {size}: {size * count / (clock() - begin):.1f} tok/s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["q4km", "q8_0", "bf16"])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prefill", type=int, nargs="*", default=[8, 16, 512, 2048])
    parser.add_argument("--sequences", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--modules", action="store_true")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--page-dtype", choices=["bfloat16", "float32"], default="bfloat16")
    args = parser.parse_args()
    if args.cpu_time and args.threads != [1]:
        parser.error("--cpu-time needs --threads 1")
    clock = time.process_time if args.cpu_time else time.perf_counter
    weights = Synthetic(args.kind, args.layers)
    begin = time.perf_counter()
    model = build(weights, lambda *_: None)
    loaded = time.perf_counter()
    program = programs.build(model)
    print(f"{args.kind}, {args.layers} layers: loaded in {loaded - begin:.1f} s, checked in "
          f"{time.perf_counter() - loaded:.1f} s; {weights.decoded_bytes() / 1e6:.0f} MB a token")  # fmt: skip
    for threads in args.threads:
        kernels.set_threads(threads)
        torch.set_num_threads(threads)
        print(f"{threads} thread(s), plain read {kernels.read_rate(PROBE) / 1e9:.1f} GB/s", flush=True)
        runner = ProgramRunner(program, 4096, getattr(torch, args.page_dtype))
        for tokens in args.prefill:
            prefill(runner, tokens, args.repeats, clock)
        for sequences in args.sequences:
            decode(runner, sequences, args.context, args.samples, weights.decoded_bytes(), clock)
        if args.modules:
            modules(model, 512, clock)


if __name__ == "__main__":
    main()
