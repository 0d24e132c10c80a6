"""What models write, and what it means: text, reasoning, calls. One list for each style, from the families' own markup."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from kt_core.server.parsers import Call, Event, Reasoning, Style, Text, choose

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "metric": {"type": "boolean"},
                "hours": {"type": "array", "items": {"type": "integer"}},
                "place": {"type": "object", "properties": {"zip": {"type": "string"}, "at": {"type": "number"}}},
                "note": {"type": ["string", "null"]},
            },
        },
    },
}
TIME = {"type": "function", "function": {"name": "time-now", "parameters": {"type": "object", "properties": {}}}}
WRITE = {
    "type": "function",
    "function": {
        "name": "write",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}},
    },
}
TOOLS = [WEATHER, TIME, WRITE]


class Meaning(NamedTuple):
    text: str
    reasoning: str
    calls: list[tuple[str, Any]]  # name, arguments


class Case(NamedTuple):
    name: str
    answer: str
    meaning: Meaning
    prompt_end: str = ""


def meaning_of(events: list[Event]) -> Meaning:
    text = "".join(e.text for e in events if isinstance(e, Text))
    reasoning = "".join(e.text for e in events if isinstance(e, Reasoning))
    return Meaning(text, reasoning, [(e.name, json.loads(e.arguments)) for e in events if isinstance(e, Call)])


def parsed(
    style: Style, pieces: list[str], prompt_end: str = "", tools: list[Any] = TOOLS, answer: str = ""
) -> Meaning:
    parser = style.parser(tools)
    assert parser is not None
    parser.begin(prompt_end, answer)
    events = [event for piece in pieces for event in parser.push(piece)]
    return meaning_of(events + parser.finish())


def style(calls: str, thinking: str) -> Style:
    return choose("", calls, thinking)


def m(text: str = "", reasoning: str = "", *calls: tuple[str, Any]) -> Meaning:
    return Meaning(text, reasoning, list(calls))


OSLO = ("get_weather", {"city": "Oslo"})
NOW = ("time-now", {})
ALL = {"city": "São Paulo", "days": 3, "metric": True, "hours": [1, 2], "place": {"zip": "01", "at": 1.5}}
LONG = "x = '''</script>\n{[(\"\\\\ ]}</arg> " * 300 + "end"
Write = Callable[[str, dict[str, Any]], str]


def dumps(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def general(write: Write, think: tuple[str, str], single: bool = False) -> list[Case]:
    """Cases that all styles share; `write` writes one call with its marks."""
    opened, closed = think
    oslo, now = write(*OSLO), write(*NOW)
    cases = [
        Case("call", oslo, m("", "", OSLO)),
        Case("no arguments", now, m("", "", NOW)),
        Case("text before", f"Let me see.\n\n{oslo}\n", m("Let me see.", "", OSLO)),
        Case("text behind", f"a {oslo} b", m("a  b", "", OSLO)),
        Case("every type", write("get_weather", ALL), m("", "", ("get_weather", ALL))),
        Case("long", write("write", {"path": "a", "text": LONG}), m("", "", ("write", {"path": "a", "text": LONG}))),
        Case("no tool", write("other", {"a": "b"}), m("", "", ("other", {"a": "b"}))),
        Case("only text", "  a <b> {c} [d]\n", m("  a <b> {c} [d]\n")),
        Case("nothing", "", m()),
    ]
    if not single:
        cases += [
            Case("two", f"{oslo}\n{now}", m("", "", OSLO, NOW)),
            Case("two at once", oslo + now, m("", "", OSLO, NOW)),
        ]
    if not opened:
        return cases
    return [
        *cases,
        Case("thought", f"{opened}\nhm\n{closed}\n\nyes", m("yes", "hm")),
        Case("thought and call", f"{opened}hm{closed}\n\n{oslo}", m("", "hm", OSLO)),
        Case("call within thought", f"{opened}hm\n{oslo}{closed}done", m("done", "hm", OSLO)),
        Case("thought from the prompt", f"\nhm{closed}\n\nyes {oslo}", m("yes", "hm", OSLO), f"x{opened}\n"),
        Case("no thought", "yes", m("yes"), f"x{opened}\n\n{closed}\n\n"),
        Case("thought without an end", f"{opened}hm", m("", "hm")),
        Case("end without a beginning", f"a{closed}b", m("ab")),
        Case("thoughts between", f"{opened}a{closed}b{opened}c{closed}d", m("bd", "ac")),
    ]


THINK = ("<think>", "</think>")


def hermes(name: str, arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {dumps(arguments)}}}\n</tool_call>'


def coder(name: str, arguments: dict[str, Any]) -> str:
    pairs = "".join(f"<parameter={key}>\n{dumps(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{pairs}</function>\n</tool_call>"


def glm(name: str, arguments: dict[str, Any]) -> str:
    pairs = [f"<arg_key>{k}</arg_key>\n<arg_value>{dumps(v)}</arg_value>\n" for k, v in arguments.items()]
    return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"


def deepseek_v31(name: str, arguments: Any) -> str:
    call = f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dumps(arguments)}<｜tool▁call▁end｜>"
    return f"<｜tool▁calls▁begin｜>{call}<｜tool▁calls▁end｜>"


def deepseek_v3(name: str, arguments: Any) -> str:
    call = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dumps(arguments)}\n```<｜tool▁call▁end｜>"
    return f"<｜tool▁calls▁begin｜>{call}<｜tool▁calls▁end｜>"


def dsml(name: str, arguments: dict[str, Any], tag: str = "tool_calls") -> str:
    pairs = "".join(
        f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">{dumps(value)}</｜DSML｜parameter>\n'
        for key, value in arguments.items()
    )
    return f'<｜DSML｜{tag}>\n<｜DSML｜invoke name="{name}">\n{pairs}</｜DSML｜invoke>\n</｜DSML｜{tag}>'


def kimi(name: str, arguments: Any) -> str:
    call = f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{dumps(arguments)}<|tool_call_end|>"
    return f"<|tool_calls_section_begin|>{call}<|tool_calls_section_end|>"


def minimax_m2(name: str, arguments: dict[str, Any]) -> str:
    pairs = "".join(f'<parameter name="{key}">{dumps(value)}</parameter>\n' for key, value in arguments.items())
    return f'<minimax:tool_call>\n<invoke name="{name}">\n{pairs}</invoke>\n</minimax:tool_call>'


NS = "]<]minimax[>["


def minimax_m3(name: str, arguments: dict[str, Any]) -> str:
    def element(key: str, value: Any) -> str:
        if isinstance(value, dict):
            inner = "".join(element(k, v) for k, v in value.items())
        elif isinstance(value, list):
            inner = "".join(element("item", item) for item in value)
        else:
            inner = dumps(value)
        return f"{NS}<{key}>{inner}{NS}</{key}>"

    inner = "".join(element(key, value) for key, value in arguments.items())
    return f'{NS}<tool_call>\n{NS}<invoke name="{name}">{inner}{NS}</invoke>\n{NS}</tool_call>'


def llama(name: str, arguments: Any) -> str:
    return f'<|python_tag|>{{"name": "{name}", "parameters": {dumps(arguments)}}}'


def mistral(name: str, arguments: Any) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{dumps(arguments)}"


def harmony(name: str, arguments: Any) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dumps(arguments)}<|call|>"
