"""What running together brings: python tests/engine/bench_engine.py MODEL [--sequences 1,2,4,8] [--prompt 128] [--tokens 32].

Greedy answers of so many requests at the same time, with either runner: total tokens per second of decoding, time between
two tokens of a request (median and the longest of a hundred), and prefill. The first run of each is left out; figures
are the median and the spread of the others.
"""

import argparse
import os
import statistics
import sys
import threading
import time
from itertools import pairwise
from typing import Any

import torch
from transformers.utils import logging as their_logging

from kt_core import kernels
from kt_core.engine.engine import Engine
from kt_core.engine.loader import build
from kt_core.engine.runners import runner_for
from kt_core.engine.runners.fitting import paged_runner
from kt_core.engine.runners.own import OwnCacheRunner
from kt_core.engine.tokenizer import load_tokenizer
from kt_core.models import resolve
from kt_core.types import Request, Sampling
from kt_core.weights import open_weights

RUNNERS = {
    "best": runner_for,
    "paged": lambda model, context: paged_runner(model, context, torch.bfloat16),
    "own": OwnCacheRunner,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--sequences", default="1,2,4,8")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--runners", default="best,paged,own")
    options = parser.parse_args()
    their_logging.set_verbosity_error()
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    files = resolve(options.model)
    model, tokenizer = build(open_weights(files), lambda *_: None), load_tokenizer(files)
    sys.stdout.write(
        f"{files.name}, {threads} threads, {kernels.info()['chosen']}; {options.prompt} + {options.tokens} tokens\n"
    )
    sys.stdout.write("runner sequences decode_tok/s spread between_ms p99_ms prefill_tok/s\n")
    sys.stdout.flush()
    for kind in options.runners.split(","):
        for count in map(int, options.sequences.split(",")):
            runner = RUNNERS[kind](model, 4096)
            engine = Engine(runner, tokenizer, max_running=count, pages=count * 64)
            runs = [measure(engine, count, options, seed) for seed in range(options.repeats + 1)][1:]
            engine.close(5)
            report(f"{kind} {count}", runs)


def measure(engine: Any, count: int, options: argparse.Namespace, seed: int) -> tuple[float, list[float], float]:
    """(tokens per second of decoding of all together, seconds between tokens, prompt tokens per second)."""
    random = torch.Generator().manual_seed(seed)
    times: list[list[float]] = [[] for _ in range(count)]

    def client(index: int) -> None:
        ids = torch.randint(0, 10_000, (options.prompt,), generator=random).tolist()
        sampling = Sampling(temperature=0.0)
        request = Request(
            "r", tokens=tuple(ids), sampling=sampling, max_tokens=options.tokens, ignore_eos=True, logprobs=0
        )
        times[index].append(time.perf_counter())
        for chunk in engine.submit(request):
            times[index] += [time.perf_counter()] * len(chunk.logprobs)

    clients = [threading.Thread(target=client, args=(index,)) for index in range(count)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    first, last = max(own[1] for own in times), min(own[-1] for own in times)  # all decode between these
    inside = [[at for at in own[1:] if first <= at <= last] for own in times]
    between = [b - a for own in inside for a, b in pairwise(own)]
    decoded = sum(len(own) - 1 for own in inside)
    prefill = count * options.prompt / (first - min(own[0] for own in times))
    return decoded / max(last - first, 1e-9), between, prefill


def report(name: str, runs: list[tuple[float, list[float], float]]) -> None:
    rates = [rate for rate, _, _ in runs]
    between = sorted(1e3 * seconds for _, run, _ in runs for seconds in run)
    spread = (max(rates) - min(rates)) / statistics.median(rates)
    prefill = statistics.median(rate for _, _, rate in runs)
    p99 = between[int(len(between) * 0.99)]
    line = (
        f"{name} {statistics.median(rates):.1f} {spread:.0%} {statistics.median(between):.1f} {p99:.1f} {prefill:.0f}\n"
    )
    sys.stdout.write(line)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
