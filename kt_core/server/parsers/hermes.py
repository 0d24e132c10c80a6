"""Hermes, Qwen2.5, Qwen3 and many others: <tool_call>{"name": ..., "arguments": {...}}</tool_call>"""

import re
from typing import Any

from kt_core.server.parsers.base import Call, Calls, Schemas
from kt_core.server.parsers.grammar import Grammar, arguments
from kt_core.server.parsers.values import call_of, decode, rest_of

_END = "}\n</tool_call>"


def read(body: str, schemas: Schemas) -> tuple[list[Call], str]:
    value, rest = decode(body)
    return [call_of(value)], rest_of(rest)


def write(grammar: Grammar, name: str, schema: Any, strict: bool) -> str:
    start = grammar.mark('<tool_call>\n{"name": "' + name + '", "arguments": ')
    return f"{start} {grammar.json(arguments(schema), strict)} {grammar.mark(_END)}"


STYLE = Calls(
    name="hermes",
    signs=("<tool_call>",),
    starts=("<tool_call>",),
    ends=("</tool_call>",),
    read=read,
    never=re.compile(r"\s*[^\s{]"),
    write=write,
    between="\n",
)
