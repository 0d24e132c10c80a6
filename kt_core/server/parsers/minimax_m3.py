"""MiniMax M3: values are nested elements, every tag with a mark before it.

]<]minimax[>[<invoke name="..."> ]<]minimax[>[<key>value]<]minimax[>[</key> ... ]<]minimax[>[</invoke>; the items of a list are
elements named item.
"""

from typing import Any

from kt_core.server.parsers.base import Broken, Call, Calls, Schemas
from kt_core.server.parsers.grammar import Grammar, elements, value
from kt_core.server.parsers.invoke import attributes
from kt_core.server.parsers.values import dumps, name_of, property_of, typed

_MARK = "]<]minimax[>["
_DEPTH = 64


def read(body: str, schemas: Schemas) -> tuple[list[Call], str]:
    head, *parts = body.split(_MARK)
    tag, bracket, space = head.partition(">")
    if not bracket or space.strip():
        raise Broken("no invoke")
    name = name_of(attributes(f"name={tag}").get("name"))
    parts.reverse()
    values = _mapping(_children(parts, "", 0), schemas.get(name))
    return [Call(name, dumps(values))], ""


_Element = tuple[str, str, list[Any]]  # name, text, children


def _children(parts: list[str], parent: str, depth: int) -> list[_Element]:
    """The elements up to the end of `parent`; `parts`, in reverse, are the texts between marks."""
    if depth > _DEPTH:
        raise Broken("nested too deep")
    found: list[_Element] = []
    while parts:
        tag, bracket, text = parts.pop().partition(">")
        if not bracket or not tag.startswith("<"):
            raise Broken("no tag")
        if tag.startswith("</"):
            if not parent or tag[2:] != parent or text.strip():
                raise Broken(f"no end of {parent}")
            return found
        children = _children(parts, tag[1:], depth + 1)
        found.append((tag[1:], text, children))
    if parent:
        raise Broken(f"no end of {parent}")
    return found


def _mapping(elements: list[_Element], schema: Any) -> dict[str, Any]:
    return {name: _value(text, children, property_of(schema, name)) for name, text, children in elements}


def _value(text: str, children: list[_Element], schema: Any) -> Any:
    kind = schema.get("type") if isinstance(schema, dict) else None
    if not children:
        return {"array": [], "object": {}}[kind] if not text and kind in ("array", "object") else typed(text, schema)
    if text.strip():
        raise Broken("text beside elements")
    if kind != "object" and all(name == "item" for name, *_ in children):
        items = schema.get("items") if isinstance(schema, dict) else None
        return [_value(text, inner, items) for _, text, inner in children]
    return _mapping(children, schema)


def write(grammar: Grammar, name: str, schema: Any, strict: bool) -> str:
    """Lists and objects within values are written as JSON."""

    def one(key: str, inner: Any) -> str:
        return f"{grammar.mark(f'{_MARK}<{key}>')} {value(grammar, inner, strict, f'{_MARK}</{key}>')}"

    start, end = (grammar.mark(f"{_MARK}{tag}") for tag in (f'<invoke name="{name}">', "</invoke>"))
    return f"{start} {elements(grammar, schema, strict, one)} {end}"


STYLE = Calls(
    name="minimax-m3",
    signs=(_MARK,),
    starts=(f"{_MARK}<invoke name=",),
    ends=(f"{_MARK}</invoke>",),
    others=(f"{_MARK}<tool_call>", f"{_MARK}</tool_call>"),
    read=read,
    closed=True,
    write=write,
    around=(f"{_MARK}<tool_call>\n", f"\n{_MARK}</tool_call>"),
    between="\n",
)
