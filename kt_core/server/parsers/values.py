"""Names, JSON and typed values in calls. Everything that is no value raises Broken; nothing else is raised."""

import json
import re
from typing import Any, NoReturn

from kt_core.server.parsers.base import Broken, Call, Unfinished

_NAME = re.compile(r"[^\s<>{}()\[\]\"'`=,;]{1,256}")
_WORDS = {"True": True, "False": False, "None": None}
_KINDS = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}


def name_of(text: object) -> str:
    """A tool's name, spared of the white space around it."""
    if not isinstance(text, str) or not _NAME.fullmatch(text.strip()) or not _encodes(text):
        raise Broken("no name")
    return text.strip()


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_constant(word: str) -> NoReturn:
    raise ValueError(word)


# Line breaks inside of strings are no JSON, but models write them, and what they mean is plain.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_constant)


def decode(text: str) -> tuple[Any, str]:
    """(the JSON value that `text` begins with, the text behind it)."""
    text = text.lstrip()
    try:
        value, end = _DECODER.raw_decode(text)
    except json.JSONDecodeError as error:
        kind = Unfinished if error.msg.startswith("Unterminated string") else Broken
        raise kind(error.msg) from None
    except (ValueError, RecursionError) as error:  # a number of too many digits; nesting
        raise Broken(type(error).__name__) from None
    return value, text[end:]


def dumps(value: Any) -> str:
    """As chat templates write it, so that the history's tokens are those of the answer."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        return text if _encodes(text) else json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError) as error:  # a number that overflowed
        raise Broken(type(error).__name__) from None


def arguments_of(value: Any) -> str:
    """The text of a call's arguments. Some models write the object as a string, or nothing where there are none."""
    if isinstance(value, str):
        value, rest = decode(value or "{}")
        if rest.strip():
            raise Broken("text behind the arguments")
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise Broken("the arguments are no object")
    return dumps(value)


def call_of(value: Any) -> Call:
    """The call that an object like {"name": ..., "arguments": ...} stands for."""
    if not isinstance(value, dict):
        raise Broken("no object")
    inner = value.get("function")
    value = inner if isinstance(inner, dict) else value
    given = value.get("arguments", value.get("parameters"))
    id = value.get("id")
    return Call(name_of(value.get("name")), arguments_of(given), id if isinstance(id, str) and _encodes(id) else "")


def rest_of(text: str) -> str:
    """Text behind a call; a brace too many, which models write now and then, is no text."""
    return text if text.strip().strip("}") else ""


def typed(text: str, schema: Any) -> Any:
    """The value that `text` stands for where values are written without quotes.

    `schema` says which types it may have. One that does not fit stays text, for the tool to refuse;
    without a schema it is JSON where it can be read as that.
    """
    kinds = kinds_of(schema)
    if kinds == {"string"}:
        return text
    try:
        value = _literal(text)
    except Broken:
        return text
    if isinstance(value, float) and "number" not in kinds and "integer" in kinds and value.is_integer():
        value = int(value)
    fits = not kinds or _kind(value) in kinds or (_kind(value) == "integer" and "number" in kinds)
    return value if fits else text


def _literal(text: str) -> Any:
    word = text.strip()
    if word in _WORDS:
        return _WORDS[word]
    value, rest = decode(word)
    if rest.strip():
        raise Broken("text behind the value")
    dumps(value)  # raises for what JSON cannot hold
    return value


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "null")


def kinds_of(schema: Any) -> set[str]:
    """The types that a JSON schema allows; empty for any."""
    if not isinstance(schema, dict):
        return set()
    kinds = schema.get("type")
    if isinstance(kinds, str | list):
        return {str(kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)}
    for union in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(union), list):
            parts = [kinds_of(part) for part in schema[union]]
            return set().union(*parts) if all(parts) else set()
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    return {_kind(value) for value in values}


def property_of(schema: Any, key: str) -> Any:
    """The schema of one property, None where there is none."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties.get(key) if isinstance(properties, dict) else None


class Cursor:
    """Reads a text from its beginning. What must be there and is not raises Broken."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def at_end(self) -> bool:
        """Whether nothing but white space is left."""
        return not self._text[self._at :].strip()

    def take(self, mark: str) -> None:
        """Pass white space and then `mark`."""
        start = len(self._text) - len(self._text[self._at :].lstrip())
        if not self._text.startswith(mark, start):
            raise Broken(f"no {mark}")
        self._at = start + len(mark)

    def tag(self, mark: str = ">") -> str:
        """The text up to `mark`, which is passed and must be there."""
        end = self._text.find(mark, self._at)
        if end < 0:
            raise Broken(f"no {mark}")
        found, self._at = self._text[self._at : end], end + len(mark)
        return found

    def value(self, mark: str) -> str:
        """The same for a value, which may hold anything but `mark`: raises Unfinished without one."""
        if self._text.find(mark, self._at) < 0:
            raise Unfinished(f"no {mark}")
        return self.tag(mark)
