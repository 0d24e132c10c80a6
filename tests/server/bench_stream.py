"""What HTTP, text and Python cost beside the steps: python tests/server/bench_stream.py [q4km] [--sequences 8] [--tokens 200].

The 8-layer Qwen3-MoE shape with a tokenizer of as many tokens. In turn, several times: as many clients in another process that stream
sampled answers, and the same steps once more alone, each with the choice of its tokens, which is native too: steps of other tokens ask
for other experts, which alone made 12 % of difference. The share is what a step takes longer while it is served.
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
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))
    import torch
    from live import Running
    from synthetic import VOCAB, Synthetic

    from kt_core import kernels, programs
    from kt_core.engine.engine import Engine
    from kt_core.engine.loader import build
    from kt_core.engine.runners.program import ProgramRunner
    from kt_core.kernels.sampling import choose
    from kt_core.server.serve import SWITCH_SECONDS
    from kt_core.server.state import State
    from kt_core.types import Sampling

    class Recorded(ProgramRunner):
        def forward(self, step):
            recorded.append(step)
            return super().forward(step)

    program = programs.build(build(Synthetic(args.kind, 8), lambda *_: None))
    kernels.set_threads(args.threads)
    torch.set_num_threads(args.threads)
    recorded, alone, served = [], [], []
    runner = Recorded(program, 4096, torch.bfloat16)
    engine = Engine(runner, tokenizer(VOCAB), pages=args.sequences * 32)
    sys.setswitchinterval(SWITCH_SECONDS)
    server = Running(State("synthetic", engine=engine))
    for _ in range(args.rounds):
        recorded.clear()
        told = [sys.executable, __file__, "--client", server.url, str(args.sequences), str(args.tokens)]
        served += json.loads(subprocess.run(told, stdout=subprocess.PIPE, check=True).stdout)
        for step in [step for step in recorded if len(step.tokens) == args.sequences]:
            begin = time.perf_counter()
            rows = ProgramRunner.forward(runner, step).numpy()
            choose([(row, Sampling(), 0.5) for row in rows])
            alone.append(time.perf_counter() - begin)
        engine.flush_cache()
    for name, middle in ("median", statistics.median), ("mean", statistics.mean):
        a, b = 1e3 * middle(alone), 1e3 * middle(served)
        print(f"steps of {args.sequences}, {name}: {a:.2f} ms alone, {b:.2f} ms served: {100 * (b / a - 1):.1f} % more")
    server.close()


if __name__ == "__main__":
    if "--client" in sys.argv:
        url, count, tokens = sys.argv[2:]
        json.dump(asyncio.run(streaming(url, int(count), int(tokens))), sys.stdout)
    else:
        main()
