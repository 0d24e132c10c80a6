"""Training samples from files: alpaca and sharegpt rows, plain text, and what dataset_info.json says of them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kt_core.errors import BadData, NotFound, UsageError

ENDINGS = (".json", ".jsonl", ".txt")
ALPACA = {"prompt": "instruction", "query": "input", "response": "output", "history": "history", "system": "system"}
SHAREGPT = {"messages": "conversations", "system": "system", "tools": "tools"}
TAGS = {
    "role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt",
    "observation_tag": "observation", "function_tag": "function_call", "system_tag": "system",
}  # fmt: skip
OPENAI = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
ROLES = {"user_tag": "user", "assistant_tag": "assistant", "observation_tag": "tool", "function_tag": "assistant"}


@dataclass(frozen=True)
class Sample:
    """A conversation that ends with an answer, or a text. `tools` as a chat template takes them."""

    messages: tuple[dict[str, str], ...] = ()
    text: str | None = None
    tools: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Pair:
    """The same conversation with a better and with a worse last answer."""

    chosen: Sample
    rejected: Sample


@dataclass(frozen=True)
class Source:
    """A file and how its rows are to be read; no formatting: as the first row looks."""

    name: str
    file: Path
    formatting: str = ""
    columns: dict[str, str] | None = None
    tags: dict[str, str] | None = None
    limit: int | None = None


def load(names: str | list[str], folder: str, limit: int | None = None, answer: str = "") -> list[Sample]:
    """Samples of the named data sets, in order, at most `limit` of each. `answer`: the column of a last answer to be added.

    A name is a file ending in .json, .jsonl or .txt, or one of `folder`/dataset_info.json.
    Raises NotFound, UsageError for an entry that is not a file on this disk, BadData for a row, by its number, that is
    not what it should be.
    """
    listed = names.split(",") if isinstance(names, str) else names
    samples: list[Sample] = []
    for name in listed:
        source = find(name.strip(), Path(folder))
        most = min((n for n in (limit, source.limit) if n is not None), default=None)
        samples += read(source, answer)[:most]
    return samples


def load_pairs(names: str | list[str], folder: str, limit: int | None = None) -> list[Pair]:
    """Preference pairs: rows as `load` takes them, but with two answers, `chosen` and `rejected`. Raises what `load` does."""
    better, worse = (load(names, folder, limit, side) for side in ("chosen", "rejected"))
    return [Pair(*both) for both in zip(better, worse, strict=True)]


def find(name: str, folder: Path) -> Source:
    """Where a data set is. Raises NotFound, which lists the known names, UsageError and BadData."""
    path = Path(name).expanduser()
    if path.suffix in ENDINGS:
        if not path.is_file():
            raise NotFound("train.no_dataset_file", file=path)
        return Source(name, path)
    index = folder / "dataset_info.json"
    if not index.is_file():
        raise NotFound("train.no_dataset_info", name=name, file=index)
    known = _json(index)
    if name not in known:
        raise NotFound("train.no_dataset", name=name, file=index, known=", ".join(sorted(known)[:20]))
    entry = known[name]
    if "file_name" not in entry:
        raise UsageError("train.remote_dataset", name=name)
    path = folder / entry["file_name"]
    if not path.is_file():
        raise NotFound("train.no_dataset_file", file=path)
    formatting = entry.get("formatting", "alpaca")
    return Source(name, path, formatting, entry.get("columns"), entry.get("tags"), entry.get("num_samples"))


def read(source: Source, answer: str = "") -> list[Sample]:
    """All samples of a file. Raises BadData."""
    if source.file.suffix == ".txt":
        text = source.file.read_text(encoding="utf-8")
        return [Sample(text=line) for line in text.splitlines() if line.strip()]
    return [_sample(source, number, row, answer) for number, row in enumerate(_rows(source.file), 1)]


def _rows(file: Path) -> Iterator[Any]:
    if file.suffix == ".jsonl":
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                yield _parsed(line, f"{file}:{number}")
        return
    rows = _json(file)
    if not isinstance(rows, list):
        raise BadData("train.not_rows", file=file)
    yield from rows


def _json(file: Path) -> Any:
    return _parsed(file.read_text(encoding="utf-8"), str(file))


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadData("train.bad_json", where=where, reason=error) from None


def _sample(source: Source, number: int, row: Any, answer: str) -> Sample:
    try:
        if not isinstance(row, dict):
            raise TypeError(type(row).__name__)
        if answer:
            row = _answered(source, row, answer)
        if source.formatting == "sharegpt" or (not source.formatting and _looks_like_messages(row)):
            return _sharegpt(source, row)
        if not source.formatting and "text" in row and "output" not in row:
            return Sample(text=_text(row["text"]))
        return _alpaca(source, row)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise BadData("train.bad_row", file=source.file, number=number, reason=reason) from None


def _answered(source: Source, row: dict[str, Any], answer: str) -> dict[str, Any]:
    """The row with one of its two answers as the last turn, or as the response."""
    columns = source.columns or {}
    given = row[columns.get(answer, answer)]
    turns = columns.get("messages") or ("conversations" if "conversations" in row else "messages")
    if turns in row:
        return {**row, turns: [*row[turns], given]}
    return {**row, columns.get("response", ALPACA["response"]): given}


def _looks_like_messages(row: dict[str, Any]) -> bool:
    return "conversations" in row or "messages" in row


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {type(value).__name__}")
    return value


def _alpaca(source: Source, row: dict[str, Any]) -> Sample:
    columns = ALPACA | (source.columns or {})
    if columns["response"] not in row and source.columns and "response" not in source.columns:
        return Sample(text=_text(row[columns["prompt"]]))  # as llamafactory describes plain text
    messages = []
    if row.get(columns["system"]):
        messages.append({"role": "system", "content": _text(row[columns["system"]])})
    for question, answer in row.get(columns["history"]) or []:
        messages += [{"role": "user", "content": _text(question)}, {"role": "assistant", "content": _text(answer)}]
    parts = [_text(row[columns["prompt"]]), _text(row.get(columns["query"]) or "")]
    messages.append({"role": "user", "content": "\n".join(part for part in parts if part)})
    messages.append({"role": "assistant", "content": _text(row[columns["response"]])})
    return Sample(tuple(messages))


def _sharegpt(source: Source, row: dict[str, Any]) -> Sample:
    columns = SHAREGPT | ({} if "conversations" in row else {"messages": "messages"}) | (source.columns or {})
    turns = row[columns["messages"]]
    openai = OPENAI if turns and "role" in turns[0] else {}
    tags = TAGS | openai | (source.tags or {})
    roles = {tags[tag]: role for tag, role in ROLES.items()} | {tags["system_tag"]: "system"}
    messages = []
    if row.get(columns["system"]):
        messages.append({"role": "system", "content": _text(row[columns["system"]])})
    for turn in turns:
        role = turn[tags["role_tag"]]
        if role not in roles:
            raise ValueError(f"role {role!r} is none of {', '.join(roles)}")
        messages.append({"role": roles[role], "content": _text(turn[tags["content_tag"]])})
    if not messages or messages[-1]["role"] != "assistant":
        raise ValueError("the last turn is not an answer")
    tools = row.get(columns["tools"]) or ()
    return Sample(tuple(messages), tools=tuple(json.loads(tools) if isinstance(tools, str) else tools))
