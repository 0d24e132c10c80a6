"""The same GGUF file here and with other engines, in turn: `python tests/engine/bench_peers.py FILE.gguf NAME=LLAMA_BENCH ...`.

A NAME ending in "+" runs with `-rtr 1` (ik_llama.cpp: repacked when it is loaded). Prompts are measured once a round;
decoding between two plain reads, in a new order each round, because the read rate of a shared machine changes while
the program runs. `--batched PROGRAM` is llama.cpp's llama-batched-bench, for `--parallel` sequences at once.
"""

import argparse
import json
import random
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch
from bench_program import PROBE, Feeder

from kt_core import kernels, programs
from kt_core.engine.loader import build
from kt_core.engine.runners.program import ProgramRunner
from kt_core.models.files import local_files
from kt_core.weights import open_weights

CONTEXT = 32
REPEATS = 2


class Here:
    """This engine, its weights in memory for all rounds."""

    def __init__(self, path: Path) -> None:
        self.program = programs.build(build(open_weights(local_files(path)), lambda *_: None))

    def prompt(self, tokens: int, threads: int) -> list[float]:
        feeder = Feeder(self._runner(threads), 1, tokens)
        return [tokens / seconds(feeder.prompt, tokens) for _ in range(REPEATS + 1)][1:]

    def tokens(self, count: int, threads: int, sequences: int = 1) -> list[float]:
        feeder = Feeder(self._runner(threads), sequences, CONTEXT + (REPEATS + 1) * count)
        feeder.prompt(CONTEXT)

        def some(begin: int) -> None:
            for at in range(begin, begin + count):
                feeder.step(at, 1).argmax(-1)

        begins = range(CONTEXT, CONTEXT + (REPEATS + 1) * count, count)
        return [sequences * count / seconds(some, begin) for begin in begins][1:]

    def _runner(self, threads: int) -> ProgramRunner:
        kernels.set_threads(threads)
        torch.set_num_threads(threads)
        return ProgramRunner(self.program, 4096, torch.bfloat16)


class Bench:
    """llama-bench of another engine: a process for each measurement."""

    def __init__(self, program: str, path: Path, repack: bool) -> None:
        self.words = [program, "-m", str(path), "-o", "json", "-r", str(REPEATS), *(["-rtr", "1"] if repack else [])]

    def prompt(self, tokens: int, threads: int) -> list[float]:
        return self._run("-t", threads, "-p", tokens, "-n", 0)

    def tokens(self, count: int, threads: int) -> list[float]:
        return self._run("-t", threads, "-p", 0, "-n", count)

    def _run(self, *words: object) -> list[float]:
        done = subprocess.run([*self.words, *map(str, words)], capture_output=True, text=True, check=True)
        samples: list[float] = json.loads(done.stdout)[0]["samples_ts"]
        return samples


def seconds(work: Callable[[int], None], number: int) -> float:
    begin = time.perf_counter()
    work(number)
    return time.perf_counter() - begin


def batched(program: str, path: Path, sequences: int, count: int, threads: int) -> float:
    """Tokens a second of that many sequences at once."""
    shape = ["-npp", CONTEXT, "-ntg", count, "-npl", sequences, "-c", 4096, "-t", threads]
    words = [program, "-m", str(path), "--output-format", "jsonl", *map(str, shape)]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    return float(rows[-1]["speed_tg"])


def told(what: str, found: dict[str, list[float]]) -> None:
    middle = {name: statistics.median(values) for name, values in found.items()}
    best = max(rate for name, rate in middle.items() if name != "kt")
    words = ", ".join(f"{n} {middle[n]:.1f} ({min(v):.1f}..{max(v):.1f})" for n, v in found.items())
    print(f"{what}: {words}; {middle['kt'] / best:.2f} times the best", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("peers", nargs="+")
    parser.add_argument("--prompts", type=int, nargs="*", default=[8, 16, 512, 2048])
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 1])
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batched")
    parser.add_argument("--parallel", type=int, default=4)
    args = parser.parse_args()
    engines: dict[str, Here | Bench] = {"kt": Here(args.file)}
    for name, _, program in (word.partition("=") for word in args.peers):
        engines[name] = Bench(program, args.file, name.endswith("+"))
    most = max(args.threads)
    for threads in args.threads:
        found: dict[str, list[float]] = {name: [] for name in engines}
        reads = []
        for number in range(args.rounds):
            for name in random.Random(number).sample(list(engines), len(engines)):
                kernels.set_threads(threads)
                before = kernels.read_rate(PROBE)
                found[name] += engines[name].tokens(args.count, threads)
                kernels.set_threads(threads)
                reads += [before, kernels.read_rate(PROBE)]
        told(f"decode, {threads} thread(s)", found)
        print(f"  plain reads {min(reads) / 1e9:.1f} to {max(reads) / 1e9:.1f} GB/s", flush=True)
    for tokens in args.prompts:
        told(f"prompt of {tokens}", {name: engine.prompt(tokens, most) for name, engine in engines.items()})
    if args.batched:
        here, there = [], []
        for _ in range(args.rounds):
            there.append(batched(args.batched, args.file, args.parallel, args.count, most))
            here += engines["kt"].tokens(args.count, most, args.parallel)  # type: ignore[call-arg]
        told(f"{args.parallel} sequences at once", {"kt": here, "llama.cpp": there})


if __name__ == "__main__":
    main()
