"""DeepSeek V3.2 and V4: <｜DSML｜invoke name="..."><｜DSML｜parameter name="..." string="true">...

The tags around the calls are function_calls in V3.2 and tool_calls in V4.
"""

from kt_core.server.parsers.base import Call, Calls, Schemas
from kt_core.server.parsers.invoke import read_invoke

_MARK = "｜DSML｜"


def read(body: str, schemas: Schemas) -> tuple[list[Call], str]:
    return read_invoke(body, schemas, _MARK)


STYLE = Calls(
    name="deepseek-v3.2",
    signs=(_MARK,),
    starts=(f"<{_MARK}invoke",),
    ends=(f"</{_MARK}invoke>",),
    others=tuple(f"<{slash}{_MARK}{tag}>" for slash in ("", "/") for tag in ("function_calls", "tool_calls")),
    read=read,
    closed=True,
)
