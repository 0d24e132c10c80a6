"""MiniMax M2: <minimax:tool_call><invoke name="..."><parameter name="...">value</parameter></invoke></minimax:tool_call>"""

from kt_core.server.parsers.base import Calls
from kt_core.server.parsers.invoke import read_invoke, write_invoke

STYLE = Calls(
    name="minimax-m2",
    signs=("<minimax:tool_call>",),
    starts=("<invoke name=",),
    ends=("</invoke>",),
    others=("<minimax:tool_call>", "</minimax:tool_call>"),
    read=lambda body, schemas: read_invoke(f"name={body}", schemas),
    closed=True,
    write=write_invoke,
    around=("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
    between="\n",
)
