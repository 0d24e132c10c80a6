"""Forms of answers and calls that have to be made, over HTTP, with a random model that would never write them."""

import json
import re

import anthropic
import openai
import pytest
import tinymodel
from live import USER, Running, error_of
from marked import MARKS, call, tokenizer_of
from test_http import events_of
from test_tools import joined

from kt_core.engine.engine import Engine
from kt_core.engine.runners import runner_for
from kt_core.server.responses_fields import Responses
from kt_core.server.state import State

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "word": {"enum": ["sun", "moon"]}},
    "required": ["n", "word"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
OTHER = {"type": "function", "function": {"name": "g", "parameters": {"properties": {}, "additionalProperties": False}}}
# A random model is as fond of white space as of anything else.
NO_SPACE = {str(token): -50 for token in tinymodel.byte_tokens(" \n\t\r")}
PLAIN = {"temperature": 1, "seed": 5, "max_tokens": 300, "logit_bias": NO_SPACE}


def form(schema=SCHEMA, **more):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


def check(text):
    value = json.loads(text)
    assert set(value) == {"n", "word"} and 0 <= value["n"] <= 9 and value["word"] in ("sun", "moon")


@pytest.fixture(scope="module")
def marked():
    """The random model with the marks of Kimi K2 and of reasoning as tokens; it has no idea what they are for."""
    tokenizer = tokenizer_of((*MARKS, "<think>", "</think>"))
    running = Running(State("tiny/model", "", Engine(runner_for(_larger(len(tokenizer)), 1024), tokenizer)))
    yield running
    running.close()


def _larger(vocab):
    import torch
    from transformers import Qwen3MoeForCausalLM

    config = tinymodel.model().config.to_dict() | {"vocab_size": vocab}
    torch.manual_seed(3)
    return Qwen3MoeForCausalLM(type(tinymodel.model().config).from_dict(config)).eval()


def content(response):
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    return (choice["message"]["content"] if "message" in choice else choice["text"]), choice["finish_reason"]


@pytest.mark.parametrize("endpoint", ["chat", "complete"])
@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": form()},
        {"response_format": form(strict=True)},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"guided_json": SCHEMA},
        {"json_schema": SCHEMA},
    ],
    ids=["openai", "strict", "object", "vllm", "text", "guided", "llama"],
)
def test_json_schema_under_every_name(server, endpoint, fields):
    text, reason = content(getattr(server, endpoint)(**PLAIN, **fields))
    assert reason == "stop"
    check(text)


@pytest.mark.parametrize("endpoint", ["chat", "complete"])
@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"regex": "[ab]{3}c"}}, "[ab]{3}c"),
        ({"guided_regex": r"^\d\d$"}, "[0-9][0-9]"),
        ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
        ({"guided_choice": ["left", "right"]}, "left|right"),
        ({"grammar": 'root ::= "(" [x-z]{2} ")"'}, r"\([x-z]{2}\)"),
        ({"guided_grammar": 'start: "(" /[x-z]{2}/ ")"'}, r"\([x-z]{2}\)"),
        ({"structured_outputs": {"grammar": 'start: "a" | "b"'}}, "a|b"),
    ],
)
def test_expressions_choices_and_grammars(server, endpoint, fields, pattern):
    text, reason = content(getattr(server, endpoint)(**PLAIN, **fields))
    assert re.fullmatch(pattern, text) and reason == "stop"


def test_json_object_is_json_or_cut_off(server):
    for seed in range(3):
        text, reason = content(
            server.chat(**{**PLAIN, "seed": seed, "max_tokens": 100}, response_format={"type": "json_object"})
        )
        assert text.startswith("{")
        assert reason == "length" or isinstance(json.loads(text), dict)
    assert content(server.chat(response_format={"type": "json_object"}, max_tokens=1)) == ("{", "length")


def test_streamed_and_with_choices(server):
    fields = {**PLAIN, "response_format": form(), "n": 3}
    texts = [choice["message"]["content"] for choice in server.chat(**fields).json()["choices"]]
    streamed = {}
    for event in events_of(server.chat(**fields, stream=True))[:-1]:
        choice = event["choices"][0]
        streamed[choice["index"]] = streamed.get(choice["index"], "") + (choice["delta"].get("content") or "")
    assert [streamed[index] for index in range(3)] == texts
    for text in texts:
        check(text)


def test_official_client_parses(server):
    from pydantic import BaseModel

    class Answer(BaseModel):
        ok: bool

    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    parsed = client.chat.completions.parse(model="tiny/model", messages=[USER], response_format=Answer, seed=1)
    assert isinstance(parsed.choices[0].message.parsed, Answer)
    client.close()


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"response_format": form({"type": "string", "format": "no-such"}, strict=True)}, "no-such"),
        ({"response_format": form({"type": "strin"})}, "strin"),
        ({"response_format": form({"$ref": "http://example.com/schema"})}, "example.com"),
        ({"response_format": form({"type": "array", "items": {"$ref": "#/nowhere"}})}, "nowhere"),
        ({"guided_regex": "(?=a)b"}, "look"),
        ({"guided_regex": "("}, "regex"),
        ({"grammar": "root ::= ("}, "Expected"),
        ({"guided_grammar": "start: other"}, "other"),
        ({"guided_json": {"enum": ["x" * 1000] * 1100}}, "characters"),
        ({"json_schema": 0}, "object"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "only one"),
        ({"response_format": form(), "grammar": 'root ::= "a"'}, "only one"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(server, fields, word):
    field = "response_format" if word == "only one" else next(iter(fields))
    assert word in error_of(server.chat(**fields, max_tokens=5), 400, param=field)
    assert server.engine.state()["running"] == 0


def test_deep_schemas(server):
    for depth in (300, 3000):
        for key, opened, closed in (("items", "", ""), ("anyOf", "[", "]")):
            schema = f'{{"{key}":{opened}' * depth + "{}" + f"{closed}}}" * depth
            body = '{"messages":[{"role":"user","content":"x"}],"max_tokens":1,"guided_json":' + schema + "}"
            response = server.http.post("/v1/chat/completions", content=body)
            assert response.status_code == 400 or (depth == 300 and response.status_code == 200), response.text


def test_an_object_of_many_keys_that_may_be_left_out(server):
    """Four items of the parser's a key, which llguidance takes 2000 of by itself."""
    names = {f"key{number}": {"type": "integer"} for number in range(2000)}
    schema = {"type": "object", "properties": names, "additionalProperties": False}
    fields = {"response_format": form(schema), **PLAIN, "max_tokens": 40}
    text, _ = content(server.chat(**fields))
    assert re.match(r'\{\s*("key\d|\}|$)', text), text


def test_not_strict_leaves_out_what_no_grammar_can_say(server):
    schema = {"type": "object", "properties": {"d": {"type": "string", "format": "no-such", "maxLength": 3}}}
    text, reason = content(server.chat(**PLAIN, response_format=form({**schema, "additionalProperties": False})))
    assert reason == "stop" and set(json.loads(text)) <= {"d"}


def test_reasoning_comes_before_the_form(marked):
    fields = {**PLAIN, "response_format": form(), "logit_bias": {**NO_SPACE, _id("</think>"): 30}}
    for switch in (True, False):
        message = marked.chat(**fields, enable_thinking=switch).json()["choices"][0]["message"]
        check(message["content"])
        assert "reasoning_content" not in message or "<" not in message["reasoning_content"]
    # The bias would end the reasoning at once; without it the limit does, and nothing of the form has come.
    choice = marked.chat(
        **{**fields, "logit_bias": {_id("</think>"): -100}, "max_tokens": 9}, enable_thinking=True
    ).json()["choices"][0]
    assert choice["finish_reason"] == "length" and choice["message"]["content"] in ("", None)


def _id(mark):
    return str(tokenizer_of((*MARKS, "<think>", "</think>")).convert_tokens_to_ids(mark))


CHOICES = [
    ("required", {"f", "g"}),
    ({"type": "function", "function": {"name": "g"}}, {"g"}),
    ({"type": "function", "function": {"name": "f"}}, {"f"}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("choice", "names"), CHOICES, ids=["required", "g", "f"])
def test_a_call_has_to_be_made(marked, choice, names, stream):
    fields = {**PLAIN, "tools": [TOOL, OTHER], "tool_choice": choice, "logit_bias": {**NO_SPACE, _id("</think>"): 30}}
    response = marked.chat(**fields, parallel_tool_calls=False, stream=stream)
    if stream:
        message, calls, reason = joined(events_of(response)[:-1])
    else:
        whole = response.json()["choices"][0]
        message, calls, reason = whole["message"], whole["message"]["tool_calls"], whole["finish_reason"]
    assert reason == "tool_calls" and len(calls) == 1 and not message["content"]
    function = calls[0]["function"]
    assert function["name"] in names
    if function["name"] == "f":
        check(function["arguments"])
    else:
        assert function["arguments"] == "{}"


def test_a_call_or_the_form(marked):
    """Tools that may be called, beside a form: either a call that fits or a text that does; here as the first letter says."""
    for letter, called in (("<", True), ("{", False)):
        bias = {**NO_SPACE, _id("<think>"): -100, str(tinymodel.byte_tokens(letter)[0]): 60}
        fields = {**PLAIN, "tools": [TOOL], "response_format": form(), "logit_bias": bias}
        message = marked.chat(**fields, parallel_tool_calls=False).json()["choices"][0]["message"]
        assert bool(message.get("tool_calls")) == called
        check(message["tool_calls"][0]["function"]["arguments"] if called else message["content"])


def test_cut_off_within_a_call(marked):
    choice = marked.chat(tools=[TOOL], tool_choice="required", max_tokens=3, logit_bias={_id("<think>"): -100}).json()[
        "choices"
    ][0]
    assert choice["finish_reason"] == "length" and not choice["message"].get("tool_calls")


def test_auto_stays_free(marked, monkeypatch):
    made = []
    monkeypatch.setattr(type(marked.engine._grammars), "start", lambda *args: made.append(args))
    assert marked.chat(tools=[TOOL], tool_choice="auto", max_tokens=3).status_code == 200
    assert marked.chat(tools=[TOOL], max_tokens=3).status_code == 200 and not made


def test_calls_that_cannot_be_asked_for(server, marked):
    for fields in (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "h"}}},
        {"tool_choice": "required"},
        {"tools": [], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    ):
        error_of(marked.chat(**fields), 400, param="tool_choice")
    # This one's template has no marks of calls.
    error_of(server.chat(tools=[TOOL], tool_choice="required"), 400, "no_calls", "tool_choice")


def test_anthropic_tool_choice(ask):
    """The model would call g; where it has to be f, only the form of g is left of what it wants."""
    server = ask(f"<|tool_calls_section_begin|>{call('g', {})}<|tool_calls_section_end|>")
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    tools = [{"name": name, "input_schema": nothing} for name in "fg"]
    for choice, name in (
        ({"type": "tool", "name": "g"}, "g"),
        ({"type": "any"}, "g"),
        ({"type": "tool", "name": "f"}, "f"),
    ):
        fields = {"model": "tiny/model", "messages": [USER], "tools": tools, "max_tokens": 200}
        choice = {**choice, "disable_parallel_tool_use": True}
        message = client.messages.create(**fields, tool_choice=choice, extra_body={"temperature": 0})
        calls = [(block.name, block.input) for block in message.content if block.type == "tool_use"]
        assert calls == [(name, {})] and message.stop_reason == "tool_use"
    client.close()


def post(running, path, **fields):
    response = running.http.post(path, json={"model": "tiny/model", **fields})
    assert response.status_code == 200, response.text
    return response.json()


def test_the_form_in_every_dialect(server):
    """Each maps its own words for a schema onto the same grammar."""
    schema = {"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"], "additionalProperties": False}
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    answer = post(server, "/v1/responses", input="Hi", text=text, temperature=0)
    assert json.loads(answer["output"][-1]["content"][0]["text"]) == {"n": 7} and answer["status"] == "completed"
    fields = {"stream": False, "format": schema, "options": {"temperature": 0}}
    for path, more in (("/api/chat", {"messages": [USER]}), ("/api/generate", {"prompt": "Hi"})):
        found = post(server, path, **fields, **more)
        assert json.loads(found["message"]["content"] if "message" in found else found["response"]) == {"n": 7}
    config = {"format": {"type": "json_schema", "schema": schema}}
    fields = {"messages": [USER], "max_tokens": 200, "temperature": 0, "output_config": config}
    assert json.loads(post(server, "/v1/messages", **fields)["content"][0]["text"]) == {"n": 7}


@pytest.mark.parametrize(
    ("choice", "name"), [("required", None), ({"type": "function", "name": "f"}, "f"), ("auto", None)]
)
def test_a_call_has_to_be_made_in_responses(choice, name):
    """The random model would think for ever there: what the fields say is looked at."""
    tool = {"type": "function", "name": "f", "parameters": SCHEMA}
    chat = Responses.model_validate({"input": "Hi", "tools": [tool], "tool_choice": choice}).chat()
    assert [made.function.model_dump()["parameters"] for made in chat.tools] == [SCHEMA]
    assert (chat.tool_choice.function.name if name else chat.tool_choice) == (name or choice)


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_grammar": "start: start"},
        {"guided_regex": "[^\\x00-\\U0010ffff]"},
        {"response_format": form({"$ref": "#"})},
        {"guided_regex": "x" * 200_000},
        {"guided_choice": ["a"] * 100_000},
    ],
    ids=["endless", "nothing", "itself", "long", "many"],
)
def test_forms_that_nothing_can_have(server, fields):
    """Said at once and in words: no step is computed, and nothing of the library's insides comes out."""
    message = error_of(server.chat(**fields, max_tokens=3), 400, "grammar")
    assert not re.search(r"panic|backtrace|\d \|", message) and len(message) < 500
