"""Kimi K2, K2-Thinking, K2.5: <|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>

The id names the call in the history as well, so it goes out as the model wrote it.
"""

import re
from typing import Any

from kt_core.server.parsers.base import Broken, Call, Calls, Schemas
from kt_core.server.parsers.grammar import Grammar, arguments
from kt_core.server.parsers.values import arguments_of, decode, name_of, rest_of

_ARGUMENTS = "<|tool_call_argument_begin|>"
_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")


def read(body: str, schemas: Schemas) -> tuple[list[Call], str]:
    head, mark, rest = body.partition(_ARGUMENTS)
    id = "".join(head.split())
    named = _ID.fullmatch(id)
    if not mark or not named:
        raise Broken("no id")
    value, rest = decode(rest)
    return [Call(name_of(named[1]), arguments_of(value), id if ":" in id else "")], rest_of(rest)


def write(grammar: Grammar, name: str, schema: Any, strict: bool) -> str:
    start, end = (grammar.mark(mark) for mark in (f"<|tool_call_begin|>functions.{name}:", "<|tool_call_end|>"))
    return f"{start} /[0-9]{{1,3}}/ {grammar.mark(_ARGUMENTS)} {grammar.json(arguments(schema), strict)} {end}"


STYLE = Calls(
    name="kimi-k2",
    signs=("<|tool_call_begin|>", _ARGUMENTS),
    starts=("<|tool_call_begin|>",),
    ends=("<|tool_call_end|>",),
    others=(
        *(f"<|tool_{calls}_section_{edge}|>" for calls in ("calls", "call") for edge in ("begin", "end")),
        _ARGUMENTS,
    ),
    read=read,
    write=write,
    around=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
)
