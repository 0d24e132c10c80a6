"""Calls as <invoke name="..."><parameter name="...">value</parameter></invoke>, which several styles are built on."""

import re
from typing import Any

from kt_core.server.parsers.base import Broken, Call, Schemas
from kt_core.server.parsers.grammar import Grammar, either, elements, quoted, typed_values, value
from kt_core.server.parsers.values import Cursor, dumps, name_of, property_of, typed

_ATTRIBUTE = re.compile(r"""\s*(\w+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")


def attributes(text: str) -> dict[str, str]:
    """The attributes of a tag. Raises Broken for anything else."""
    found, at = {}, 0
    while text[at:].strip():
        match = _ATTRIBUTE.match(text, at)
        if not match:
            raise Broken("no attributes")
        found[match[1]] = next(value for value in match.groups()[1:] if value is not None)
        at = match.end()
    return found


def read_invoke(body: str, schemas: Schemas, mark: str = "") -> tuple[list[Call], str]:
    """What stands between `<invoke` and `</invoke>`; `mark` comes behind the < and the </ of tags.

    An attribute string="true" or "false" of a parameter says whether its value is text or JSON.
    """
    cursor = Cursor(body)
    name = name_of(attributes(cursor.tag()).get("name"))
    values = {}
    while not cursor.at_end():
        cursor.take(f"<{mark}parameter")
        tag = attributes(cursor.tag())
        if "name" not in tag:
            raise Broken("a parameter without a name")
        value = cursor.value(f"</{mark}parameter>")
        kind = {"true": {"type": "string"}, "false": None}
        schema = property_of(schemas.get(name), tag["name"])
        values[tag["name"]] = typed(value, kind.get(tag.get("string", ""), schema))
    return [Call(name, dumps(values))], ""


def write_invoke(grammar: Grammar, name: str, schema: Any, strict: bool, mark: str = "", typed: bool = False) -> str:
    """The expression of such a call; with `typed`, parameters say whether their values are text."""
    end = f"</{mark}parameter>"

    def one(key: str, inner: Any) -> str:
        opening = f'<{mark}parameter name="{key}"'
        if not typed:
            return f"{grammar.mark(opening + '>')} {value(grammar, inner, strict, end)}"
        return either(
            f"{grammar.mark(f'{opening} string={quoted(str(text).lower())}>')} {written}"
            for text, written in typed_values(grammar, inner, strict, end)
        )

    start, last = grammar.mark(f'<{mark}invoke name="{name}">\n'), grammar.mark(f"</{mark}invoke>")
    written = elements(grammar, schema, strict, one, "\n")
    return f"{start} {written} {last}"
