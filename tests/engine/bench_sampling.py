"""What choosing tokens costs beside a step: `python tests/engine/bench_sampling.py [q4km] [--sequences 8] [--threads 2]`.

A step of the 8-layer Qwen3-MoE shape, then the choice of one token for each sequence with every kind of sampling, in turn,
because rates of a shared machine change. Logits fall with their rank as a language model's do (p ~ rank^-1.3, in any order; --fall 2.2 is nearer
to what models write). Times are those of the wall, in the middle; the share is that of the fastest step. With `--tokenizer FOLDER` grammars are measured too.
"""

import argparse
import statistics
import time

import numpy as np
import torch
from bench_program import Feeder
from synthetic import VOCAB, Synthetic

from kt_core import kernels, programs
from kt_core.engine import sampler
from kt_core.engine.constraint import Grammars
from kt_core.engine.loader import build
from kt_core.engine.runners.program import ProgramRunner
from kt_core.kernels.sampling import choose
from kt_core.types import Sampling

KINDS = {
    "greedy": Sampling(temperature=0.0),
    "greedy, penalties": Sampling(temperature=0.0, repetition_penalty=1.1, frequency_penalty=0.5),
    "temperature": Sampling(temperature=0.8),
    "top-k 20, top-p 0.8": Sampling(temperature=0.7, top_k=20, top_p=0.8),
    "top-p 0.95": Sampling(top_p=0.95),
    "min-p 0.05": Sampling(min_p=0.05),
    "typical-p 0.9": Sampling(typical_p=0.9),
}
GRAMMARS = {
    "JSON": ('start: %json {"type": "object"}', '{"name": "what a wonderful day", "x": [1, 2.5, {"y": null}]}'),
    "an expression": ("start: /[a-z ]{1,200}[0-9]+/", "some text that goes on 12"),
}


def logits(sequences, fall):
    ranks, random = -fall * np.log(np.arange(1, VOCAB + 1)), np.random.default_rng(0)
    return [(random.permutation(ranks) + random.normal(0, 0.1, VOCAB)).astype(np.float32) for _ in range(sequences)]


def timed(function):
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def chosen(rows, states, s):
    """A step's choice, as the engine makes it."""
    found = choose([sampler.row(row, s, state) for row, state in zip(rows, states, strict=True)])
    return [sampler.checked(one, state) for one, state in zip(found, states, strict=True)]


def sampling(args):
    weights = Synthetic(args.kind, 8)
    runner = ProgramRunner(programs.build(build(weights, lambda *_: None)), 4096, torch.bfloat16)
    kernels.set_threads(args.threads)
    torch.set_num_threads(args.threads)
    feeder = Feeder(runner, args.sequences, 64 + args.rounds + 2)
    feeder.prompt(64)
    rows = logits(args.sequences, args.fall)
    states = {kind: [sampler.start(s, range(1000), VOCAB) for _ in rows] for kind, s in KINDS.items()}
    steps, took = [], {kind: [] for kind in [*KINDS, "log-probabilities, 5 most likely"]}
    for position in range(64, 64 + args.rounds):
        begin = time.perf_counter()
        feeder.step(position, 1)
        steps.append(time.perf_counter() - begin)
        for kind, s in KINDS.items():
            took[kind].append(timed(lambda: chosen(rows, states[kind], s)))  # noqa: B023
        took["log-probabilities, 5 most likely"].append(timed(lambda: [sampler.logprobs(row, 5, 5) for row in rows]))
    step = min(steps)
    print(f"step of {args.sequences}: {1e3 * step:.1f} ms at least, {1e3 * statistics.median(steps):.1f} in the middle")
    for kind, seconds in took.items():
        middle = statistics.median(seconds)
        print(f"{kind:34} {1e6 * middle / args.sequences:6.0f} us each, {100 * middle / step:5.2f} % of the step")


def masks(folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    begin = time.perf_counter()
    grammars = Grammars(tokenizer, len(tokenizer), frozenset({tokenizer.eos_token_id}))
    print(f"{len(tokenizer)} tokens read in {time.perf_counter() - begin:.2f} s")
    for name, (grammar, text) in GRAMMARS.items():
        begin = time.perf_counter()
        constraint = grammars.start(grammar)
        compiled, seconds = time.perf_counter() - begin, []
        for token in tokenizer.encode(text, add_special_tokens=False):
            started = time.perf_counter()  # the mask is computed in another thread
            constraint.bounds()
            seconds.append(time.perf_counter() - started)
            constraint.accept(token)
        print(f"{name}: compiled in {1e3 * compiled:.1f} ms; a mask {1e3 * statistics.median(seconds):.3f} ms in the middle, "
              f"{1e3 * max(seconds):.1f} ms at most")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?", default="q4km", choices=["q4km", "q8_0", "bf16"])
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--fall", type=float, default=1.3)
    parser.add_argument("--tokenizer")
    args = parser.parse_args()
    sampling(args)
    if args.tokenizer:
        masks(args.tokenizer)


if __name__ == "__main__":
    main()
