"""Ollama's dialect, with its official client and as lines on the wire."""

import json
from dataclasses import replace

import httpx
import ollama
import pytest
from live import USER
from marked import ANSWER, TOOLS, call
from tinymodel import Scripted, byte_tokens

from kt_core.types import ModelFiles, ModelSpec, Plan, ServerSettings

SPEC = ModelSpec(
    family="qwen3_moe",
    layers=2,
    hidden=32,
    vocab=300,
    context=1024,
    experts=6,
    experts_per_token=2,
    parameters=1_500_000_000,
    bytes_by_part={"experts": 1000, "other": 24},
    kv_bytes_per_token=64,
    formats={"Q4_K": 900, "F32": 124},
)
PLAN = Plan(ModelFiles("tiny", "/m/tiny.gguf", "gguf", ()), SPEC, (), {"cpu": 1024, "cuda:0": 10}, ServerSettings())


@pytest.fixture
def client_of():
    clients = []

    def make(running):
        clients.append(ollama.Client(running.url, transport=httpx.HTTPTransport(), trust_env=False))
        return clients[-1]

    yield make
    for client in clients:
        client._client.close()


def lines_of(response):
    assert response.status_code == 200 and response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    return [json.loads(line) for line in response.text.splitlines()]


def test_chat_whole_and_streamed(ask, client_of):
    server = ask(ANSWER)
    client = client_of(server)
    whole = client.chat("tiny/model", [USER], tools=TOOLS)
    message = whole.message
    assert (message.role, message.content, message.thinking) == ("assistant", "I look.", "Hm. é")
    assert [(c.function.name, c.function.arguments) for c in message.tool_calls] == [("f", {"city": "Oslo"}), ("g", {})]
    usage = server.chat(tools=TOOLS).json()["usage"]
    assert (whole.prompt_eval_count, whole.eval_count) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert whole.done and whole.done_reason == "stop"
    assert whole.total_duration >= whole.prompt_eval_duration + whole.eval_duration > 0
    parts = list(client.chat("tiny/model:latest", [USER], tools=TOOLS, stream=True))
    assert "".join(part.message.content for part in parts) == message.content
    assert "".join(part.message.thinking or "" for part in parts) == message.thinking
    assert [c.function.name for part in parts for c in part.message.tool_calls or ()] == ["f", "g"]
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == whole.eval_count


def test_generate(ask, client_of):
    server = ask("one two")
    client = client_of(server)
    assert client.generate("tiny/model", "hello").response == "one two"
    assert "".join(part.response for part in client.generate("tiny/model", "hello", stream=True)) == "one two"
    assert client.generate("tiny/model", "hello", options={"stop": ["two"]}).response == "one "
    limited = client.generate("tiny/model", "hello", options={"num_predict": 3})
    assert (limited.response, limited.done_reason, limited.eval_count) == ("one", "length", 3)
    assert client.generate("tiny/model", "hello", options={"num_predict": -1}).done_reason == "stop"
    system = client.generate("tiny/model", "hello", system="be kind").prompt_eval_count
    messages = [{"role": "system", "content": "be kind"}, USER]
    assert system == server.chat(messages=messages).json()["usage"]["prompt_tokens"]
    raw = client.generate("tiny/model", "hello", raw=True).prompt_eval_count
    assert raw == server.complete().json()["usage"]["prompt_tokens"] < system


def test_history_is_taken_back(ask, client_of):
    """The prompt of a second turn is the one that the other dialect has."""
    server = ask(ANSWER)
    client = client_of(server)
    first = client.chat("tiny/model", [USER], tools=TOOLS).message
    results = [{"role": "tool", "content": text, "tool_name": name} for name, text in (("f", "cold"), ("g", "warm"))]
    second = client.chat("tiny/model", [USER, first, *results], tools=TOOLS)
    answer = server.chat(tools=TOOLS).json()["choices"][0]["message"]
    tools = [{"role": "tool", "content": text, "tool_call_id": "c"} for text in ("cold", "warm")]
    chat = server.chat(messages=[USER, answer, *tools], tools=TOOLS).json()
    # The call's ids, which clients of this dialect do not send, differ in length.
    assert abs(second.prompt_eval_count - chat["usage"]["prompt_tokens"]) <= 20


def test_thinking(ask, server, client_of):
    with_switch = client_of(ask(ANSWER))
    on, off = (with_switch.chat("tiny/model", [USER], think=think).prompt_eval_count for think in (True, False))
    assert on > off
    assert with_switch.chat("tiny/model", [USER], think="high").prompt_eval_count == on
    assert client_of(server).chat("tiny/model", [USER], think=False, options={"num_predict": 1}).done


def test_think_of_a_model_that_cannot(serve, client_of):
    import copy

    import tinymodel

    plain = copy.deepcopy(tinymodel.tokenizer())
    plain.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    client = client_of(serve(Scripted(byte_tokens("ab")), tokenizer=plain))
    with pytest.raises(ollama.ResponseError, match="no thinking"):
        client.chat("tiny/model", [USER], think=True)
    assert client.chat("tiny/model", [USER], think=False).message.content == "ab"


def test_logprobs(ask, client_of):
    client = client_of(ask("Hi"))
    whole = client.chat("tiny/model", [USER], logprobs=True, top_logprobs=2)
    assert [entry.token for entry in whole.logprobs] == ["H", "i"]
    assert all(len(entry.top_logprobs) == 2 for entry in whole.logprobs)
    parts = client.generate("tiny/model", "x", logprobs=True, stream=True)
    assert [entry.token for part in parts for entry in part.logprobs or ()] == ["H", "i"]


def test_what_there_is(ask, client_of):
    server = ask("Hi", plan=PLAN)
    client = client_of(server)
    [model] = client.list().models
    assert (model.model, model.size, model.details.family) == ("tiny/model", 1024, "qwen3_moe")
    assert (model.details.parameter_size, model.details.quantization_level) == ("1.5B", "Q4_K")
    [running] = client.ps().models
    assert (running.digest, running.size_vram) == (model.digest, 10)
    assert running.context_length == server.engine.state()["context"]
    shown = client.show("tiny/model")
    assert shown.modelinfo["qwen3_moe.expert_count"] == 6 and shown.modelinfo["qwen3_moe.context_length"] > 0
    assert shown.capabilities == ["completion", "tools", "thinking"] and "messages" in shown.template
    assert server.http.post("/api/show", json={"name": "tiny/model"}).json()["details"] == shown.details.model_dump()
    assert server.http.get("/api/version").json()["version"].count(".") == 2
    other = replace(PLAN, spec=replace(SPEC, parameters=2))
    assert client_of(ask("Hi", plan=other)).list().models[0].digest != model.digest


def test_while_loading(serve):
    server = serve(loaded=False)
    assert server.http.get("/api/tags").json()["models"][0]["name"] == "tiny/model"
    assert server.http.get("/api/ps").json() == {"models": []}
    response = server.http.post("/api/chat", json={"messages": [USER]})
    assert response.status_code == 503 and isinstance(response.json()["error"], str)


BAD = [
    ("chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}), ("chat", {"messages": [{"role": "robot", "content": ""}]}),
    ("chat", {"options": {"mirostat": 2}}), ("chat", {"options": {"temperature": 3}}), ("chat", {"options": {"num_predict": 0}}),
    ("chat", {"options": {"repeat_last_n": 8}}), ("chat", {"options": {"seed": "1"}}), ("chat", {"options": {"stop": ""}}),
    ("chat", {"top_logprobs": 2}), ("chat", {"stream": "no"}), ("chat", {"tools": [{"type": "web"}]}), ("chat", {"format": "xml"}),
    ("generate", {"context": [1, 2]}), ("generate", {"suffix": "x"}), ("generate", {"template": "x"}), ("generate", {"images": ["/etc/passwd"]}),
    ("generate", {"raw": True, "system": "x"}),
]  # fmt: skip


@pytest.mark.parametrize(("route", "fields"), BAD, ids=str)
def test_refused(server, route, fields):
    base = {"messages": [USER]} if route == "chat" else {"prompt": "x"}
    response = server.http.post(f"/api/{route}", json={**base, **fields})
    assert response.status_code == 400 and set(response.json()) == {"error"}
    named = {"messages": "image" if "images" in str(fields) else "role", "images": "image"}.get(
        name := next(iter(fields)), name
    )
    option = next(iter(fields["options"])) if "options" in fields else named
    assert option in response.json()["error"] or option == "raw"


def test_another_model_and_no_body(server, client_of):
    with pytest.raises(ollama.ResponseError) as error:
        client_of(server).chat("other", [USER])
    assert error.value.status_code == 404
    assert set(server.http.post("/api/chat", content=b"{").json()) == {"error"}
    assert server.http.get("/api/nowhere").status_code == 404


def test_a_request_to_load_is_answered(server):
    for route in ("chat", "generate"):
        answer = server.http.post(f"/api/{route}", json={"model": "tiny/model", "keep_alive": -1}).json()
        assert answer["done"] is True and answer["done_reason"] == "load"


def test_failure_in_mid_stream(serve):
    def before(step):
        if step == 3:
            raise RuntimeError("boom")

    server = serve(Scripted(byte_tokens("abcdef"), before=before))
    *pieces, last = lines_of(server.http.post("/api/chat", json={"messages": [USER]}))
    assert "".join(piece["message"]["content"] for piece in pieces) == "ab" and "boom" in last["error"]


def test_one_call_in_pieces(ask):
    """However an answer is cut off, every line is JSON and the last one says why."""
    server = ask(call("f", {"city": "Oslo"}))
    for limit in (1, 5, 200):
        body = {"messages": [USER], "tools": TOOLS, "options": {"num_predict": limit}}
        lines = lines_of(server.http.post("/api/chat", json=body))
        assert lines[-1]["done_reason"] == ("length" if limit < 200 else "stop")
