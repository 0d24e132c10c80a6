"""OpenAI's responses, with the official client and as events on the wire."""

import json

import openai
import pytest
from live import error_of
from marked import ANSWER, TOOLS, call

PLAIN_TOOLS = [{"type": "function", **tool["function"]} for tool in TOOLS]
KINDS = {"message": "content", "reasoning": "content", "function_call": "arguments"}


@pytest.fixture
def client_of():
    clients = []

    def make(running):
        clients.append(openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0))
        return clients[-1].responses

    yield make
    for client in clients:
        client.close()


def post(server, **fields):
    return server.http.post("/v1/responses", json={"input": "hello", **fields})


def prompt_of(server, **fields):
    """The tokens of its prompt."""
    tokens: int = post(server, max_output_tokens=1, **fields).json()["usage"]["input_tokens"]
    return tokens


def events_of(response):
    """(name, data) of every event; asserts framing and numbers."""
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    events = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
        assert events[-1][0] == events[-1][1]["type"] and events[-1][1]["sequence_number"] == number
    return events


def plain(item):
    """An item without what is new in each answer."""
    return {name: value for name, value in item.items() if name != "id"}


def test_whole(ask, client_of):
    server = ask(ANSWER)
    answer = client_of(server).create(model="tiny/model", input="hello", instructions="be kind", tools=PLAIN_TOOLS)
    assert (answer.object, answer.status, answer.error, answer.store) == ("response", "completed", None, False)
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call", "function_call"]
    thought, said, first, second = answer.output
    assert thought.content[0].text == "Hm. é" and thought.summary == []
    assert answer.output_text == "I look." and said.content[0].annotations == []
    assert (first.name, first.arguments, first.call_id) == ("f", '{"city": "Oslo"}', "functions.f:0")
    assert (second.name, second.arguments) == ("g", "{}")
    assert all(item.status == "completed" for item in answer.output)
    usage = answer.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert 0 < usage.output_tokens_details.reasoning_tokens < usage.output_tokens
    chat = server.chat(
        messages=[{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}], tools=TOOLS
    )
    assert usage.input_tokens == chat.json()["usage"]["prompt_tokens"]


def test_cached_tokens(server):
    for _ in range(2):
        usage = post(server, input="hello " * 200, max_output_tokens=1).json()["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] >= 64


def test_streamed(ask, client_of):
    """The events' names and order, and pieces that add up to the whole answer."""
    server = ask(ANSWER)
    whole = post(server, tools=PLAIN_TOOLS).json()
    events = events_of(post(server, tools=PLAIN_TOOLS, stream=True))
    names = [name for name, _ in events]
    assert names[:2] == ["response.created", "response.in_progress"] and names[-1] == "response.completed"
    assert names.count("response.output_item.added") == names.count("response.output_item.done") == 4
    final = events[-1][1]["response"]
    assert [plain(item) for item in final["output"]] == [plain(item) for item in whole["output"]]
    assert final["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    for index, item in enumerate(final["output"]):
        own = [(name, data) for name, data in events if data.get("output_index") == index]
        prefix = {"message": "response.output_text", "reasoning": "response.reasoning_text"}.get(
            item["type"], "response.function_call_arguments"
        )
        inner = ["response.content_part.added"] if item["type"] != "function_call" else []
        order = ["response.output_item.added", *inner, f"{prefix}.delta", f"{prefix}.done"]
        order += ["response.content_part.done"] if inner else []
        assert list(dict.fromkeys(name for name, _ in own)) == [*order, "response.output_item.done"]
        text = "".join(data["delta"] for name, data in own if name == f"{prefix}.delta")
        assert text == (item["arguments"] if not inner else item["content"][0]["text"])
        assert own[0][1]["item"]["status"] == "in_progress" and own[-1][1]["item"] == item
        assert all(data.get("item_id", item["id"]) == item["id"] for _, data in own)
    added = next(data for name, data in events if name == "response.content_part.added")
    assert added["part"]["text"] == ""


def test_streamed_by_the_client(ask, client_of):
    client = client_of(ask(ANSWER))
    with client.stream(model="tiny/model", input="hello", tools=PLAIN_TOOLS) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == "I look." and len(final.output) == 4


def test_a_conversation_goes_on(ask, client_of):
    """What the server wrote is taken back, and is the prompt that the same chat has."""
    server = ask(ANSWER)
    client = client_of(server)
    first = client.create(model="tiny/model", input="hello", tools=PLAIN_TOOLS)
    outputs = [
        {"type": "function_call_output", "call_id": "functions.f:0", "output": "cold"},
        {
            "type": "function_call_output",
            "call_id": "functions.g:1",
            "output": [{"type": "input_text", "text": "warm"}],
        },
    ]
    history = [{"role": "user", "content": "hello"}, *(item.model_dump() for item in first.output), *outputs]
    second = client.create(model="tiny/model", input=history, tools=PLAIN_TOOLS)
    message = server.chat(tools=TOOLS).json()["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call, "content": text}
        for call, text in (("functions.f:0", "cold"), ("functions.g:1", "warm"))
    ]
    chat = server.chat(messages=[{"role": "user", "content": "hello"}, message, *results], tools=TOOLS).json()
    assert second.usage.input_tokens == chat["usage"]["prompt_tokens"] > first.usage.input_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_every_limit(ask, stream):
    """Wherever the answer is cut off, the items that there are come, with the reason."""
    server = ask(ANSWER)
    total = post(server, tools=PLAIN_TOOLS).json()["usage"]["output_tokens"]
    for limit in range(1, total + 1, 3):
        response = post(server, tools=PLAIN_TOOLS, max_output_tokens=limit, stream=stream)
        name, data = (
            events_of(response)[-1]
            if stream
            else (f"response.{response.json()['status']}", {"response": response.json()})
        )
        answer = data["response"]
        assert name == ("response.incomplete" if limit < total else "response.completed")
        assert answer["incomplete_details"] == ({"reason": "max_output_tokens"} if limit < total else None)
        assert all(item["status"] == "completed" for item in answer["output"][:-1])


def test_logprobs(ask):
    server = ask("Hi")
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    part = post(server, **fields).json()["output"][0]["content"][0]
    assert [entry["token"] for entry in part["logprobs"]] == ["H", "i"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
    deltas = [
        data for name, data in events_of(post(server, stream=True, **fields)) if name == "response.output_text.delta"
    ]
    assert [entry for delta in deltas for entry in delta["logprobs"]] == part["logprobs"]
    assert post(server).json()["output"][0]["content"][0]["logprobs"] == []


def test_inputs_that_are_the_same(ask):
    server = ask("Hi")
    same = [
        "hello",
        [{"role": "user", "content": "hello"}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
    ]
    assert len({prompt_of(server, input=value) for value in same}) == 1
    roles = [
        [{"role": role, "content": "be kind"}, {"role": "user", "content": "hello"}] for role in ("system", "developer")
    ]
    assert len({prompt_of(server, input=value) for value in roles} | {prompt_of(server, instructions="be kind")}) == 1


BAD = [
    {"store": True}, {"background": True}, {"previous_response_id": "resp_1"}, {"conversation": "c"}, {"truncation": "auto"},
    {"prompt": {"id": "p"}}, {"tools": [{"type": "web_search"}]}, {"input": []}, {"input": None}, {"input": [{"type": "item_reference", "id": "x"}]},
    {"input": [{"content": "x"}]}, {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "file:///etc/passwd"}]}]},
    {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "http://localhost/x"}]}]},
    {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]}, {"max_output_tokens": 0},
    {"include": ["file_search_call.results"]}, {"tool_choice": {"type": "file_search"}}, {"temperature": "1"},
    {"top_logprobs": 2},
]  # fmt: skip


@pytest.mark.parametrize("fields", BAD, ids=lambda fields: json.dumps(fields)[:60])
@pytest.mark.parametrize("stream", [False, True])
def test_refused(server, fields, stream):
    error_of(post(server, stream=stream, **fields), 400)


def test_harmless(ask):
    fields = {
        "store": False,
        "background": False,
        "truncation": "disabled",
        "service_tier": "auto",
        "metadata": {"a": "b"},
    }
    fields |= {"include": ["reasoning.encrypted_content"], "previous_response_id": None, "user": "u"}
    answer = post(ask("Hi"), **fields).json()
    assert answer["metadata"] == {"a": "b"} and answer["user"] == "u"


def test_one_call_where_asked(ask):
    answer = post(ask(call("f", {}) + call("g", {}, 1)), tools=PLAIN_TOOLS, parallel_tool_calls=False).json()
    assert [item["name"] for item in answer["output"]] == ["f"] and answer["parallel_tool_calls"] is False


def test_failures(serve, client_of):
    from tinymodel import Scripted, byte_tokens

    def before(step):
        if step == 3:
            raise RuntimeError("boom")

    server = serve(Scripted(byte_tokens("abcdef"), before=before))
    name, data = events_of(post(server, stream=True))[-1]
    assert name == "response.failed" and data["response"]["status"] == "failed"
    assert data["response"]["error"]["code"] == "server_error" and "boom" in data["response"]["error"]["message"]
    [item] = data["response"]["output"]
    assert item["content"][0]["text"] == "ab" and item["status"] == "incomplete"
    with pytest.raises(openai.NotFoundError):
        client_of(server).create(model="other", input="x")
