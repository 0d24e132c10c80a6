"""DeepSeek V3.2 and V4: <｜DSML｜invoke name="..."><｜DSML｜parameter name="..." string="true">...

The tags around the calls are function_calls in V3.2 and tool_calls in V4.
"""

from typing import Any

from kt_core.server.parsers.base import Call, Calls, Schemas
from kt_core.server.parsers.grammar import Grammar
from kt_core.server.parsers.invoke import read_invoke, write_invoke

_MARK = "｜DSML｜"


def read(body: str, schemas: Schemas) -> tuple[list[Call], str]:
    return read_invoke(body, schemas, _MARK)


def write(grammar: Grammar, name: str, schema: Any, strict: bool) -> str:
    return write_invoke(grammar, name, schema, strict, _MARK, typed=True)


STYLE = Calls(
    name="deepseek-v3.2",
    signs=(_MARK,),
    starts=(f"<{_MARK}invoke",),
    ends=(f"</{_MARK}invoke>",),
    others=tuple(f"<{slash}{_MARK}{tag}>" for slash in ("", "/") for tag in ("function_calls", "tool_calls")),
    read=read,
    closed=True,
    write=write,
    around=(f"<{_MARK}function_calls>\n", f"\n</{_MARK}function_calls>"),
    between="\n",
)
