"""Raw HTTP under load: the queue, clients that leave, many at once."""

import asyncio
import threading
import time

import httpx
import load
import pytest
import tinymodel
from live import USER, error_of
from tinymodel import Scripted, byte_tokens


def background(function):
    box = []
    thread = threading.Thread(target=lambda: box.append(function()))
    thread.start()
    return thread, box


def until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_queue_full(serve):
    gate = threading.Event()
    server = serve(Scripted(byte_tokens("ab"), before=lambda step: gate.wait(20)), max_queue=1)
    running = background(server.chat)
    until(lambda: server.engine.state()["running"])
    waiting = background(server.chat)
    until(lambda: server.engine.state()["waiting"] == 1)
    for stream in (False, True):
        response = server.chat(stream=stream)
        error_of(response, 429, code="queue_full")
        assert int(response.headers["retry-after"]) >= 1
    gate.set()
    for thread, box in (running, waiting):
        thread.join(20)
        assert box[0].status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_stops_within_a_step(serve, stream):
    runner = Scripted(byte_tokens("ab"), delay=0.1, loop=True)
    server = serve(runner)
    body = {"messages": [USER], "stream": stream}
    if stream:
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, trust_env=False) as response:
            text = response.iter_text()
            next(text)
            until(lambda: runner.steps >= 3)
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=0.3, trust_env=False)
    left = runner.steps
    server.wait_idle()
    assert runner.steps <= left + 2  # the step under way, and one for the news to arrive
    time.sleep(0.3)
    assert runner.steps <= left + 2


def test_disconnect_during_prefill(serve):
    runner = Scripted(byte_tokens("a"), delay=0.1)
    server = serve(runner)
    with pytest.raises(httpx.ReadTimeout):
        body = {"prompt": [9] * 4000, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=0.15, trust_env=False) as response:
            list(response.iter_text())
    server.wait_idle()
    assert runner.steps < 8  # 4000 tokens are eight chunks


@pytest.mark.parametrize("stream", [False, True])
def test_a_waiting_client_that_leaves_disturbs_nobody(serve, stream):
    gate = threading.Event()
    runner = Scripted(byte_tokens("abcdef"), before=lambda step: gate.wait(20))
    server = serve(runner)
    active = background(server.chat)
    until(lambda: server.engine.state()["running"])
    with pytest.raises(httpx.ReadTimeout):
        body = {"messages": [USER], "stream": stream}
        if stream:
            with httpx.stream(
                "POST", f"{server.url}/v1/chat/completions", json=body, timeout=0.2, trust_env=False
            ) as r:
                list(r.iter_text())
        else:
            httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=0.2, trust_env=False)
    until(lambda: server.engine.state()["waiting"] == 0)
    gate.set()
    active[0].join(20)
    assert active[1][0].json()["choices"][0]["message"]["content"] == "abcdef"
    assert runner.steps == 7  # the one that left was never computed


def test_parallel_clients_all_finish(serve):
    server = serve(Scripted(byte_tokens("hello 🦊")))
    jobs = [background(lambda: server.chat(stream=False)) for _ in range(10)]
    for thread, box in jobs:
        thread.join(20)
        assert box[0].json()["choices"][0]["message"]["content"] == "hello 🦊"


def test_clients_that_come_and_go(serve):
    """Every answer that somebody waits for is the one computed alone; afterwards nothing is left behind."""
    server = serve(tinymodel.runner())
    prompts, expected = load.known(server.engine)
    clients = load.Clients(server.url, prompts, expected, 2.0)
    asyncio.run(clients.run(16))
    server.wait_idle()
    slots = server.engine.slots()
    assert clients.kinds["stay"] > 5 and slots["waiting"] == []
    assert slots["pages"]["available"] == slots["pages"]["count"]
