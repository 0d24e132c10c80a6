"""DeepSeek R1, V3 and V3.1, between <｜tool▁call▁begin｜> and <｜tool▁call▁end｜>.

V3.1 writes name<｜tool▁sep｜>{...}; before it came function<｜tool▁sep｜>name and the arguments as a block of code.
"""

import re
from typing import Any

from kt_core.server.parsers.base import Broken, Call, Calls, Schemas
from kt_core.server.parsers.grammar import Grammar, arguments
from kt_core.server.parsers.values import arguments_of, decode, name_of, rest_of

_SEPARATOR = "<｜tool▁sep｜>"
_FENCE = re.compile(r"([^\n{]*)\n\s*```[a-z]*\s*")


def read(body: str, schemas: Schemas) -> tuple[list[Call], str]:
    head, separator, rest = body.partition(_SEPARATOR)
    if not separator:
        raise Broken("no separator")
    fenced = _FENCE.match(rest)
    if fenced:
        head, rest = fenced[1], rest[fenced.end() :]
    value, rest = decode(rest)
    if not isinstance(value, dict):
        raise Broken("the arguments are no object")
    return [Call(name_of(head), arguments_of(value))], rest_of(rest.strip().removeprefix("```") if fenced else rest)


def write(grammar: Grammar, name: str, schema: Any, strict: bool) -> str:
    """As V3.1 does; models of the time before can."""
    start, end = (grammar.mark(mark) for mark in (f"<｜tool▁call▁begin｜>{name}{_SEPARATOR}", "<｜tool▁call▁end｜>"))
    return f"{start} {grammar.json(arguments(schema), strict)} {end}"


STYLE = Calls(
    name="deepseek-v3",
    signs=("<｜tool▁call▁begin｜>",),
    starts=("<｜tool▁call▁begin｜>",),
    ends=("<｜tool▁call▁end｜>",),
    others=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", _SEPARATOR),
    read=read,
    write=write,
    around=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
)
