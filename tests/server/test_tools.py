"""Reasoning and tool calls over HTTP, with a model that answers by a script."""

import openai
import pytest
from live import USER, error_of
from marked import ANSWER, MARKS, TOOLS, call, tokenizer_of
from test_http import events_of
from tinymodel import Scripted


def joined(events):
    """The message of a stream, put together as clients do it."""
    message, calls, reason = {"content": "", "reasoning_content": ""}, [], None
    for event in events:
        choice = event["choices"][0]
        reason = choice["finish_reason"] or reason
        for name in message:
            message[name] += choice["delta"].get(name) or ""
        for part in choice["delta"].get("tool_calls", []):
            if part["index"] == len(calls):
                assert part["id"] and part["type"] == "function" and part["function"]["name"]
                calls.append({"id": part["id"], "type": "function", "function": dict(part["function"])})
            else:
                assert set(part) == {"index", "function"} and set(part["function"]) == {"arguments"}
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return message, calls, reason


def test_whole_and_streamed(ask):
    server = ask(ANSWER)
    choice = server.chat(tools=TOOLS).json()["choices"][0]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert (message["reasoning_content"], message["reasoning"], message["content"]) == ("Hm. é", "Hm. é", "I look.")
    assert [c["function"] for c in message["tool_calls"]] == [
        {"name": "f", "arguments": '{"city": "Oslo"}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert [c["id"] for c in message["tool_calls"]] == ["functions.f:0", "functions.g:1"]
    events = events_of(server.chat(tools=TOOLS, stream=True))
    assert events[-1] == "[DONE]"
    streamed, calls, reason = joined(events[:-1])
    assert streamed == {name: message[name] for name in streamed}
    assert (calls, reason) == (message["tool_calls"], "tool_calls")
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_official_client(ask):
    server = ask(ANSWER)
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    with client.chat.completions.stream(model="tiny/model", messages=[USER], tools=TOOLS) as stream:
        final = stream.get_final_completion().choices[0]
    assert [c.function.arguments for c in final.message.tool_calls] == ['{"city": "Oslo"}', "{}"]
    history = [USER, final.message.model_dump(), {"role": "tool", "tool_call_id": "functions.f:0", "content": "cold"}]
    assert client.chat.completions.create(model="tiny/model", messages=history, tools=TOOLS).choices
    client.close()


def test_own_reply_as_history_is_the_answer_again(ask):
    """Else nothing that was computed for the answer serves the next turn."""
    server, tokenizer = ask(ANSWER.replace("<|hidden|> ", "").replace("\n\n", "")), tokenizer_of()
    message = server.chat(tools=TOOLS).json()["choices"][0]["message"]
    from kt_core.engine.prompt import chat_text
    from kt_core.server.openai_fields import Message
    from kt_core.types import Request

    history = tuple(Message.model_validate(m).plain() for m in (USER, message))
    text = chat_text(tokenizer, Request("r", messages=history))
    assert text.removesuffix("<|end|><|assistant|>").endswith(ANSWER.replace("<|hidden|> ", "").replace("\n\n", ""))


@pytest.mark.parametrize("stream", [False, True])
def test_every_limit(ask, stream):
    """Wherever the answer is cut off, what there is comes, with the reason."""
    server = ask(ANSWER)
    total = server.chat(tools=TOOLS).json()["usage"]["completion_tokens"]
    for limit in range(1, total + 1, 3):
        response = server.chat(tools=TOOLS, max_tokens=limit, stream=stream)
        assert response.status_code == 200
        if stream:
            assert joined(events_of(response)[:-1])[2] == ("length" if limit < total else "tool_calls")


def test_without_tools_and_with_choices(ask):
    server = ask(call("f", {}) + call("g", {}))
    alone = server.chat().json()["choices"][0]
    assert "tool_calls" not in alone["message"] and alone["finish_reason"] == "stop"
    assert server.chat(tools=TOOLS, tool_choice="none").json()["choices"][0] == alone
    one = server.chat(tools=TOOLS, parallel_tool_calls=False).json()["choices"][0]["message"]["tool_calls"]
    assert [c["function"]["name"] for c in one] == ["f"]
    two = server.chat(tools=TOOLS, n=2).json()["choices"]
    assert all([c["function"]["name"] for c in choice["message"]["tool_calls"]] == ["f", "g"] for choice in two)
    assert all(choice["message"]["content"] is None for choice in two)


def test_a_broken_call_is_text(ask):
    server = ask(f"a {MARKS[0]}functions.f:0{MARKS[1]}{{oops{MARKS[2]}")
    choice = server.chat(tools=TOOLS).json()["choices"][0]
    assert choice["message"]["content"] == "a functions.f:0{oops" and choice["finish_reason"] == "stop"


def test_settings_choose_the_parser(ask):
    answer = f"<think>a</think>b{call('f', {})}"
    message = ask(answer, tool_parser="none").chat(tools=TOOLS).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "bfunctions.f:0{}", "reasoning_content": "a", "reasoning": "a"}
    message = ask(answer, reasoning_parser="none").chat(tools=TOOLS).json()["choices"][0]["message"]
    assert message["content"] == "<think>a</think>b" and message["tool_calls"]


def test_reasoning_that_the_prompt_begins(ask):
    server = ask("Hm.</think>yes")
    message = server.chat(enable_thinking=True).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "yes")
    assert server.chat(reasoning_effort="high").json()["choices"][0]["message"] == message
    for fields in (
        {},
        {"enable_thinking": False},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"thinking": False}},
    ):
        assert server.chat(**fields).json()["choices"][0]["message"] == {"role": "assistant", "content": "Hm.yes"}
    assert (
        server.chat(enable_thinking=True, chat_template_kwargs={"thinking": False})
        .json()["choices"][0]["message"]["content"]
        .startswith("Hm.")
    )


def test_gpt_oss_ends_with_its_call(serve):
    """Its GGUF files do not list all the tokens that end an answer."""
    marks = ["<|start|>", "<|channel|>", "<|message|>", "<|call|>", "<|end|>"]
    tokenizer = tokenizer_of(marks)
    tokenizer.chat_template = (
        "{% if tools %}{% endif %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}<|start|>assistant{# <|channel|><|message|> #}"
    )
    text = "<|channel|>commentary to=functions.f json<|message|>{}<|call|><|start|>user<|message|>I made this up"
    runner = Scripted(tokenizer.encode(text, add_special_tokens=False))
    runner.vocab = len(tokenizer)
    choice = serve(runner, tokenizer=tokenizer).chat(tools=TOOLS).json()["choices"][0]
    assert choice["message"]["content"] is None and choice["finish_reason"] == "tool_calls"
    assert [c["function"] for c in choice["message"]["tool_calls"]] == [{"name": "f", "arguments": "{}"}]


def test_a_switch_that_the_template_does_not_have(serve):
    tokenizer = tokenizer_of()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    server = serve(Scripted([5]), tokenizer=tokenizer)
    assert "enable_thinking" in error_of(server.chat(enable_thinking=False), 400, code="template_args")


@pytest.mark.parametrize("arguments", ["{", "[1]", "5", 5, ["a"], "[" * 100_000])
def test_history_with_arguments_that_are_no_object(ask, arguments):
    made = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [made]}]
    message = error_of(ask("x").chat(messages=messages), 400)
    assert message.startswith("messages.1.tool_calls.0.function.arguments")


@pytest.mark.parametrize("arguments", ["", None, {}, "{}", {"a": 1}, '{"a": 1}'])
def test_history_with_arguments_as_clients_write_them(ask, arguments):
    made = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": arguments}}
    for content in ({"content": None}, {}, {"content": ""}):
        messages = [USER, {"role": "assistant", "tool_calls": [made], **content}]
        assert ask("x").chat(messages=messages).status_code == 200


def test_logprobs_of_all_tokens(ask):
    server = ask(ANSWER)
    whole = server.chat(tools=TOOLS, logprobs=True, top_logprobs=1).json()
    entries = whole["choices"][0]["logprobs"]["content"]
    assert len(entries) == whole["usage"]["completion_tokens"] - 1  # the end has no text
    events = events_of(server.chat(tools=TOOLS, logprobs=True, top_logprobs=1, stream=True))
    streamed = [e["choices"][0]["logprobs"] for e in events[:-1] if e["choices"][0]["logprobs"]]
    assert [entry for part in streamed for entry in part["content"]] == entries


def test_pings_while_a_call_is_written(ask, monkeypatch):
    from kt_core.server import streaming

    server = ask(call("f", {"text": "word " * 30}), delay=0.005)
    monkeypatch.setattr(streaming, "PING_SECONDS", 0.02)
    text = server.chat(tools=TOOLS, stream=True).text
    assert text.count(": ping") >= 2
    assert joined(events_of(server.chat(tools=TOOLS, stream=True))[:-1])[1]
