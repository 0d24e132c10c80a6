"""Clients that come and go: python tests/server/load.py SECONDS CLIENTS runs them for long and reports.

Each picks a prompt whose greedy answer is known, streams it, and sometimes leaves, before the answer or in the middle of it, asks
for a time limit that passes, or sends what no server can take. Whoever stays must get the known answer. They run in a process
of their own, as clients do.
"""

import asyncio
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx

PROMPTS = 12
TOKENS = 24


class Clients:
    """`expected` are the texts for each prompt; times between the events of a stream go to `between`."""

    def __init__(self, url, prompts, expected, seconds):
        self._url, self._prompts, self._expected = url, prompts, expected
        self._end = time.monotonic() + seconds
        self.between, self.kinds = [], {}

    async def run(self, count):
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self._url, timeout=60, trust_env=False, limits=limits) as http:
            await asyncio.gather(*(self._client(http, random.Random(seed)) for seed in range(count)))

    async def _client(self, http, rng):
        while time.monotonic() < self._end:
            kind = rng.choice(["stay"] * 5 + ["whole", "leave", "early", "limit", "bad", "broken"])
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
            number = rng.randrange(len(self._prompts))
            body = {"prompt": self._prompts[number], "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
            if kind == "bad":
                body[rng.choice(["max_tokens", "n", "temperature"])] = -1
                assert (await http.post("/v1/completions", json=body)).status_code == 400
            elif kind == "broken":
                assert (await http.post("/v1/completions", content=json.dumps(body)[:-9])).status_code == 400
            elif kind == "limit":
                answer = await http.post("/v1/completions", json={**body, "timeout": 0.01})
                assert answer.status_code in (200, 429, 504), answer.text
            elif kind == "whole":
                answer = await http.post("/v1/completions", json=body)
                assert answer.status_code == 429 or answer.json()["choices"][0]["text"] == self._expected[number]
            else:
                await self._stream(http, rng, body, number, kind)

    async def _stream(self, http, rng, body, number, kind):
        text, before = "", None
        async with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            if answer.status_code == 429:
                await asyncio.sleep(0.05)
                return
            if kind == "early":
                return
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                text += json.loads(line[6:])["choices"][0]["text"]
                now = time.monotonic()
                self.between += [] if before is None else [now - before]
                before = now
                if kind == "leave" and rng.random() < 0.2:
                    return
        assert text == self._expected[number]


def known(engine):
    """(prompts that share beginnings, their answers one at a time)."""
    from kt_core.types import Request, Sampling

    rng = random.Random(1)
    common = [rng.randrange(4, 290) for _ in range(140)]
    prompts = [common[: 70 * (i % 3)] + [rng.randrange(4, 290) for _ in range(5 + 20 * i)] for i in range(PROMPTS)]
    expected = []
    for prompt in prompts:
        request = Request(
            "r", tokens=tuple(prompt), sampling=Sampling(temperature=0), max_tokens=TOKENS, ignore_eos=True
        )
        expected.append("".join(chunk.text for chunk in engine.submit(request)))
        engine.flush_cache()
    return prompts, expected


def resident():
    """Bytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def clients() -> None:
    """The clients' process: what to do as JSON on standard input, what was seen on standard output."""
    told = json.load(sys.stdin)
    count = told.pop("count")
    found = Clients(**told)
    asyncio.run(found.run(count))
    between = sorted(found.between)
    ms = [1e3 * value for value in (statistics.median(between), between[int(0.99 * len(between))], between[-1])]
    json.dump({"kinds": found.kinds, "ms": ms, "events": len(between)}, sys.stdout)


def main() -> None:
    seconds, count = float(sys.argv[1]), int(sys.argv[2])
    sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))
    import tinymodel
    import torch
    from live import Running

    from kt_core.engine.engine import Engine
    from kt_core.server.serve import SWITCH_SECONDS
    from kt_core.server.state import State

    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_SECONDS)
    engine = Engine(tinymodel.runner(), tinymodel.tokenizer(), pages=48, max_running=8)
    server, (prompts, expected) = Running(State("tiny/model", engine=engine)), known(engine)
    for part in range(4):
        told = {"url": server.url, "prompts": prompts, "expected": expected, "seconds": seconds / 4, "count": count}
        done = subprocess.run(
            [sys.executable, __file__, "clients"], input=json.dumps(told), text=True, stdout=subprocess.PIPE, check=True
        )
        found = json.loads(done.stdout)
        server.wait_idle()
        slots = engine.slots()
        assert not slots["running"] and not slots["waiting"]
        assert slots["pages"]["available"] == slots["pages"]["count"]
        middle, late, longest = found["ms"]
        sys.stdout.write(
            f"part {part}: {found['kinds']}, {found['events']} events, {resident() / 2**20:.1f} MiB, between tokens "
            f"{middle:.1f} ms, p99 {late:.1f} ms, longest {longest:.0f} ms, {slots['preempted']} preempted\n"
        )
        sys.stdout.flush()
    server.close()


if __name__ == "__main__":
    clients() if sys.argv[1] == "clients" else main()
