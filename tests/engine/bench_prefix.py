"""What prefixes on disk bring and cost: python tests/engine/bench_prefix.py MODEL|q4km|q8_0|bf16 [--tokens 2048].

A prompt's time to its first token: computed, found in memory, and read from disk by an engine that has just started,
with the files in the system's cache and without. Then the time between two tokens of one request while others of 512 tokens
end one after the other, with pages written behind and without, in turns. Medians and spreads; a name of a format is
the 8-layer model of Qwen3-30B-A3B's shapes.
"""

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import tinymodel
import torch
from synthetic import TYPES, Synthetic

from kt_core.engine.disk import Folder
from kt_core.engine.engine import Engine
from kt_core.engine.loader import build
from kt_core.engine.runners import runner_for
from kt_core.models import resolve
from kt_core.types import Request, Sampling
from kt_core.weights import open_weights

BESIDE = 512  # tokens of a prompt beside a decoding one
ANSWER = 129  # tokens of that one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    known = options.model in TYPES
    model = build(Synthetic(options.model, 8) if known else open_weights(resolve(options.model)), lambda *_: None)
    runner = runner_for(model, 4096)
    with tempfile.TemporaryDirectory(dir=Path.home() / ".cache") as folder:
        first_token(runner, Path(folder), options)
    with tempfile.TemporaryDirectory(dir=Path.home() / ".cache") as folder:
        between(runner, Path(folder), options)


def engine(runner, folder):
    disk = Folder(folder, b"bench", runner.page_bytes, 16 << 30) if folder else None
    return Engine(runner, tinymodel.tokenizer(), pages=256, disk=disk)


def ask(running, seed, tokens, count):
    ids = torch.randint(300, 10_000, (tokens,), generator=torch.Generator().manual_seed(seed)).tolist()
    request = Request("r", tokens=tuple(ids), sampling=Sampling(temperature=0.0), max_tokens=count, ignore_eos=True)
    return running.submit(request)


def first_token(runner, folder, options) -> None:
    """Seconds to the first token, by where the prompt was."""
    times = {"computed": [], "in memory": [], "on disk, cached": [], "on disk": []}
    for seed in range(options.repeats):
        running = engine(runner, folder)
        for name in ("computed", "in memory"):
            times[name].append(prefill(running, seed, options.tokens))
        running.close(600)
        for name in ("on disk, cached", "on disk"):
            if name == "on disk":
                drop(folder)
            running = engine(runner, folder)
            times[name].append(prefill(running, seed, options.tokens))
            running.close(600)
    size = options.tokens // runner.page * runner.page_bytes
    say(f"{options.tokens} tokens, {size / 2**20:.0f} MiB of pages, {type(runner).__name__}")
    for name, seconds in times.items():
        say(f"  {name}: {spread(seconds, 1e3)} ms")


def prefill(running, seed, tokens) -> float:
    return list(ask(running, seed, tokens, 1))[-1].timings.prefill


def drop(folder) -> None:
    """Out of the system's cache."""
    for file in (f for f in folder.rglob("*") if f.is_file()):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def between(runner, folder, options) -> None:
    """Milliseconds between two tokens of one request while others end, and tokens per second of it."""
    found = {"without a disk": [], "written behind": []}
    forward, times = runner.forward, []

    def timed(step):
        """Steps in which something decodes; prompts beside come in larger pieces."""
        result = forward(step)
        if 1 in step.batch.starts.diff():
            times.append(time.perf_counter())
        return result

    runner.forward = timed
    for seed in range(2 * options.repeats):
        name = list(found)[seed % 2]
        running = engine(runner, folder if name == "written behind" else None)
        stop = threading.Event()

        def others(running=running, seed=seed, stop=stop) -> None:
            number = 0
            while not stop.is_set():
                list(ask(running, 1000 * (seed + 1) + number, BESIDE, 1))
                number += 1

        times.clear()
        stream = ask(running, seed, 64, ANSWER)
        beside = threading.Thread(target=others)
        beside.start()
        list(stream)
        stop.set()
        beside.join()
        running.close(600)
        found[name].append([1e3 * (b - a) for a, b in pairwise(times)])
    for name, runs in found.items():
        every = sorted(ms for run in runs for ms in run)
        rates = [1e3 * len(run) / sum(run) for run in runs]
        say(
            f"  {name}: {spread(rates)} tok/s, between {statistics.median(every):.1f} ms, p99 {every[int(len(every) * 0.99)]:.1f} ms"
        )


def spread(values, factor=1.0) -> str:
    values = [factor * value for value in values]
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
