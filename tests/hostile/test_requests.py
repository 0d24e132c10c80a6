"""Requests that are valid HTTP and JSON and still hurt."""

import threading
import time

import pytest
import tinymodel
from starlette.testclient import TestClient

from kt_core.engine.engine import Engine
from kt_core.server.app import build_app
from kt_core.server.state import State

USER = {"role": "user", "content": "hello"}


@pytest.fixture
def http():
    engine = Engine(tinymodel.runner(), tinymodel.tokenizer())
    yield TestClient(build_app(State("tiny", "", engine)), raise_server_exceptions=False)
    engine.close(5)


def test_half_a_character_in_the_json_text_of_tool_arguments(http):
    """The body's own JSON cannot hold it, but arguments are JSON within a string."""
    call = {"function": {"name": "f", "arguments": '{"city": "\\ud800"}'}}
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    answer = http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 2})
    assert answer.status_code in (200, 400), answer.text


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
