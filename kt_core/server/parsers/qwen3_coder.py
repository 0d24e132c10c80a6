"""Qwen3-Coder, Qwen3.5: <tool_call><function=name><parameter=key>value</parameter>...</function></tool_call>

The outer tags are left out by some models, so a call is what stands in <function=...></function>. A value stands on lines
of its own.
"""

import re
from typing import Any

from kt_core.server.parsers.base import Call, Calls, Schemas
from kt_core.server.parsers.grammar import Grammar, elements, value
from kt_core.server.parsers.values import Cursor, dumps, name_of, property_of, typed

_END = "</function>\n</tool_call>"


def read(body: str, schemas: Schemas) -> tuple[list[Call], str]:
    cursor = Cursor(body)
    name = name_of(cursor.tag())
    values = {}
    while not cursor.at_end():
        cursor.take("<parameter=")
        key = cursor.tag().strip()
        value = cursor.value("</parameter>").removeprefix("\n").removesuffix("\n")
        values[key] = typed(value, property_of(schemas.get(name), key))
    return [Call(name, dumps(values))], ""


def write(grammar: Grammar, name: str, schema: Any, strict: bool) -> str:
    def one(key: str, inner: Any) -> str:
        start, end = grammar.mark(f"<parameter={key}>\n"), value(grammar, inner, strict, "</parameter>", space="\n")
        return f"{start} {end}"

    start = grammar.mark(f"<tool_call>\n<function={name}>\n")
    written = elements(grammar, schema, strict, one, "\n")
    return f"{start} {written} {grammar.mark(_END)}"


STYLE = Calls(
    name="qwen3-coder",
    signs=("<tool_call>", "<function="),
    starts=("<function=",),
    ends=("</function>",),
    others=("<tool_call>", "</tool_call>"),
    read=read,
    closed=True,
    never=re.compile(r"[^>]*?[^>\s]\s+[^>\s]"),
    write=write,
    between="\n",
)
