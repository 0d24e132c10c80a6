"""Llama 3: the whole answer is {"name": ..., "parameters": {...}}, with or without <|python_tag|> before it.

Only an object that names a declared tool is a call: an answer may be JSON for other reasons.
"""

from typing import Any

from kt_core.server.parsers.base import Broken, Call, Calls, Schemas
from kt_core.server.parsers.grammar import Grammar, arguments, quoted
from kt_core.server.parsers.values import call_of, decode


def read(body: str, schemas: Schemas) -> tuple[list[Call], str]:
    calls = []
    rest = body
    while rest.strip(" \t\r\n;"):
        value, rest = decode(rest.lstrip(" \t\r\n;"))
        calls.append(call_of(value))
    if not calls or any(call.name not in schemas for call in calls):
        raise Broken("no declared tool")
    return calls, ""


def write(grammar: Grammar, name: str, schema: Any, strict: bool) -> str:
    start = quoted('{"name": "' + name + '", "parameters": ')
    return f"{start} {grammar.json(arguments(schema), strict)} {quoted('}')}"


STYLE = Calls(
    name="llama",
    signs=("<|start_header_id|>", '"parameters"'),
    starts=("<|python_tag|>",),
    read=read,
    bare="{",
    single=True,
    write=write,
)
