"""What HTTP, text and Python cost beside the steps: python tests/server/bench_stream.py [q4km] [--sequences 8] [--tokens 200].

The 8-layer Qwen3-MoE shape with a tokenizer of as many tokens. In turn, three times: steps alone, one after the other, of random tokens;
and as many clients in another process that stream sampled answers. The share is what a step takes longer there, in the middle.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import httpx

PROMPT = 64


async def streaming(url, count, tokens):
    """Seconds between the events of all clients."""
    between = []

    async def one(http, seed):
        prompt = [random.Random(seed).randrange(1000, 150000) for _ in range(PROMPT)]
        body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "seed": seed, "stream": True}
        times = []
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                times += [time.perf_counter()] if line.startswith("data: {") else []
        between.extend(b - a for a, b in pairwise(times[count + 2 :]))  # the others' prompts come before

    async with httpx.AsyncClient(base_url=url, timeout=300, trust_env=False) as http:
        await asyncio.gather(*(one(http, seed) for seed in range(count)))
    return between


def tokenizer(vocab):
    """Byte-level, with the 256 bytes and texts of five letters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = dict.fromkeys(["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())])
    letters = random.Random(0)
    while len(words) < vocab:
        words["Ġ" * letters.randrange(2) + "".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=5))] = None
    made = Tokenizer(models.BPE(vocab={word: id for id, word in enumerate(words)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?", default="q4km", choices=["q4km", "q8_0", "bf16"])
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))
    import torch
    from bench_program import Feeder
    from live import Running
    from synthetic import VOCAB, Synthetic

    from kt_core import kernels, programs
    from kt_core.engine.engine import Engine
    from kt_core.engine.loader import build
    from kt_core.engine.runners.program import ProgramRunner
    from kt_core.server.serve import SWITCH_SECONDS
    from kt_core.server.state import State

    program = programs.build(build(Synthetic(args.kind, 8), lambda *_: None))
    kernels.set_threads(args.threads)
    torch.set_num_threads(args.threads)
    length = PROMPT + args.tokens + 1
    feeder = Feeder(ProgramRunner(program, 4096, torch.bfloat16), args.sequences, length)
    engine = Engine(ProgramRunner(program, 4096, torch.bfloat16), tokenizer(VOCAB), pages=args.sequences * 32)
    sys.setswitchinterval(SWITCH_SECONDS)
    server = Running(State("synthetic", engine=engine))
    steps, streamed = [], []
    for _ in range(3):
        feeder.prompt(PROMPT)
        for position in range(PROMPT, PROMPT + args.tokens):
            begin = time.perf_counter()
            feeder.step(position, 1)
            steps.append(time.perf_counter() - begin)
        told = [sys.executable, __file__, "--client", server.url, str(args.sequences), str(args.tokens)]
        streamed += json.loads(subprocess.run(told, stdout=subprocess.PIPE, check=True).stdout)
        engine.flush_cache()
    alone, served = statistics.median(steps), statistics.median(streamed)
    print(
        f"steps of {args.sequences}: {1e3 * alone:.2f} ms alone, {1e3 * served:.2f} ms served: {100 * (served / alone - 1):.1f} % more"
    )
    server.close()


if __name__ == "__main__":
    if "--client" in sys.argv:
        url, count, tokens = sys.argv[2:]
        json.dump(asyncio.run(streaming(url, int(count), int(tokens))), sys.stdout)
    else:
        main()
