"""Grammars of answers: what the families write fits them, and what fits them is read as what was asked for."""

import json
import random
from functools import cache

import numpy as np
import pytest
from answers import CASES
from canned import WEATHER, meaning_of, style
from hypothesis import given, settings
from hypothesis import strategies as st
from marked import tokenizer_of

from kt_core.engine.constraint import Grammars
from kt_core.errors import UsageError
from kt_core.server import grammars
from kt_core.server.parsers import STYLES, Call
from kt_core.types import Format, Request

PARAMETERS = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["sea", "two words", "<b>"]},
        "count": {"type": "integer", "minimum": -5, "maximum": 300},
        "on": {"type": "boolean"},
        "name": {"type": "string", "maxLength": 5},
        "code": {"type": "string", "pattern": "^[A-C]{2,4}$"},
        "either": {"type": ["string", "null"], "maxLength": 3},
        "list": {"type": "array", "items": {"$ref": "#/$defs/small"}, "maxItems": 3},
        "inner": {
            "type": "object",
            "properties": {"x": {"const": 1}},
            "required": ["x"],
            "additionalProperties": False,
        },
        "more": {"anyOf": [{"type": "integer", "maximum": 9, "minimum": 0}, {"type": "null"}]},
    },
    "$defs": {"small": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["kind", "count", "name", "code", "list", "inner"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look-up", "parameters": PARAMETERS, "strict": True}}
OTHER = {
    "type": "function",
    "function": {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
}
NAMES = {calls: thinking for calls, thinking in CASES if thinking != "none"}
NAMES = {found.name: NAMES.get(found.name, "none") for found in STYLES}


def fits(arguments):
    """Whether these are arguments for PARAMETERS; written out, because the grammar's maker shall not judge itself."""
    whole = type(arguments["count"]) is int and -5 <= arguments["count"] <= 300
    optional = arguments.keys() <= PARAMETERS["properties"].keys() and arguments.keys() >= set(PARAMETERS["required"])
    named = isinstance(arguments["name"], str) and len(arguments["name"]) <= 5
    coded = 2 <= len(arguments["code"]) <= 4 and set(arguments["code"]) <= set("ABC")
    either = arguments.get("either")
    listed = all(type(item) is int and 0 <= item <= 9 for item in arguments["list"]) and len(arguments["list"]) <= 3
    more = arguments.get("more")
    return (
        whole and optional and named and coded and listed
        and arguments["kind"] in ("sea", "two words", "<b>")
        and type(arguments.get("on", True)) is bool
        and (either is None or (isinstance(either, str) and len(either) <= 3))
        and arguments["inner"] == {"x": 1}
        and (more is None or (type(more) is int and 0 <= more <= 9))
    )  # fmt: skip


@cache
def reader(marks):
    tokenizer = tokenizer_of(marks)
    return tokenizer, Grammars(tokenizer, len(tokenizer), frozenset({1}))


def bound(found, tools, special, **fields):
    """The beginning of an answer, and the tokenizer; with `special`, the style's marks are tokens of their own."""
    parser = found.parser(tools or [OTHER])
    marks = [
        mark for mark in (parser.marks if parser else ()) if mark.endswith(("|>", ">", "｜>", "]")) and len(mark) > 2
    ]
    tokenizer, known = reader(tuple(marks) if special else ())
    defaults = {"id": "r", "messages": ({"role": "user", "content": "x"},), "tools": tuple(tools)}
    prompt_end, parallel = fields.pop("prompt_end", ""), fields.pop("parallel", True)
    grammar = grammars.grammar_of(Request(**{**defaults, **fields}), found, known.special, prompt_end, parallel)
    return known.start(grammar), tokenizer


def take(constraint, tokenizer, text):
    """Whether the text is an answer: each token of it was allowed, and it may end there."""
    for token in tokenizer.encode(text, add_special_tokens=False):
        if not constraint.bounds()[token] > 0:
            return False
        if constraint.accept(token):
            return True
    return bool(constraint.bounds()[1] > 0)


def walk(constraint, tokenizer, seed, limit=1000):
    source, tokens = random.Random(seed), []
    for _ in range(limit):
        allowed = np.flatnonzero(constraint.bounds() > 0).tolist()
        # White space is left out where it can be: there is much room for it.
        allowed = [token for token in allowed if tokenizer.decode([token]).strip()] or allowed
        token = 1 if 1 in allowed and source.random() < 0.5 else source.choice(allowed)
        ended = constraint.accept(token)
        if token != 1:
            tokens.append(token)
        if ended:
            return tokenizer.decode(tokens)
    return None


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_has_to_be_made_is_read_as_one_that_fits(name, special):
    found = style(name, "harmony" if name == "harmony" else "none")
    ended = 0
    for seed in range(20):
        constraint, tokenizer = bound(found, [TOOL, OTHER], special, must_call=("look-up",), parallel=False)
        text = walk(constraint, tokenizer, seed)
        if text is None:  # a text without quotes goes on until its mark, which chance may not find
            continue
        ended += 1
        parser = found.parser([TOOL, OTHER])
        parser.begin("", "")
        text, _, calls = meaning_of(parser.push(text) + parser.finish())
        assert [call for call, _ in calls] == ["look-up"] and text == "", text
        assert fits(calls[0][1]), calls
        if ended == 2:
            return
    raise AssertionError("too few answers have ended")


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("names", [names for names in CASES if names[0] != "none"], ids=lambda names: names[0])
def test_what_the_families_write_fits(names, special):
    found = style(*names)
    cases = {case.name: case for case in CASES[names]}
    for name in ("call", "every type", "thought and call"):
        if name not in cases or cases[name].answer.startswith("<|python_tag|>"):
            continue
        constraint, tokenizer = bound(found, [WEATHER], special, must_call=("get_weather",))
        if "function<｜tool▁sep｜>" in cases[name].answer or (
            names[0] in ("deepseek-v3.2",) and "tool_calls" in cases[name].answer
        ):
            continue  # markup of other versions, which is read and not asked for
        if names[0] == "minimax-m3" and name == "every type":
            continue  # nested elements are read; the grammar asks for JSON
        assert take(constraint, tokenizer, cases[name].answer), cases[name].answer


THINKERS = [
    ("think", "<think>", "</think>"),
    ("mistral", "[THINK]", "[/THINK]"),
    ("minimax-m3", "<mm:think>", "</mm:think>"),
]


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize(("name", "opened", "closed"), THINKERS, ids=[name for name, *_ in THINKERS])
def test_reasoning_is_free_and_comes_first(name, opened, closed, special):
    form = Format("json", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})

    def taken(text, **fields):
        return take(*bound(style("none", name), [], special, format=form, **fields), text)

    assert taken('{"a": 1}') and not taken("no")
    assert taken(f'{opened}Hm, {{"a": "b"}}? no.{closed}\n\n{{"a": 1}}')
    assert not taken(f"{opened}Hm.{closed}no") and not taken(f"{opened}Hm.")
    assert taken(f'Hm.{closed}{{"a": 1}}', prompt_end=f"<|assistant|>{opened}\n") and not taken(
        '{"a": 1}', prompt_end=opened
    )
    assert taken('{"a": 1}', prompt_end=f"{opened}\n\n{closed}\n\n")
    assert not taken(f'{opened}Hm.{closed}{{"a": 1}}', prompt_end=f"{opened}{closed}")
    continued = {"messages": ({"role": "assistant", "content": f"{opened}I"},), "continue_final": True}
    assert taken(f' see.{closed}{{"a": 1}}', **continued) and not taken('{"a": 1}', **continued)
    continued["messages"] = ({"role": "assistant", "content": '{"a'},)
    assert taken('{"a": 1}', **continued)


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])
def test_harmony_reasons_in_a_channel_of_its_own(special):
    found = style("harmony", "harmony")
    form = Format("regex", "[0-9]+")

    def taken(text, **fields):
        return take(*bound(found, [], special, format=form, **fields), text)

    final, analysis = "<|channel|>final<|message|>", "<|channel|>analysis<|message|>Hm 1<|end|><|start|>assistant"
    assert taken(f"{final}12") and taken(f"{analysis}{final}12")
    assert not taken("12") and not taken(f"{final}x") and not taken(analysis)
    continued = {"messages": ({"role": "assistant", "content": "1"},), "continue_final": True}
    assert taken("2", **continued)
    call = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>"
    assert take(*bound(found, [OTHER], special, must_call=("now",)), f"{analysis}{call}")
    assert take(*bound(found, [OTHER], special, format=form), call) and take(
        *bound(found, [OTHER], special, format=form), f"{final}1"
    )


@pytest.mark.parametrize("name", NAMES)
def test_several_calls_only_where_they_may_be(name):
    found = style(name, "none")
    case = next(
        case for names, cases in CASES.items() if names[0] == name for case in cases if case.name == "no arguments"
    )
    call = case.answer.replace("time-now", "now")
    if "tool_calls" in call and name == "deepseek-v3.2":
        call = call.replace("tool_calls", "function_calls")
    if "function<｜" in call or call.startswith("<|python_tag|>"):
        pytest.skip("markup of other versions")
    before, behind = found.calls.around
    inner = call[len(before) : len(call) - len(behind)]
    two = f"{before}{inner}{found.calls.between}{inner}{behind}"
    for parallel in (True, False):
        make = {"must_call": ("now",), "parallel": parallel}
        assert take(*bound(found, [OTHER], True, **make), call)
        constraint, tokenizer = bound(found, [OTHER], True, **make)
        taken = take(constraint, tokenizer, two)
        # A grammar that has ended takes nothing more: the answer was over before the second call.
        assert taken == (True if not behind else parallel and not found.calls.single)


def test_what_cannot_be_asked_for_is_refused():
    for found, tools, fields in [
        (style("none", "none"), [OTHER], {"must_call": ("now",)}),
        (style("qwen3-coder", "none"), [_tool({"anyOf": [{"required": ["a"]}]}, True)], {"must_call": ("f",)}),
        (style("glm", "none"), [_tool({"properties": {"a": {"$ref": "#/$defs/b"}}})], {"must_call": ("f",)}),
        (style("glm", "none"), [_tool({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"$ref": "#/$defs/b"}}})], {"must_call": ("f",)}),
        (style("hermes", "none"), [_tool({"properties": {"a": {"format": "no-such"}}, "required": ["a"]}, True)], {"must_call": ("f",)}),
        (style("hermes", "none"), [{"function": {"name": 'a"b'}}], {"must_call": ('a"b',)}),
        (style("none", "none"), [], {"format": Format("grammar", "root ::= (")}),
        (style("none", "none"), [], {"format": Format("json", {"format": "no-such", "type": "string"})}),
    ]:  # fmt: skip
        with pytest.raises(UsageError):
            bound(found, tools, True, **fields)
    lenient = _tool({"properties": {"a": {"type": "string", "format": "no-such"}}, "required": ["a"]})
    assert bound(style("hermes", "none"), [lenient], True, must_call=("f",))


def test_arguments_that_a_tool_does_not_declare_are_not_made_up():
    declared = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for more, taken in (
        ({}, False),
        ({"additionalProperties": True}, True),
        ({"anyOf": [{"required": ["b"]}, {}]}, True),
    ):
        constraint, tokenizer = bound(style("mistral", "none"), [_tool(declared | more)], True, must_call=("f",))
        assert take(constraint, tokenizer, '[TOOL_CALLS]f[ARGS]{"a": 1, "b": 2}') == taken


def _tool(parameters, strict=False):
    return {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": strict}}


WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=4)  # it has to be escaped


@settings(max_examples=25, deadline=None)
@given(value=st.recursive(st.none() | st.booleans() | st.integers(-999, 999) | WORDS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=6))  # fmt: skip
def test_any_object_fits_json_object(value):
    document = {"value": value}
    for indent in (None, 2):
        text = json.dumps(document, ensure_ascii=False, indent=indent)
        constraint, tokenizer = any_object()
        assert take(constraint.copy(), tokenizer, text), text


@cache
def any_object():
    return bound(style("none", "none"), [], False, format=Format("json", {"type": "object"}))


KEYS = [
    "type",
    "properties",
    "required",
    "enum",
    "const",
    "anyOf",
    "items",
    "$ref",
    "$defs",
    "minLength",
    "maxLength",
    "pattern",
    "a",
]
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["string", "object", "integer", "array", "#/$defs/a", "a", "(", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(NAMES)),
    schema=JUNK,
    properties=st.dictionaries(st.sampled_from("ab"), JUNK),
    strict=st.booleans(),
)
def test_any_schema_is_a_grammar_or_refused(name, schema, properties, strict):
    parameters = {**schema, "properties": properties} if isinstance(schema, dict) else schema
    try:
        constraint, _ = bound(style(name, "none"), [_tool(parameters, strict)], True, must_call=("f",))
    except UsageError:
        return
    assert (constraint.bounds() > 0).any()


def test_forms():
    def taken(form, text):
        return take(*bound(style("none", "none"), [], True, format=form), text)

    assert taken(Format("choice", ("yes", 'a "b"')), 'a "b"') and not taken(Format("choice", ("yes", "no")), "y")
    assert taken(Format("regex", r"^a/\d$"), "a/5") and not taken(Format("regex", r"a/\d"), "a/x")
    gbnf = 'root ::= item+\nitem ::= "- " [a-z]+ "\\n"'
    for grammar in (gbnf, 'start: item+\nitem: "- " /[a-z]+/ "\\n"'):
        assert taken(Format("grammar", grammar), "- ab\n- c\n") and not taken(Format("grammar", grammar), "- A\n")


def test_calls_of_a_walk_are_calls():
    """The events' own type: what a client gets."""
    constraint, tokenizer = bound(style("hermes", "think"), [OTHER], True, must_call=("now",), prompt_end="</think>")
    parser = style("hermes", "think").parser([OTHER])
    parser.begin("", "")
    events = parser.push(walk(constraint, tokenizer, 1)) + parser.finish()
    assert all(isinstance(event, Call) and event.arguments == "{}" for event in events) and events
