"""Requests that are valid HTTP and JSON and still hurt."""

import threading
import time

import pytest
import tinymodel
import torch
from starlette.testclient import TestClient

from kt_core.engine.engine import Engine
from kt_core.server.app import build_app
from kt_core.server.state import State

USER = {"role": "user", "content": "hello"}


@pytest.fixture
def http():
    engine = Engine(tinymodel.runner(), tinymodel.tokenizer())
    yield TestClient(build_app(State("tiny", engine=engine)), raise_server_exceptions=False)
    engine.close(5)


def test_half_a_character_in_the_json_text_of_tool_arguments(http):
    """The body's own JSON cannot hold it, but arguments are JSON within a string."""
    call = {"function": {"name": "f", "arguments": '{"city": "\\ud800"}'}}
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    answer = http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 2})
    assert answer.status_code in (200, 400), answer.text


@pytest.mark.parametrize("arguments", ["{", "", "[1]", "null", None, {"city": "Oslo"}, 5])
@pytest.mark.parametrize("stream", [False, True])
def test_tool_arguments_in_the_history_that_are_no_json_object(http, arguments, stream):
    """A model wrote them, so they come back on every retry: answered, or refused as the client's fault, at once."""
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "cold"}]
    body = {"messages": messages, "max_tokens": 2, "stream": stream}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code in (200, 400), answer.text
    assert answer.status_code == 200 or answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_damaged_router_row_fails_requests_and_not_the_server(poison):
    runner = tinymodel.runner()
    router = next(m for name, m in runner._facts.model.named_modules() if name.endswith("mlp.gate"))
    with torch.no_grad():
        router.weight[1] = poison
    engine = Engine(runner, tinymodel.tokenizer())
    client = TestClient(build_app(State("tiny", engine=engine)), raise_server_exceptions=False)
    for _ in range(2):
        answer = client.post("/v1/completions", json={"prompt": "hello", "max_tokens": 3, "temperature": 0})
        assert answer.status_code == 500 and answer.json()["error"]["code"] == "bad_logits"
    assert client.get("/health").json()["status"] == "ok"
    with torch.no_grad():
        router.weight[1] = 0.1
    answer = client.post("/v1/completions", json={"prompt": "hello", "max_tokens": 3, "temperature": 0})
    assert answer.status_code == 200
    engine.close(5)


@pytest.mark.parametrize("penalty", [5e-324, 1e-40])
def test_a_tiny_repetition_penalty_is_not_told_as_a_damaged_model(http, penalty):
    body = {"prompt": "hello", "repetition_penalty": penalty, "max_tokens": 2, "temperature": 0}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code in (200, 400), answer.text


def test_a_prompt_far_beyond_the_context_does_not_hold_up_the_others(http):
    """8 MB of text cannot fit into 1024 tokens; tokenizing it all takes seconds, a lock and gigabytes."""
    huge = {"prompt": "a" * 8_000_000, "max_tokens": 1}
    seen = []
    other = threading.Thread(target=lambda: seen.append(http.post("/v1/completions", json=huge)))
    other.start()
    time.sleep(0.8)
    before = time.monotonic()
    answer = http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 1, "temperature": 0})
    waited = time.monotonic() - before
    other.join()
    assert answer.status_code == 200 and seen[0].json()["error"]["code"] == "context_length_exceeded"
    assert waited < 3
