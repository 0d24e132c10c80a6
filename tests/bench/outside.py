"""`kt bench` beside two clocks that share no code with it.

    python tests/bench/outside.py NAME [--prompt 256] [--output 64] [--concurrency 4] [--repeats 3] [--rounds 3]

A server of the model is started. A relay between it and `kt bench` notes when each request and each piece of its answer pass:
the very same requests, timed by somebody else. Then a load generator of threads and plain sockets asks for the same lengths, in
turn with `kt bench`, so that what the machine does meanwhile meets both. Prints the figures and their ratios.
"""

import argparse
import contextlib
import json
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

KT = [sys.executable, "-m", "kt_cli"]
FIGURES = ("first_token_p50", "decode_rate", "output_rate")


@dataclass
class Timed:
    """One request: sent, its pieces, and the end of its answer, in seconds of one clock."""

    sent: float = 0.0
    pieces: list[float] = field(default_factory=list)
    ended: float = 0.0


def figures(requests: list[Timed]) -> dict[str, float]:
    """Seconds to the first piece and pieces a second behind it, the medians; all pieces a second over all the time."""
    wall = max(one.ended for one in requests) - min(one.sent for one in requests)
    return {
        "first_token_p50": statistics.median(one.pieces[0] - one.sent for one in requests),
        "decode_rate": statistics.median(
            (len(one.pieces) - 1) / (one.pieces[-1] - one.pieces[0]) for one in requests if len(one.pieces) > 1
        ),
        "output_rate": sum(len(one.pieces) for one in requests) / wall,
    }


def note(data: bytes, one: Timed, left: bytes) -> bytes:
    """Adds the pieces with text that end in `data`; what is left of a line."""
    *lines, left = (left + data).split(b"\n")
    for line in lines:
        if line.startswith(b"data: {") and (choices := json.loads(line[6:])["choices"]) and choices[0].get("text"):
            one.pieces.append(time.perf_counter())
    return left


class Relay:
    """Hands bytes on between clients and a server, and notes when completions pass."""

    def __init__(self, port: int) -> None:
        self.port, self.requests, self.lock = port, list[Timed](), threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self.port))
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            state: list[Timed] = []
            threading.Thread(target=self._there, args=(client, server, state), daemon=True).start()
            threading.Thread(target=self._back, args=(server, client, state), daemon=True).start()

    def _there(self, client: socket.socket, server: socket.socket, state: list[Timed]) -> None:
        while data := client.recv(1 << 16):
            if data.startswith(b"POST /v1/completions"):
                state[:] = [Timed(time.perf_counter())]
                with self.lock:
                    self.requests.append(state[0])
            server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _back(self, server: socket.socket, client: socket.socket, state: list[Timed]) -> None:
        left = b""
        while data := server.recv(1 << 16):
            if state:
                left = note(data, state[0], left)
                state[0].ended = time.perf_counter()
            with contextlib.suppress(OSError):
                client.sendall(data)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_WR)


def ask(port: int, model: str, prompt: list[int], tokens: int) -> Timed:
    body = json.dumps(
        {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    ).encode()
    head = f"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        one, left = Timed(time.perf_counter()), b""
        connection.sendall(head.encode() + body)
        while data := connection.recv(1 << 16):
            left = note(data, one, left)
        one.ended = time.perf_counter()
    return one


def generate(port: int, model: str, options: argparse.Namespace, chance: random.Random) -> dict[str, float]:
    """`concurrency` threads, each with the next of all requests as soon as its last one has ended."""
    vocabulary = range(1000, 20000)
    prompts = [chance.choices(vocabulary, k=options.prompt) for _ in range(options.concurrency * options.repeats)]
    waiting, done = iter(prompts), list[Timed]()
    lock = threading.Lock()

    def client() -> None:
        while True:
            with lock:
                prompt = next(waiting, None)
            if prompt is None:
                return
            done.append(ask(port, model, prompt, options.output))

    threads = [threading.Thread(target=client) for _ in range(options.concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return figures(done)


def ours(url: str, model: str, options: argparse.Namespace) -> dict[str, float]:
    words = [f"--{name}={getattr(options, name)}" for name in ("prompt", "output", "concurrency", "repeats")]
    done = subprocess.run(
        [*KT, "bench", "inference", model, "--url", url, *words, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    row = json.loads(done.stdout.splitlines()[-1])["rows"][0]
    return {name: row[name] for name in FIGURES}


@contextlib.contextmanager
def served(name: str) -> Iterator[tuple[int, str]]:
    """(port, model) of a server that is stopped at the end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [*KT, "run", name, "--port", str(port)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
                break
            time.sleep(0.2)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models") as answer:
            yield port, json.load(answer)["data"][0]["id"]
    finally:
        process.terminate()
        process.wait()


def told(title: str, mine: dict[str, float], others: dict[str, float]) -> None:
    parts = [f"{name} {mine[name]:.4g} beside {others[name]:.4g}: {mine[name] / others[name]:.4f}" for name in FIGURES]
    sys.stdout.write(f"{title}: {'; '.join(parts)}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    for option, default in (("prompt", 256), ("output", 64), ("concurrency", 4), ("repeats", 3), ("rounds", 3)):
        parser.add_argument(f"--{option}", type=int, default=default)
    options = parser.parse_args()
    chance = random.Random()
    with served(options.name) as (port, model):
        relay = Relay(port)
        mine: dict[str, Any] = ours(relay.url, model, options)
        # The first one is the warm-up.
        told("the same requests, by the relay", mine, figures(relay.requests[1:]))
        pairs = [(ours(f"http://127.0.0.1:{port}", model, options), generate(port, model, options, chance))]
        for _ in range(options.rounds - 1):
            pairs.append((ours(f"http://127.0.0.1:{port}", model, options), generate(port, model, options, chance)))
        medians = [{name: statistics.median(pair[side][name] for pair in pairs) for name in FIGURES} for side in (0, 1)]
        told(f"medians of {options.rounds} rounds in turn, by another generator", *medians)


if __name__ == "__main__":
    main()
