"""One answer in every dialect: they share one way to the engine, so what holds for one holds for all."""

import json
from dataclasses import dataclass

import httpx
import pytest
from live import USER
from tinymodel import Scripted, byte_tokens

from kt_core.server import streaming

TEXT = "a🦊é中b"


@dataclass
class Dialect:
    """How to ask, and where in an answer (or in the events of one) the text and the reason of its end are."""

    path: str
    prompt: str  # the field
    limit: str
    stop: str
    whole: object  # body -> (text, reason)
    piece: object  # event -> text
    ended: object  # event -> reason, or None
    lines: bool = False
    base: dict | None = None

    def body(self, stream=False, limit=None, stop=None, text="hello"):
        message = text if self.prompt in ("prompt", "input") else [{"role": "user", "content": text}]
        body = {self.prompt: message, "stream": stream, **(self.base or {})}
        for name, value in ((self.limit, limit), (self.stop, stop)):
            if value is not None and name:
                inner = body.setdefault("options", {}) if self.lines else body
                inner[name] = value
        return body

    def events(self, text):
        if self.lines:
            return [json.loads(line) for line in text.splitlines()]
        blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
        data = [block.split("\n")[-1].removeprefix("data: ") for block in blocks]
        return [json.loads(line) for line in data if line != "[DONE]"]


def choice(event):
    return event["choices"][0] if event.get("choices") else {}


def incomplete(response):
    return {"incomplete": "length", "completed": "stop"}[response["status"]]


ANTHROPIC = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", None: None}
DIALECTS = {
    "chat": Dialect(
        "/v1/chat/completions", "messages", "max_tokens", "stop",
        lambda b: (choice(b)["message"]["content"], choice(b)["finish_reason"]),
        lambda e: choice(e).get("delta", {}).get("content"), lambda e: choice(e).get("finish_reason"),
    ),
    "completions": Dialect(
        "/v1/completions", "prompt", "max_tokens", "stop",
        lambda b: (choice(b)["text"], choice(b)["finish_reason"]),
        lambda e: choice(e).get("text"), lambda e: choice(e).get("finish_reason"),
    ),
    "responses": Dialect(
        "/v1/responses", "input", "max_output_tokens", "",
        lambda b: ("".join(i["content"][0]["text"] for i in b["output"]), incomplete(b)),
        lambda e: e.get("delta"), lambda e: incomplete(e["response"]) if e["type"] in ("response.completed", "response.incomplete") else None,
    ),
    "messages": Dialect(
        "/v1/messages", "messages", "max_tokens", "stop_sequences",
        lambda b: ("".join(c["text"] for c in b["content"]), ANTHROPIC[b["stop_reason"]]),
        lambda e: e["delta"].get("text") if "delta" in e else None,
        lambda e: ANTHROPIC[e["delta"]["stop_reason"]] if e["type"] == "message_delta" else None, base={"max_tokens": 100},
    ),
    "ollama chat": Dialect(
        "/api/chat", "messages", "num_predict", "stop",
        lambda b: (b["message"]["content"], b["done_reason"]), lambda e: e["message"]["content"], lambda e: e.get("done_reason"), True,
    ),
    "ollama generate": Dialect(
        "/api/generate", "prompt", "num_predict", "stop",
        lambda b: (b["response"], b["done_reason"]), lambda e: e["response"], lambda e: e.get("done_reason"), True,
    ),
}  # fmt: skip
every = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)


def answered(server, dialect, **fields):
    """(text, reason) of the whole answer, which the pieces of a stream must add up to; and those pieces."""
    whole = server.http.post(dialect.path, json=dialect.body(**fields))
    stream = server.http.post(dialect.path, json=dialect.body(stream=True, **fields))
    assert (whole.status_code, stream.status_code) == (200, 200), (whole.text, stream.text)
    events = dialect.events(stream.text)
    pieces = [piece for piece in map(dialect.piece, events) if piece]
    [reason] = [reason for reason in map(dialect.ended, events) if reason]
    assert dialect.whole(whole.json()) == ("".join(pieces), reason)
    return "".join(pieces), reason, pieces


@every
def test_text_limits_and_stops(serve, dialect):
    """No character is cut, wherever its bytes lie; limits are exact; the reason of the end is right."""
    server = serve(Scripted(byte_tokens(TEXT)))
    assert answered(server, dialect) == (TEXT, "stop", list(TEXT))
    total = len(TEXT.encode()) + 1
    for limit, text in ((1, "a"), (5, "a🦊"), (total, TEXT)):
        assert answered(server, dialect, limit=limit)[:2] == (text, "length" if limit < total else "stop")
    if dialect.stop:
        stops = [["中", "中b"], ["é中"]]
        assert [answered(server, dialect, stop=stop)[:2] for stop in stops] == [("a🦊é", "stop"), ("a🦊", "stop")]


@every
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_come_before_the_stream(server, dialect, stream):
    """Too long a prompt, another model, a bad limit: a status and a body in the dialect's own envelope."""
    ask = lambda **fields: server.http.post(dialect.path, json={**dialect.body(stream), **fields})  # noqa: E731
    long = server.http.post(dialect.path, json=dialect.body(stream, text="x" * 5000))
    bad = {"options": {"num_predict": 0}} if dialect.lines else {dialect.limit: 0}
    for response, status in ((long, 400), (ask(model="other"), 404), (ask(**bad), 400), (ask(stream="yes"), 400)):
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/json"
        error = response.json()["error"]
        assert error and (isinstance(error, str) == dialect.lines)
    assert "1024" in json.dumps(long.json())  # both numbers: the prompt's and the context's


@every
def test_loading_and_a_full_queue(serve, dialect):
    response = serve(loaded=False).http.post(dialect.path, json=dialect.body())
    assert response.status_code == 503 and response.headers["retry-after"]
    server = serve(Scripted(byte_tokens("ab"), delay=0.005, loop=True), max_queue=0)
    with server.http.stream(
        "POST", "/v1/completions", json={"prompt": "x", "max_tokens": 10000, "stream": True}
    ) as busy:
        lines = busy.iter_lines()
        next(lines)
        full = httpx.post(f"{server.url}{dialect.path}", json=dialect.body(stream=True), trust_env=False)
    assert full.status_code == 429 and int(full.headers["retry-after"]) >= 1


@every
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_request(serve, dialect, stream):
    server = serve(Scripted(byte_tokens("ab"), delay=0.005, loop=True))
    body = json.dumps(dialect.body(stream, limit=100000))
    with httpx.Client(base_url=server.url, trust_env=False, timeout=0.2) as client:
        if stream:
            with client.stream("POST", dialect.path, content=body) as response:
                lines = response.iter_lines()
                next(lines)
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(dialect.path, content=body)
    server.wait_idle()
    assert server.engine.state()["waiting"] == 0


@every
def test_silence_is_filled(serve, dialect, monkeypatch):
    """While a prompt takes long something comes now and then, which no client takes for a part of the answer."""
    monkeypatch.setattr(streaming, "PING_SECONDS", 0.01)
    server = serve(Scripted(byte_tokens("ab"), delay=0.05))
    text = server.http.post(dialect.path, json=dialect.body(stream=True)).text
    if dialect.lines:
        assert not dialect.piece(dialect.events(text)[0])
    else:
        assert ": ping\n\n" in text or "event: ping\n" in text
    assert "".join(filter(None, map(dialect.piece, dialect.events(text)))) == "ab"


@every
def test_errors_of_the_template_are_the_clients(server, dialect):
    if dialect.prompt != "messages":
        return
    response = server.http.post(dialect.path, json={**dialect.body(), "messages": [USER, USER]})
    assert response.status_code == 400 and "roles must alternate" in response.text
