"""The server's own replies as history: the template writes what the model wrote, and the parser reads it again."""

import copy
import itertools
import json

import pytest
import tinymodel
from canned import ALL, OSLO, TOOLS
from templates import ENDS, TEMPLATES

from kt_core.engine.prompt import chat_text
from kt_core.server.openai_fields import Message
from kt_core.server.openai_shapes import ChatShape
from kt_core.server.parsers import choose
from kt_core.server.replies import Replies, styled
from kt_core.types import Chunk, Request

USER = {"role": "user", "content": "hello"}
SINGLE = {"llama", "harmony"}


def prompt(template, style, *messages):
    tokenizer = copy.copy(tinymodel.tokenizer())
    tokenizer.chat_template = template
    plain = tuple(Message.model_validate(message).plain() for message in messages)
    request = styled(Request("r", messages=plain, tools=tuple(TOOLS)), style)
    return request, chat_text(tokenizer, request)


def reply(style, request, prompt_end, answer):
    shape = ChatShape({}, str, Replies(style, request, prompt_end))
    whole = shape.whole([Chunk(answer), Chunk("", finish_reason="stop")])
    return whole["message"], whole["finish_reason"]


def writes(name, calls, thought, said):
    """Whether a model of this style writes such an answer, and its template takes it back."""
    alone = (
        name in SINGLE and calls
    )  # a call of Llama is all of the answer; harmony's template takes no text beside one
    return bool(calls or said) and not (alone and (said or calls > 1)) and not (thought and name == "llama")


ANSWERS = [case for case in itertools.product(TEMPLATES, (0, 1, 2), (True, False), (True, False)) if writes(*case)]


@pytest.mark.parametrize(("name", "calls", "thought", "said"), ANSWERS)
def test_history_is_what_the_model_wrote(name, calls, thought, said):
    style = choose(TEMPLATES[name])
    assert style.calls.name == name and (style.thinking is None) == (name == "llama")
    made = [OSLO, ("get_weather", ALL)][:calls]
    ids = ["abcdefgh0", "abcdefgh1"] if name != "kimi-k2" else ["functions.get_weather:0", "functions.get_weather:1"]
    message = {
        "role": "assistant",
        "content": "I look." if said else None,
        "reasoning_content": "Hm.\nSo." if thought else None,
        "tool_calls": [
            {"id": id, "type": "function", "function": {"name": n, "arguments": json.dumps(a, ensure_ascii=False)}}
            for id, (n, a) in zip(ids, made, strict=False)
        ],
    }
    request, start = prompt(TEMPLATES[name], style, USER)
    _, whole = prompt(TEMPLATES[name], style, USER, message, {"role": "user", "content": "next"})
    assert whole.startswith(start)
    turn = whole[len(start) :].partition("next")[0].removesuffix("<|user|>").removesuffix("<|start|>user<|message|>")
    answer = turn
    for end in ENDS:
        answer = answer.removesuffix(end)
    got, reason = reply(style, request, start[-60:], answer)
    assert reason == ("tool_calls" if calls else "stop")
    assert (got["content"], got.get("reasoning_content")) == (message["content"], message["reasoning_content"])
    assert [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in got.get("tool_calls", [])] == made
    results = [{"role": "tool", "tool_call_id": c["id"], "content": "ok"} for c in got.get("tool_calls", [])]
    _, again = prompt(TEMPLATES[name], style, USER, got, *results)
    assert again.startswith(start + turn)


def test_text_beside_a_call_goes_where_the_template_takes_it():
    """gpt-oss says what it will do before a call; its template raises for text beside reasoning."""
    style = choose(TEMPLATES["harmony"])
    call = {"id": "c", "type": "function", "function": {"name": "time-now", "arguments": "{}"}}
    message = {"role": "assistant", "content": "Wait.", "reasoning": "Hm.", "tool_calls": [call]}
    _, text = prompt(TEMPLATES["harmony"], style, USER, message)
    assert "analysis<|message|>Hm.\nWait.<|end|>" in text
