"""Raw HTTP: envelopes, validation, streams on the wire."""

import json

import httpx
import pytest
from live import USER, error_of
from tinymodel import Scripted, byte_tokens

from kt_core.server import bodies, streaming
from kt_core.server.state import State


def events_of(response):
    """The data of every event; asserts the framing."""
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    data = [b.removeprefix("data: ") for b in blocks if not b.startswith(":")]
    assert all("\n" not in d for d in data)
    return [d if d == "[DONE]" else json.loads(d) for d in data]


# --- validation

NUMBERS = [
    ("max_tokens", [1, 2, 10**9, 1e9, 5.0, None], [0, -1, 1.5, "5", True, [], {}]),
    ("max_completion_tokens", [1, 10**9, None], [0, -1, 1.5, "5"]),
    ("temperature", [0, 2, 0.5, None], [-0.1, 2.1, "1", True]),
    ("top_p", [0, 1, 0.5], [-0.1, 1.1, "1"]),
    ("top_k", [-1, 0, 40], [-2, 1.5, "4"]),
    ("min_p", [0, 1], [-0.1, 1.1]),
    ("typical_p", [0, 1, 0.2], [-0.1, 1.1, "1"]),
    ("frequency_penalty", [-2, 2], [-2.1, 2.1]),
    ("presence_penalty", [-2, 2], [-2.1, 2.1]),
    ("repetition_penalty", [0.5, 1.2], [0, -1, 11]),
    ("n", [1, 2], [0, -1, 129, 1.5, "2"]),
    ("seed", [0, -1, 2**63 - 1, -(2**63)], [2**63, 1.5, "1"]),
    ("stop", ["x", ["x", "y"], [], None], ["", [""], 5, ["x"] * 17, [1]]),
    ("stop_token_ids", [[5], []], [["x"], 5, [99999]]),
    ("logit_bias", [{"5": 1}, {}, None], [{"5": 101}, {"x": 1}, {"5": "1"}, {"99999": 1}, [5]]),
    ("stream", [None, False], ["true", 1]),
    ("timeout", [30, 0.5], [0, -1, "1"]),
    ("ignore_eos", [True, False], [1, "x"]),
    ("model", [None, "tiny/model"], [5]),
]


@pytest.mark.parametrize("endpoint", ["chat", "complete"])
@pytest.mark.parametrize(("field", "good", "bad"), NUMBERS, ids=[n for n, *_ in NUMBERS])
def test_common_fields(server, endpoint, field, good, bad):
    ask = getattr(server, endpoint)
    base = {} if field.startswith("max_") else {"max_tokens": 1}
    for value in good:
        response = (
            ask(**base, **{field: value}, logit_bias={"1": 100})
            if field != "logit_bias"
            else ask(**base, **{field: value})
        )
        assert response.status_code == 200, (value, response.text)
    for value in bad:
        message = error_of(ask(**base, **{field: value}), 400)
        assert field in message or "Token" in message


def test_not_a_number(server):
    for text in ("NaN", "Infinity", "-Infinity", "1e999"):
        body = '{"messages":[{"role":"user","content":"x"}],"max_tokens":1,"temperature":' + text + "}"
        error_of(server.http.post("/v1/chat/completions", content=body), 400)


@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"5", b"\xff\xfe", b'{"prompt": "\\ud800"}', b"[" * 5000, b'{"messages": }'],
    ids=repr,
)
def test_bodies_that_are_no_request(server, endpoint, body):
    error_of(server.http.post(endpoint, content=body), 400)


CHAT_BAD = {
    "messages": [
        [], None, "hi", [None], [{}], [{"role": "user"}], [{"role": "robot", "content": "x"}], [{"role": "user", "content": 5}],
        [{"role": "user", "content": None}], [{"role": "assistant", "content": None}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
        [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
        [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": ["x"]}],
    ],
    "logprobs": [1, "x"],
    "tools": ["x", [{"type": "function"}], [{"type": "web", "function": {"name": "x"}}]],
    "tool_choice": ["required", {"type": "function", "function": {"name": "x"}}, "auto?", {"type": "function"}],
    "response_format": [{"type": "json_schema"}, {"type": "xml"}, {"type": "text", "json_schema": {}}, {}, "json"],
    "parallel_tool_calls": ["no", 1],
    "functions": [[{"name": "x"}]],
    "modalities": [["audio"], ["text", "audio"]],
    "audio": [{"voice": "x"}],
    "prediction": [{"type": "content"}],
    "chat_template_kwargs": [5, {"no_such": 1}, {"tokenize": True}],
    "stream_options": [{"include_usage": True}],
    "grammar": [5, ["x"]],
    "guided_json": [5, "{", "5"],
    "guided_choice": [[], "a", [1]],
    "structured_outputs": [{"xml": 1}, {"choice": []}, "json"],
}  # fmt: skip


@pytest.mark.parametrize("field", CHAT_BAD)
def test_chat_fields_refused(server, field):
    for value in CHAT_BAD[field]:
        message = error_of(server.chat(**{field: value, "max_tokens": 1}), 400)
        assert field in message or field == "chat_template_kwargs", message


def test_top_logprobs_needs_logprobs(server):
    error_of(server.chat(top_logprobs=3), 400, param="top_logprobs")
    error_of(server.chat(logprobs=True, top_logprobs=21), 400)
    error_of(server.complete(logprobs=True), 400)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0}, {"echo": True, "logprobs": 21}, {"suffix": "x"}, {"best_of": 2}, {"prompt": ["a", "b"]}, {"prompt": 5}, {"prompt": []},
        {"prompt": [[1, 2], [3]]}, {"prompt": [1, "a"]}, {"prompt": None}, {"prompt": [99999]}, {"prompt": [True]},
    ],
    ids=str,
)  # fmt: skip
def test_completion_fields_refused(server, fields):
    error_of(server.complete(**fields), 400)


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u"}, {"store": True}, {"metadata": {"a": "b"}}, {"service_tier": "auto"}, {"something_new": [1]},
        {"reasoning_effort": "low"}, {"echo": False}, {"suffix": None}, {"best_of": 1}, {"response_format": {"type": "text"}},
        {"tool_choice": "auto"}, {"tool_choice": "none"}, {"parallel_tool_calls": True}, {"parallel_tool_calls": False}, {"modalities": ["text"]},
        {"functions": None}, {"logprobs": None}, {"stream_options": None}, {"tools": None}, {"chat_template_kwargs": None},
    ],
    ids=str,
)  # fmt: skip
def test_harmless_fields_are_ignored(server, fields):
    assert server.chat(max_tokens=1, **fields).status_code == 200


def test_both_names_of_the_limit(server):
    assert server.chat(max_completion_tokens=3, ignore_eos=True).json()["usage"]["completion_tokens"] == 3
    both = server.chat(max_completion_tokens=3, max_tokens=3, ignore_eos=True)
    assert both.json()["usage"]["completion_tokens"] == 3
    message = error_of(server.chat(max_completion_tokens=3, max_tokens=4), 400, param="max_completion_tokens")
    assert "3" in message and "4" in message


def test_content_shapes(server):
    """Text parts equal their text; a developer is a system; null content goes with tool calls."""

    def prompt_of(*messages, **fields):
        response = server.chat(messages=list(messages), max_tokens=1, **fields)
        assert response.status_code == 200, response.text
        return response.json()["usage"]["prompt_tokens"]

    parts = {"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}
    assert prompt_of(parts) == prompt_of({"role": "user", "content": "hel\nlo"})
    developer, system = ({"role": r, "content": "be kind"} for r in ("developer", "system"))
    assert prompt_of(developer, USER) == prompt_of(system, USER)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"city": "x"}'}}
    tool = {"role": "tool", "tool_call_id": "c", "content": "cold"}
    assert prompt_of(USER, {"role": "assistant", "content": None, "tool_calls": [call]}, tool) > prompt_of(USER, tool)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert prompt_of(USER, tools=tools) > prompt_of(USER)
    assert prompt_of(USER, tools=tools, tool_choice="none") == prompt_of(USER)


def test_continuing_a_message_of_parts_is_continuing_its_text(server):
    answers = []
    for content in ("I am a fox", [{"type": "text", "text": "I am a fox"}]):
        messages = [USER, {"role": "assistant", "content": content}]
        fields = {"messages": messages, "continue_final_message": True, "max_tokens": 6, "temperature": 0}
        answer = server.http.post("/v1/chat/completions", json=fields).json()
        answers.append((answer["choices"][0]["message"], answer["usage"]))
    assert answers[0] == answers[1]


def test_thinking_switch(server):
    def prompt(**fields):
        return server.chat(max_tokens=1, **fields).json()["usage"]["prompt_tokens"]

    off = prompt(chat_template_kwargs={"enable_thinking": False})
    assert off > prompt() == prompt(chat_template_kwargs={"enable_thinking": True})
    assert prompt(reasoning_effort="none") == off
    assert prompt(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True}) == prompt()


def test_template_that_raises(server):
    message = error_of(server.chat(messages=[USER, USER]), 400, code="template")
    assert "roles must alternate" in message
    error_of(server.chat(messages=[USER, USER], stream=True), 400)


def test_routes_and_methods(server):
    error_of(server.http.get("/nowhere"), 404, code="unknown_route")
    error_of(server.http.get("/v1/chat/completions"), 405, code="method_not_allowed")
    error_of(server.http.get("/v1/models/other"), 404, code="model_not_found")
    for stream in (False, True):
        error_of(server.chat(model="other", stream=stream), 404, code="model_not_found", param="model")
        error_of(server.complete(model="", stream=stream), 404)


def test_body_limit(server, monkeypatch):
    monkeypatch.setattr(bodies, "MAX_BODY", 1000)
    error_of(server.complete(prompt="x" * 1000), 413)


def test_context_overflow_comes_before_the_stream(server):
    for stream in (False, True):
        for ask in (server.complete, server.chat):
            prompt = (
                {"prompt": [9] * 1500}
                if ask == server.complete
                else {"messages": [{"role": "user", "content": "é" * 700}]}
            )
            message = error_of(ask(stream=stream, **prompt), 400, code="context_length_exceeded")
            assert "1024" in message
    assert "1500" in error_of(server.complete(prompt=[9] * 1500), 400)
    assert server.complete(prompt=[9] * 1023, max_tokens=50).json()["usage"]["completion_tokens"] == 1


# --- what goes over the wire


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("limit", "reason"), [(1, "length"), (2, "length"), (3, "stop"), (None, "stop")])
def test_finish_reason(serve, stream, limit, reason):
    server = serve(Scripted(byte_tokens("ab")))
    response = server.chat(max_tokens=limit, stream=stream)
    if not stream:
        body = response.json()
        assert body["choices"][0]["finish_reason"] == reason
        assert body["usage"]["completion_tokens"] == (limit or 3)
        return
    events = events_of(response)
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason}
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1])
    assert text == "ab"[: limit or 2]


@pytest.mark.parametrize("stream", [False, True])
def test_timings(serve, stream):
    server = serve(Scripted(byte_tokens("abcde"), delay=0.01))
    response = server.complete(stream=stream)
    timings = (events_of(response)[-2] if stream else response.json())["timings"]
    assert timings["predicted_n"] == 6 and timings["cache_n"] == 0
    assert timings["prompt_ms"] >= 10 and timings["predicted_ms"] >= 50
    assert timings["predicted_per_second"] == pytest.approx(5e3 / timings["predicted_ms"])
    assert timings["prompt_per_second"] == pytest.approx(timings["prompt_n"] * 1e3 / timings["prompt_ms"])
    if stream:
        assert all("timings" not in e for e in events_of(response)[:-2])


def test_error_event_ends_the_stream(serve):
    nan = Scripted(byte_tokens("abc"), shape=lambda step, logits: logits * float("nan") if step == 2 else logits)
    server = serve(nan)
    events = events_of(server.complete(stream=True))
    assert [e["choices"][0]["text"] for e in events[:-1]] == ["a"]
    assert set(events[-1]) == {"error"} and "NaN" in events[-1]["error"]["message"]
    assert server.complete().json()["choices"][0]["text"] == "abc"


def test_failure_without_stream_is_a_500(serve):
    def before(step):
        if step == 2:
            raise RuntimeError("boom")

    server = serve(Scripted(byte_tokens("abc"), before=before))
    assert "boom" in error_of(server.chat(), 500)
    assert server.chat().json()["choices"][0]["message"]["content"] == "abc"


def test_timeout(serve):
    server = serve(Scripted(byte_tokens("ab"), delay=0.01, loop=True))
    error_of(server.chat(timeout=0.1), 504, code="timeout")
    server.wait_idle()


def test_pings_while_the_prompt_is_computed(serve, monkeypatch):
    monkeypatch.setattr(streaming, "PING_SECONDS", 0.05)
    server = serve(Scripted(byte_tokens("a"), delay=0.3))
    response = server.chat(stream=True)
    assert response.text.startswith(": ping\n\n")
    assert events_of(response)[-1] == "[DONE]"


# --- keys, loading, health


def test_api_key(serve):
    server = serve(api_key="sécret")
    assert server.http.get("/health").status_code == 200
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "sécret".encode()},
        {"Authorization": "Bearer"},
    ):
        response = server.http.get("/v1/models", headers=headers)
        error_of(response, 401)
        error_of(server.http.post("/v1/chat/completions", json={}, headers=headers), 401)
    good = {"Authorization": "Bearer sécret".encode()}
    assert server.http.get("/v1/models", headers=good).status_code == 200
    assert "sécret" not in server.http.get("/v1/models").text


def test_loading(serve):
    server = serve(loaded=False)
    server.state.stage, server.state.done, server.state.total = "weights", 3, 9
    health = server.http.get("/health")
    assert health.status_code == 503
    assert health.json() == {"status": "loading", "stage": "weights", "done": 3, "total": 9}
    for ask in (server.chat, server.complete):
        response = ask()
        assert "weights" in error_of(response, 503, code="loading")
        assert response.headers["retry-after"]
    assert server.http.get("/v1/models").json()["data"][0]["id"] == "tiny/model"


def test_health(serve):
    server = serve(Scripted(byte_tokens("a"), max_context=77))
    health = server.http.get("/health")
    assert health.status_code == 200
    assert health.json() == {
        "status": "ok",
        "model": "tiny/model",
        "running": 0,
        "waiting": 0,
        "max_queue": 64,
        "context": 77,
    }
    assert server.http.get("/v1/models").json()["data"][0]["context_length"] == 77
    server.engine.close()
    assert server.http.get("/health").status_code == 503
    error_of(server.chat(), 503)


# --- slots and the cache


def test_slots_and_flush(serve):
    server = serve(api_key="k")
    for method, route in (("GET", "/slots"), ("POST", "/flush_cache")):
        error_of(server.http.request(method, route), 401)
    server.http.headers["authorization"] = "Bearer k"
    empty = server.http.get("/slots").json()
    assert (empty["running"], empty["waiting"]) == ([], [])
    assert empty["max_queue"] == 64 and empty["max_running"] == 8 and empty["retry_after"] == 1
    prompt = [5 + i % 100 for i in range(150)]
    found = [server.complete(prompt=prompt, max_tokens=2).json() for _ in range(2)]
    assert [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in found] == [0, 128]
    assert found[1]["timings"]["cache_n"] == 128 and found[1]["timings"]["prompt_n"] == 22
    both = server.complete(prompt=prompt, max_tokens=2, n=3).json()
    assert both["usage"]["prompt_tokens_details"]["cached_tokens"] == 128
    assert server.http.get("/slots").json()["pages"]["cached"] == 2
    assert server.http.post("/flush_cache").json() == {"flushed_pages": 2}
    again = server.complete(prompt=prompt, max_tokens=2, n=3).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0  # what choices share is not counted


def test_slots_while_a_request_runs(serve):
    server = serve(Scripted(byte_tokens("ab"), delay=0.01, loop=True))
    with server.http.stream(
        "POST", "/v1/completions", json={"prompt": "secret", "stream": True, "max_tokens": 500}
    ) as r:
        lines = r.iter_lines()
        for _ in range(10):
            next(lines)
        (slot,) = httpx.get(f"{server.url}/slots", trust_env=False).json()["running"]
    assert slot["id"].startswith("cmpl-") and slot["state"] == "decode" and slot["answered_tokens"] >= 2
    assert 0 < slot["tokens_per_second"] < 200 and "secret" not in str(slot)


# --- queue and disconnects


def test_state_needs_an_engine():
    with pytest.raises(Exception, match="loading"):
        State("m").ready()


def test_progress_of_a_long_prompt(serve):
    """Each step of the prompt but the last tells how far it is; without the field there are no such events."""
    server = serve(Scripted(byte_tokens("ab")))
    fields = {"prompt": "x" * 1500, "stream": True, "stream_options": {"include_usage": True}}
    *events, done = events_of(server.complete(**fields, return_progress=True))
    told = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    total = events[-1]["usage"]["prompt_tokens"]
    assert [(p["processed"], p["total"], p["cache"]) for p in told] == [(n, total, 0) for n in range(512, total, 512)]
    assert [p["time_ms"] for p in told] == sorted(p["time_ms"] for p in told) and told[0]["time_ms"] >= 0
    rest = [event for event in events if "prompt_progress" not in event]
    plain = events_of(server.complete(**fields))
    assert [event["choices"] for event in rest] == [event["choices"] for event in plain[:-1]] and done == "[DONE]"
    error_of(server.complete(prompt="x", return_progress=True), 400, param="return_progress")
