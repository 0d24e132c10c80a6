"""Grammars of answers, in the dialect that kt_core.engine.constraint reads: marks, free text, JSON, values without quotes."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from llguidance import regex_to_lark

from kt_core.errors import UsageError
from kt_core.server.parsers.values import kinds_of

# White space in JSON has an end: else a model that is bound to a grammar can write line breaks for ever.
_SPACE = r"[ \n\r\t]{1,32}"
_SYNTAX = re.compile(r"([\\.+*?()|\[\]{}^$/#&~-])")
# What restricts an object's keys beyond `properties` and `required`; a markup of one element for each key cannot say it.
_BEYOND = ("anyOf", "oneOf", "allOf", "not", "if", "minProperties", "dependentRequired", "dependentSchemas")
# What a schema without a type may restrict its values by.
_STRUCTURE = {"anyOf", "oneOf", "allOf", "not", "if", "properties", "items", "prefixItems"}
# Where else a schema may declare properties.
_ELSEWHERE = {"$ref", "anyOf", "oneOf", "allOf", "if", "patternProperties", "dependentSchemas"}
_REFERENCES = 16  # that follow one another


class Grammar:
    """Expressions of one grammar. What they need in rules of its own is collected here.

    `special` are the tokens that no text stands for, by their content: a mark is a sequence of them and of text.
    """

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        marks = sorted(special, key=len, reverse=True)
        self._split = re.compile("|".join(map(re.escape, marks)) or r"(?!)")
        self._rules: list[str] = []

    def text(self, start: str) -> str:
        """The whole grammar, of answers that follow the expression `start`."""
        return "\n".join([f"start: {start}", *self._rules])

    def rule(self, body: str, options: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def mark(self, text: str) -> str:
        """A text in which special tokens may stand."""
        found, at = [], 0
        for match in self._split.finditer(text):
            found += [quoted(text[at : match.start()]), f"<[{self._special[match.group()]}]>"]
            at = match.end()
        return " ".join(part for part in [*found, quoted(text[at:])] if part != '""')

    def until(self, mark: str, *patterns: str) -> str:
        """The shortest text that matches all the patterns and holds no `mark`, and the mark."""
        first = self._split.match(mark)
        all_text = ["/(?s:.*)/", *patterns]
        if first:
            body = self._terminal(" & ".join(all_text))
            return f"{body} {self.mark(mark)}"
        if patterns:
            all_text.append(f"~/(?s:.*){escaped(mark)}(?s:.*)/")
        body = self._terminal(f"({' & '.join(all_text)}) {quoted(mark)}")
        return self.rule(body, "[lazy]")

    def json(self, schema: Any, strict: bool) -> str:
        """JSON that fits a schema. Not `strict`: what the schema says and no grammar can is left out."""
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        options = {"whitespace_pattern": _SPACE, "lenient": not strict}
        return self.rule(f"%json {_dumps({**schema, 'x-guidance': options})}")

    def _terminal(self, body: str) -> str:
        name = f"T{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name


def either(expressions: Iterable[str]) -> str:
    return f"({' | '.join(expressions)})"


def quoted(text: str) -> str:
    return _dumps(text)


def escaped(text: str) -> str:
    """For a regular expression between slashes."""
    return _SYNTAX.sub(r"\\\1", text).replace("\n", r"\n")


def _dumps(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise UsageError("engine.grammar", reason=type(error).__name__) from None


def arguments(schema: Any) -> dict[str, Any]:
    """The schema of a tool's arguments: an object whatever it says, and without properties that it does not declare.

    Models like to make some up, and tools have no use for them. A schema that says otherwise, or may elsewhere, is left alone.
    """
    schema = schema if isinstance(schema, dict) else {}
    closed = "properties" in schema and not schema.keys() & _ELSEWHERE
    return {**({"additionalProperties": False} if closed else {}), **schema, "type": "object"}


def elements(grammar: Grammar, schema: Any, strict: bool, one: Callable[[str, Any], str], between: str = "") -> str:
    """An object's properties as elements, in the schema's order; `one` writes the element of a key and its value's schema.

    Raises UsageError for an object that the schema restricts in other ways.
    """
    schema = resolved(schema if isinstance(schema, dict) else {}, schema)
    beyond = [name for name in _BEYOND if name in schema]
    if beyond and strict:
        raise UsageError(
            "engine.grammar", reason=f"{', '.join(beyond)}: not in the markup that this model calls tools with"
        )
    properties = schema.get("properties") if isinstance(schema.get("properties"), dict) else {}
    listed = schema.get("required")
    required = [key for key in listed if isinstance(key, str)] if isinstance(listed, list) else []
    written = []
    for key in (*properties, *(key for key in required if key not in properties)):
        element = one(key, _within(properties.get(key, {}), schema))
        element = f"{element} {quoted(between)}" if between else element
        written.append(element if key in required else f"({element})?")
    return " ".join(written) or '""'


def _within(schema: Any, root: Mapping[str, Any]) -> Any:
    """A property's schema that stands alone, with the definitions that it may refer to."""
    shared = {name: root[name] for name in ("$defs", "definitions") if name in root}
    return {**shared, **schema} if isinstance(schema, dict) else schema


def resolved(schema: Any, root: Any) -> Any:
    """The schema that a reference stands for, where it is one of the root's definitions."""
    for _ in range(_REFERENCES):
        name = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(name, str):
            return schema
        target = root
        for step in name.removeprefix("#/").split("/"):
            target = target.get(step) if isinstance(target, dict) else None
        if not name.startswith("#/") or not isinstance(target, dict):
            raise UsageError("engine.grammar", reason=f"$ref {name!r} leads nowhere")
        schema = _within(target, root)
    raise UsageError("engine.grammar", reason="$ref: a circle")


def value(grammar: Grammar, schema: Any, strict: bool, end: str, space: str = "") -> str:
    """A value without quotes, as `values.typed` reads it, and the mark that ends it, with `space` before it or not."""
    schema = resolved(schema, schema) if isinstance(schema, dict) else {}
    kinds, choices = kinds_of(schema), _choices(schema)
    closing = f"{quoted(space)}? {grammar.mark(end)}" if space else grammar.mark(end)
    if choices:
        texts = [choice if isinstance(choice, str) else _dumps(choice) for choice in choices]
        return f"{either(map(quoted, texts))} {closing}"
    if not kinds and not schema.keys() & _STRUCTURE:
        return grammar.until(end)
    if "string" not in kinds:
        return f"{grammar.json(schema, strict)} {closing}"
    if kinds == {"string"}:
        return grammar.until(end, *_patterns(schema))
    # A text that begins like other JSON would be read as that, and need not fit then.
    text = grammar.until(end, r'/([^\s\[{"0-9\-](?s:.*))?/', *_patterns(schema))
    return either([text, f"{grammar.json(_without_text(schema), strict)} {closing}"])


def typed_values(grammar: Grammar, schema: Any, strict: bool, end: str) -> list[tuple[bool, str]]:
    """A value that says of itself whether it is text: (whether it is, its expression with the mark that ends it)."""
    schema = resolved(schema, schema) if isinstance(schema, dict) else {}
    kinds, choices = kinds_of(schema), _choices(schema)
    texts = [choice for choice in choices if isinstance(choice, str)]
    others = [choice for choice in choices if not isinstance(choice, str)]
    found = []
    if texts or (not choices and "string" in kinds):
        text = f"{either(map(quoted, texts))} {grammar.mark(end)}" if texts else grammar.until(end, *_patterns(schema))
        found.append((True, text))
    if others or (not choices and kinds != {"string"}):
        rest = {"enum": others} if others else _without_text(schema)
        found.append((False, f"{grammar.json(rest, strict)} {grammar.mark(end)}"))
    return found


def _choices(schema: Any) -> Sequence[Any]:
    if not isinstance(schema, dict):
        return ()
    return [schema["const"]] if "const" in schema else schema["enum"] if isinstance(schema.get("enum"), list) else ()


def _patterns(schema: Mapping[str, Any]) -> list[str]:
    found = []
    least, most = schema.get("minLength"), schema.get("maxLength")
    if isinstance(least, int) or isinstance(most, int):
        found.append(f"/(?s:.){{{least or 0},{'' if most is None else most}}}/")
    if isinstance(schema.get("pattern"), str):
        found.append(f"/{searched(schema['pattern'])}/")
    return found


def searched(pattern: str) -> str:
    """A regular expression for the whole of a text in which `pattern` is found somewhere."""
    before = "" if pattern.startswith("^") else "(?s:.*)"
    after = "" if pattern.endswith("$") and not pattern.endswith(r"\$") else "(?s:.*)"
    inner = pattern.removeprefix("^")
    inner = inner[:-1] if not after else inner
    return f"{before}(?:{regex_to_lark(inner, 'dw')}){after}"


def _without_text(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of the values that are no strings."""
    rest = dict(schema)
    if isinstance(schema.get("type"), list):
        rest["type"] = [kind for kind in schema["type"] if kind != "string"]
    for union in ("anyOf", "oneOf"):
        if isinstance(schema.get(union), list):
            rest[union] = [part for part in schema[union] if kinds_of(part) != {"string"}]
    return rest
