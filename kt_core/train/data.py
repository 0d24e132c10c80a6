"""Training samples from files: alpaca and sharegpt rows, plain text, and what dataset_info.json says of them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kt_core import paths
from kt_core.errors import BadData, NotFound, UsageError
from kt_core.train import tables

ENDINGS = (*tables.ENDINGS, ".txt")
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
class Choice:
    """A question with each of its answers; `right` is the number of the right one, from 0."""

    samples: tuple[Sample, ...]
    right: int


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

    A name is a file ending in .json, .jsonl, .txt, .parquet or .arrow, a folder of such, one of `folder`/dataset_info.json, or a
    data set of the hub, OWNER/NAME.
    Raises NotFound, UsageError for an entry that is not a file on this disk, BadData for a row, by its number, that is
    not what it should be.
    """
    listed = names.split(",") if isinstance(names, str) else names
    samples: list[Sample] = []
    for name in listed:
        sources = find(name.strip(), Path(folder))
        most = min((n for n in (limit, sources[0].limit) if n is not None), default=None)
        samples += [sample for source in sources for sample in read(source, answer)][:most]
    return samples


def load_pairs(names: str | list[str], folder: str, limit: int | None = None) -> list[Pair]:
    """Preference pairs: rows as `load` takes them, but with two answers, `chosen` and `rejected`. Raises what `load` does."""
    better, worse = (load(names, folder, limit, side) for side in ("chosen", "rejected"))
    return [Pair(*both) for both in zip(better, worse, strict=True)]


def load_choices(names: str | list[str], folder: str, limit: int | None = None) -> list[Choice]:
    """Questions with several answers: rows with `instruction`, `input`, `choices` and `answer`, the right one's number from 0, or
    its letter. Raises what `load` does."""
    found = []
    for name in names.split(",") if isinstance(names, str) else names:
        each = ((source, row) for source in find(name.strip(), Path(folder)) for row in _rows(source.file))
        for number, (source, row) in enumerate(each, 1):
            try:
                samples = tuple(_alpaca(source, {**row, "output": answer}) for answer in row["choices"])
                answer = row["answer"]
                right = "ABCDEFGHIJ".index(answer.upper()) if isinstance(answer, str) else int(answer)
                samples[right]  # an answer that is none of them is a mistake
            except (KeyError, TypeError, ValueError, IndexError) as error:
                reason = f"{type(error).__name__}: {error}"
                raise BadData("train.bad_row", file=source.file, number=number, reason=reason) from None
            found.append(Choice(samples, right))
    return found[:limit]


def find(name: str, folder: Path) -> list[Source]:
    """Where a data set is. Raises NotFound, which lists the known names, UsageError and BadData."""
    path = Path(name).expanduser()
    if path.suffix in ENDINGS:
        if not path.is_file():
            raise NotFound("train.no_dataset_file", file=path)
        return [Source(name, path)]
    if path.is_dir():
        return [Source(name, file) for file in tables.files_of(path)]
    index = folder / "dataset_info.json"
    known = _json(index) if index.is_file() else {}
    if name not in known:
        if tables.REPOSITORY.fullmatch(name):
            return [Source(name, file) for file in tables.from_hub(name)]
        if not index.is_file():
            raise NotFound("train.no_dataset_info", name=name, file=index)
        raise NotFound("train.no_dataset", name=name, file=index, known=", ".join(sorted(known)[:20]))
    entry = known[name]
    return [
        Source(
            name,
            file,
            entry.get("formatting", "alpaca"),
            entry.get("columns"),
            entry.get("tags"),
            entry.get("num_samples"),
        )
        for file in _listed(name, entry, folder)
    ]


def _listed(name: str, entry: dict[str, Any], folder: Path) -> list[Path]:
    """The files of an entry of dataset_info.json."""
    if "file_name" in entry:
        path = folder / entry["file_name"]
        if path.is_dir():
            return tables.files_of(path)
        if not path.is_file():
            raise NotFound("train.no_dataset_file", file=path)
        return [path]
    if "hf_hub_url" in entry:
        return tables.from_hub(str(entry["hf_hub_url"]))
    raise UsageError("train.remote_dataset", name=name)


def read(source: Source, answer: str = "") -> list[Sample]:
    """All samples of a file. Raises BadData."""
    if source.file.suffix == ".txt":
        text = _read(source.file)
        return [Sample(text=line) for line in text.splitlines() if line.strip()]
    return [_sample(source, number, row, answer) for number, row in enumerate(_rows(source.file), 1)]


def _rows(file: Path) -> Iterator[Any]:
    if file.suffix in tables.TABLES:
        yield from tables.rows(file)
        return
    if file.suffix == ".jsonl":
        for number, line in enumerate(_read(file).splitlines(), 1):
            if line.strip():
                yield _parsed(line, f"{file}:{number}")
        return
    rows = _json(file)
    if not isinstance(rows, list):
        raise BadData("train.not_rows", file=file)
    yield from rows


def _read(file: Path) -> str:
    try:
        return paths.text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise BadData("train.bad_table", file=file, reason=error) from None


def _json(file: Path) -> Any:
    return _parsed(_read(file), str(file))


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
