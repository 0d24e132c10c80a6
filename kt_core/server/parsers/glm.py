"""GLM-4.5 and later: <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>...</tool_call>"""

import re
from typing import Any

from kt_core.server.parsers.base import Call, Calls, Schemas
from kt_core.server.parsers.grammar import Grammar, elements, value
from kt_core.server.parsers.values import Cursor, dumps, name_of, property_of, typed


def read(body: str, schemas: Schemas) -> tuple[list[Call], str]:
    name, key_mark, rest = body.partition("<arg_key>")
    name = name_of(name)
    cursor = Cursor(key_mark + rest)
    values = {}
    while not cursor.at_end():
        cursor.take("<arg_key>")
        key = cursor.tag("</arg_key>").strip()
        cursor.take("<arg_value>")
        values[key] = typed(cursor.value("</arg_value>"), property_of(schemas.get(name), key))
    return [Call(name, dumps(values))], ""


def write(grammar: Grammar, name: str, schema: Any, strict: bool) -> str:
    def one(key: str, inner: Any) -> str:
        start = grammar.mark(f"<arg_key>{key}</arg_key>")
        return f'{start} "\\n"? {grammar.mark("<arg_value>")} {value(grammar, inner, strict, "</arg_value>")} "\\n"?'

    start, end = grammar.mark(f"<tool_call>{name}"), grammar.mark("</tool_call>")
    return f'{start} "\\n"? {elements(grammar, schema, strict, one)} {end}'


STYLE = Calls(
    name="glm",
    signs=("<tool_call>", "<arg_key>"),
    starts=("<tool_call>",),
    ends=("</tool_call>",),
    read=read,
    closed=True,
    never=re.compile(r"\s*[^\s<]+\s+[^\s<]"),
    write=write,
    between="\n",
)
