"""What is said of each field, in docs/api.md and in the OpenAPI document; and the tables of docs/api.md.

`python -m kt_core.server.fields --write` writes them into the page; a test fails when they are out of date.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from kt_core.server.bodies import Body

FILE = Path(__file__).parents[2] / "docs" / "api.md"
BEGIN, END = "<!-- fields: begin -->", "<!-- fields: end -->"

# Field -> what its type and bounds do not say. One name means one thing in all dialects.
NOTES = {
    "add_special": "false leaves out the tokens around a text",
    "add_special_tokens": "the other name of `add_special`",
    "chat_template_kwargs": "arguments of the model's chat template; one that it does not read is 400",
    "content": "the text, or parts: text, `image_url`, `video_url`",
    "continue_final_message": "continue the last message instead of answering it",
    "echo": "the text begins with the prompt's; with `logprobs` those of the prompt's tokens come first, and all of them are computed",
    "enable_thinking": "whether the model reasons first; 400 where its template has no switch for that",
    "format": "`json` or a JSON schema; as `response_format`",
    "frequency_penalty": "over the answer's tokens",
    "grammar": "a grammar in Lark's notation (from `start`) or GBNF (from `root`)",
    "guided_choice": "as `choice` of `structured_outputs`",
    "guided_grammar": "as `grammar`",
    "guided_json": "as `json_schema`",
    "guided_regex": "as `regex` of `structured_outputs`",
    "ignore_eos": "go on behind the model's end token",
    "images": "base64 each, before the text; 400 where the model reads none",
    "include": "`message.output_text.logprobs`; `reasoning.encrypted_content`, which asks for nothing: reasoning comes in the clear",
    "input": "a text, or items: messages, calls, outputs of calls, reasoning; parts of text and `input_image`",
    "instructions": "a system message before the others",
    "json_schema": "a schema that the answer's text fits, see below",
    "logit_bias": "token id -> what is added to its logit",
    "logprobs": "from the raw logits, independent of temperature and penalties; without those of stop strings",
    "max_completion_tokens": "the newer name of `max_tokens`; both given and different is 400",
    "max_output_tokens": "exact; more than the context has room for means the rest of the context",
    "max_tokens": "exact; more than the context has room for means the rest of the context",
    "messages": "content is a string or parts: text, joined by line breaks, and images and videos where the model reads them, see below",
    "metadata": "comes back with the answer",
    "min_p": "0 is off",
    "mirostat": "0 only",
    "model": "the served name; another one is 404",
    "name": "the older name of `model`",
    "n": "computed together; the prompt is computed once",
    "num_predict": "-1 and -2 are no limit; 0 is 400",
    "options": "below",
    "output_config": "`effort` as `reasoning_effort`, `format` as `response_format`",
    "parallel_tool_calls": "false: of several calls the first one comes back",
    "presence_penalty": "over the answer's tokens",
    "prompt": "a text or token ids; a list of one prompt counts as that one, several are 400",
    "raw": "the prompt as it is, without the chat template",
    "reasoning": "`effort` as `reasoning_effort`",
    "reasoning_effort": "for a chat template that reads it; `none` turns reasoning off where the template has a switch, any other value on",
    "repeat_penalty": "over prompt and answer; 1 is off",
    "repetition_penalty": "over prompt and answer; 1 is off",
    "response_format": "`text`, `json_object` or `json_schema`, see below",
    "return_progress": "with `stream`: chunks with `prompt_progress` (`total`, `cache`, `processed`, `time_ms`) while a long prompt is computed",
    "seed": "the same seed and request give the same tokens; choice i of `n` draws as with seed + i",
    "stop": "not part of the answer; found across tokens; the one that is complete first counts",
    "stop_sequences": "as `stop`",
    "stop_token_ids": "tokens that end the answer",
    "stream": "server-sent events; in Ollama's dialect lines of JSON, and on unless false",
    "stream_options": "`include_usage`: one more chunk with empty `choices` and the `usage` before `[DONE]`",
    "structured_outputs": "one of these; the form of the answer, see below",
    "system": "a system message before the others",
    "temperature": "0 takes the most likely token; default 1",
    "text": "`format` as `response_format`; `verbosity` is ignored",
    "think": "whether the model reasons first, or how hard; 400 for a model that cannot",
    "thinking": "`enabled` and `disabled` set the switch of the model's chat template, where it has one; `budget_tokens` is ignored",
    "timeout": "seconds from arrival, then 504",
    "tokens": "token ids",
    "tool_choice": "which tool the model may, must or must not call; a call that it must make is in its own markup, see [parsers.md](parsers.md#calls-that-have-to-be-made)",
    "tools": "rendered into the prompt by the model's chat template; functions only",
    "top_k": "0 and -1 are off",
    "top_logprobs": "the most likely tokens in each place; with `logprobs`",
    "top_p": "1 is off",
    "typical_p": "1 is off; the order of all filters: [engine.md](engine.md#choosing-a-token)",
    "user": "comes back with the answer",
    "with_pieces": "`{id, piece}` for each token",
}
# Where a name means something else.
NOTES_OF = {
    ("Completion", "logprobs"): "the most likely tokens in each place; from the raw logits",
    ("Completion", "max_tokens"): "exact; default 16",
    ("Generate", "prompt"): "what the user says",
    ("Source", "content"): "the text",
    ("Source", "prompt"): "the other name of `content`",
    ("Source", "messages"): "in place of a text: messages with the fields of a chat request",
}
# Where the schema does not read well.
TAKES = {("Completion", "prompt"): "text or list of integer", ("Responses", "include"): "list of text"}
# pydantic writes bounds behind a validator by its own names.
_BOUNDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}


def standard(schema: Any) -> Any:
    """A schema of pydantic's with the names of JSON Schema alone."""
    if isinstance(schema, list):
        return [standard(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    number = schema.get("type") in ("number", "integer")
    return {_BOUNDS.get(name, name) if number else name: standard(part) for name, part in schema.items()}


def honoured(kind: type[Body]) -> Iterator[tuple[str, str]]:
    """(field, which values)."""
    schema = standard(TypeAdapter(kind).json_schema())
    required = schema.get("required", ())
    for name, inner in schema["properties"].items():
        if name in kind.refused:
            continue
        note = NOTES_OF.get((kind.__name__, name)) or NOTES.get(name, "")
        takes = TAKES.get((kind.__name__, name)) or _takes(inner, schema.get("$defs", {}))
        takes += ", required" if name in required else ""
        yield name, "; ".join(filter(None, (takes, note)))


def others(kind: type[Body]) -> Iterator[tuple[str, str]]:
    """(field, what becomes of it)."""
    for name, accepted in sorted(kind.refused.items()):
        values = ", ".join(f"`{json.dumps(value)}`" for value in accepted)
        yield name, f"refused, but for {values}" if values else "refused"
    for name, why in sorted(kind.harmless.items()):
        if name not in kind.model_fields:
            yield name, f"ignored: {why}"


def _takes(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """A JSON schema in a few words."""
    if "$ref" in schema:
        inner = definitions[schema["$ref"].rpartition("/")[2]]
        return _takes(inner, definitions)
    if "anyOf" in schema:
        kinds = [_takes(kind, definitions) for kind in schema["anyOf"] if kind.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]) if value)
    type = str(schema.get("type", "any"))
    kind = {"string": "text", "boolean": "true or false"}.get(type, type)
    if kind == "array":
        most = f", up to {schema['maxItems']}" if schema.get("maxItems", 10**6) < 10**6 else ""
        return f"list of {_takes(schema.get('items', {}), definitions)}{most}"
    if kind == "object":
        names = ", ".join(schema.get("properties", {}))
        return f"object ({names})" if names else "object"
    return kind + _bounds(schema)


def _bounds(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and abs(low) > 2**60:
        return ", of 64 bits"
    if low is not None:
        return f", {low:g} to {high:g}" if high is not None else f", from {low:g}"
    return f", above {schema['exclusiveMinimum']:g}" if "exclusiveMinimum" in schema else ""


def tables() -> str:
    """What is honoured, a table for each kind of body; then what is not, once for all that share it."""
    from kt_core.server.endpoints import ENDPOINTS
    from kt_core.server.ollama_fields import Options

    places: dict[type[Body], list[str]] = {}
    for endpoint in ENDPOINTS:
        if endpoint.body:
            places.setdefault(endpoint.body, []).append(f"`{endpoint.path}`")
    places[Options] = ["`options` of `/api/chat` and `/api/generate`"]
    parts = [_table(", ".join(where), honoured(kind)) for kind, where in places.items()]
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for kind, where in places.items():
        alike.setdefault(tuple(others(kind)), []).extend(where)
    parts += [_table(f"Not honoured: {', '.join(where)}", pairs) for pairs, where in alike.items() if pairs]
    return "\n\n".join(parts)


def _table(title: str, pairs: Iterable[tuple[str, str]]) -> str:
    lines = [f"| `{name}` | {text.replace('|', chr(92) + '|')} |" for name, text in pairs]
    return "\n".join([f"### {title}", "", "| field | |", "| --- | --- |", *lines])


def page(text: str) -> str:
    """The page with its tables as they are now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m kt_core.server.fields --write")
    FILE.write_text(page(FILE.read_text(encoding="utf-8")), encoding="utf-8")
