"""python killed.py FOLDER TIMES: an engine that writes pages into the folder and is killed, so many times.

One process imports everything once; each engine is a fork of it that gets SIGKILL after its first answer: at a random
time, and every second one while it writes a file, however seldom a busy machine lets it.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from reader import Reader, answer_to

PAGE, LIMIT = 4, 32 << 20
BALLAST = 300_000  # so that a kill meets a file that is being written
PROMPTS = [[50 + number] * 9 + list(range(3, 3 + 4 * (number + 1))) for number in range(8)]


def folder(path):
    from kt_core.engine.disk import Folder

    return Folder(path, b"reader", 8 * PAGE + BALLAST, LIMIT)


def engine(path):
    import tinymodel

    from kt_core.engine.engine import Engine

    runner = Reader(page=PAGE, max_context=128, ballast=BALLAST)
    return Engine(runner, tinymodel.tokenizer(), pages=40, max_running=3, disk=folder(path))


def ask(tokens, count):
    from kt_core.types import Request, Sampling

    return Request("r", tokens=tuple(tokens), sampling=Sampling(temperature=0.0), max_tokens=count, ignore_eos=True)


def check(running, prompt, count):
    """How many tokens of the prompt were cached; the answer must be right."""
    chunks = list(running.submit(ask(prompt, count)))
    assert [t for c in chunks for t in c.tokens] == answer_to(prompt, count), running
    return chunks[-1].usage.cached_tokens


def _live(path, ready, seed):
    rng = random.Random(seed)
    running = engine(path)
    for number in range(1000):
        check(running, rng.choice(PROMPTS) + [rng.randrange(3, 90) for _ in range(rng.randrange(20))], 5)
        if not number:
            os.write(ready, b".")


def _stop_while_it_writes(child, path, rng):
    """Look at the folder while the engine stands still, until there is a file that it has begun."""
    while True:
        os.kill(child, signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1]), "the engine ended before it was met writing"
        if any(path.rglob(f".kt-{child}-*")):
            return
        os.kill(child, signal.SIGCONT)
        time.sleep(rng.random() * 0.002)


def main():
    path, times = Path(sys.argv[1]), int(sys.argv[2])
    import tinymodel  # with all of torch, before the first fork

    tinymodel.tokenizer()
    for seed in range(times):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            _live(path, writing, seed)
            os._exit(3)  # it lived too long
        os.close(writing)
        assert os.read(reading, 1) == b".", "the engine died of itself"
        os.close(reading)
        rng = random.Random(seed)
        time.sleep(rng.random() * 0.05)
        if seed % 2:
            _stop_while_it_writes(child, path, rng)
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


if __name__ == "__main__":
    main()
