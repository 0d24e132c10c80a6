"""Mistral: [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]; since 2025 [TOOL_CALLS]name[ARGS]{...} for each call.

Some versions write [CALL_ID]id before the arguments. Calls have no end mark. Ids have nine letters, or templates refuse them.
"""

from typing import Any

from kt_core.server.parsers.base import Broken, Call, Calls, Schemas
from kt_core.server.parsers.grammar import Grammar, arguments
from kt_core.server.parsers.values import arguments_of, call_of, decode, name_of, rest_of


def read(body: str, schemas: Schemas) -> tuple[list[Call], str]:
    head, mark, rest = body.partition("[ARGS]")
    if mark:
        name, _, id = head.partition("[CALL_ID]")
        value, rest = decode(rest)
        return [Call(name_of(name), arguments_of(value), id.strip())], rest_of(rest)
    value, rest = decode(body)
    calls = [call_of(one) for one in (value if isinstance(value, list) else [value])]
    if not calls:
        raise Broken("no call")
    return calls, rest_of(rest)


def write(grammar: Grammar, name: str, schema: Any, strict: bool) -> str:
    return f"{grammar.mark(f'[TOOL_CALLS]{name}[ARGS]')} {grammar.json(arguments(schema), strict)}"


STYLE = Calls(
    name="mistral",
    signs=("[TOOL_CALLS]",),
    starts=("[TOOL_CALLS]",),
    others=("[ARGS]", "[CALL_ID]"),
    read=read,
    id_length=9,
    write=write,
)
