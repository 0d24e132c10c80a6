"""Anthropic's dialect: the official client, and what goes over the wire."""

import json

import anthropic
import pytest
from live import USER
from marked import ANSWER, TOOLS, call
from tinymodel import Scripted, byte_tokens

CLAUDE_TOOLS = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS]


@pytest.fixture
def client_of():
    clients = []

    def make(server, key="none"):
        clients.append(anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def fields(**more):
    return {"model": "tiny/model", "max_tokens": 500, "messages": [USER], **more}


def test_whole_and_streamed(ask, client_of):
    client = client_of(ask(ANSWER))
    whole = client.messages.create(**fields(tools=CLAUDE_TOOLS))
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (whole.content[0].thinking, whole.content[1].text) == ("Hm. é", "I look.")
    assert [(b.id, b.name, b.input) for b in whole.content[2:]] == [
        ("functions.f:0", "f", {"city": "Oslo"}),
        ("functions.g:1", "g", {}),
    ]
    assert whole.stop_reason == "tool_use" and whole.usage.output_tokens > 10
    with client.messages.stream(**fields(tools=CLAUDE_TOOLS)) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "I look."
    assert final.model_dump(exclude={"id"}) == whole.model_dump(exclude={"id"})


def test_events_on_the_wire(ask):
    server = ask("<think>a</think>b" + call("f", {"a": 1}))
    response = server.http.post("/v1/messages", json=fields(tools=CLAUDE_TOOLS, stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    events = []
    for block in blocks:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    start, delta, stop = (f"content_block_{part}" for part in ("start", "delta", "stop"))
    kinds = [event["type"] for event in events]
    assert kinds == ["message_start", *[start, delta, stop] * 3, "message_delta", "message_stop"]
    assert [event["index"] for event in events if "index" in event] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    deltas = [event["delta"] for event in events if event["type"] == delta]
    assert deltas[0] == {"type": "thinking_delta", "thinking": "a"} and deltas[1] == {"type": "text_delta", "text": "b"}
    assert deltas[2]["type"] == "input_json_delta" and json.loads(deltas[2]["partial_json"]) == {"a": 1}
    assert events[0]["message"]["usage"]["input_tokens"] > 0
    assert events[-2]["delta"]["stop_reason"] == "tool_use" and events[-2]["usage"]["output_tokens"] > 0


def test_own_reply_as_history(ask, client_of):
    client = client_of(ask(ANSWER))
    reply = client.messages.create(**fields(tools=CLAUDE_TOOLS))
    results = [
        {"type": "tool_result", "tool_use_id": "functions.f:0", "content": "cold"},
        {"type": "tool_result", "tool_use_id": "functions.g:1", "content": [{"type": "text", "text": "late"}]},
        {"type": "text", "text": "So?"},
    ]
    history = [USER, {"role": "assistant", "content": reply.content}, {"role": "user", "content": results}]
    again = client.messages.create(**fields(messages=history, tools=CLAUDE_TOOLS))
    counted = client.messages.count_tokens(model="tiny/model", messages=history, tools=CLAUDE_TOOLS)
    assert counted.input_tokens == again.usage.input_tokens
    assert counted.input_tokens > client.messages.count_tokens(model="tiny/model", messages=[USER]).input_tokens


def test_a_last_message_of_the_assistant_is_continued(ask):
    server = ask("<think>no</think> more")
    begun = [USER, {"role": "assistant", "content": [{"type": "text", "text": "I say"}]}]
    answer = server.http.post("/v1/messages", json=fields(messages=begun)).json()
    chat = {"messages": [USER, {"role": "assistant", "content": "I say"}], "continue_final_message": True}
    other = server.chat(**chat).json()
    assert answer["usage"]["input_tokens"] == other["usage"]["prompt_tokens"]
    assert answer["content"][-1] == {"type": "text", "text": other["choices"][0]["message"]["content"]}


def test_same_prompt_as_the_other_dialect(ask):
    server = ask("x")
    asked = fields(
        system=[{"type": "text", "text": "Be kind."}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    )
    mine = server.http.post("/v1/messages/count_tokens", json=asked).json()["input_tokens"]
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]
    assert mine == server.http.post("/tokenize", json={"messages": messages}).json()["count"]


def test_limits_and_switches(ask, client_of):
    client = client_of(ask("Hm.</think>yes"))
    cut = client.messages.create(**fields(max_tokens=1))
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 1
    thought = client.messages.create(**fields(thinking={"type": "enabled", "budget_tokens": 1024}))
    assert [block.type for block in thought.content] == ["thinking", "text"]
    for thinking in ({"type": "disabled"}, {"type": "adaptive"}):
        assert [b.type for b in client.messages.create(**fields(thinking=thinking)).content] == ["text"]
    stopped = client.messages.create(**fields(stop_sequences=["y"]))
    assert stopped.content[0].text == "Hm."
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "y")
    with client.messages.stream(**fields(stop_sequences=["no", "es"])) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", "es")
    whole = client.messages.create(**fields(stop_sequences=["no"]))
    assert (whole.stop_reason, whole.stop_sequence) == ("end_turn", None)


def test_one_call_at_a_time(ask, client_of):
    client = client_of(ask(call("f", {}) + call("g", {})))
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert len(client.messages.create(**fields(tools=CLAUDE_TOOLS, tool_choice=choice)).content) == 1
    none = client.messages.create(**fields(tools=CLAUDE_TOOLS, tool_choice={"type": "none"}))
    assert none.stop_reason == "end_turn"


BAD = [
    {"max_tokens": 0}, {"max_tokens": None}, {"messages": []}, {"messages": [{"role": "system", "content": "x"}]},
    {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, {"temperature": 3}, {"system": 5},
    {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "", "input": {}}]}]},
    {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": "x"}]}]},
    {"tools": [{"name": "f"}]}, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, {"stop_sequences": [""]},
    {"tool_choice": {"type": "any"}}, {"tool_choice": {"type": "tool", "name": "f"}}, {"thinking": {"type": "maybe"}},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_refused(server, bad):
    response = server.http.post("/v1/messages", json=fields(**bad))
    assert response.status_code == 400, response.text
    body = response.json()
    assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error" and body["error"]["message"]


def test_errors_have_the_clients_classes(serve, client_of):
    server = serve(api_key="secret")
    with pytest.raises(anthropic.AuthenticationError):
        client_of(server, "wrong").messages.create(**fields())
    good = client_of(server, "secret")
    assert good.messages.create(**fields(max_tokens=2)).content
    with pytest.raises(anthropic.NotFoundError):
        good.messages.create(**fields(model="other"))
    with pytest.raises(anthropic.BadRequestError, match="roles must alternate"):
        good.messages.create(**fields(messages=[USER, USER]))
    loading = server.http.get("/v1/messages", headers={"x-api-key": "secret"})
    assert loading.status_code == 405 and loading.json()["type"] == "error"


def test_a_failure_in_mid_stream(serve):
    nan = Scripted(byte_tokens("abc"), shape=lambda step, logits: logits * float("nan") if step == 2 else logits)
    text = serve(nan).http.post("/v1/messages", json=fields(stream=True)).text
    last = text.strip().split("\n\n")[-1]
    assert last.startswith("event: error\ndata: ") and "NaN" in last
    response = serve(Scripted(byte_tokens("abc"), shape=lambda step, logits: logits * float("nan"))).http.post(
        "/v1/messages", json=fields()
    )
    assert response.status_code == 500 and response.json()["error"]["type"] == "api_error"


def test_effort(server):
    """As in the other dialect: none turns reasoning off where the template has a switch for it."""

    def prompt(**more):
        return server.http.post("/v1/messages/count_tokens", json={"messages": [USER], **more}).json()["input_tokens"]

    assert prompt(output_config={"effort": "none"}) == prompt(thinking={"type": "disabled"}) > prompt()
    assert prompt(output_config={"effort": "high"}) == prompt()
