"""Conversations that are kept: one JSON file each, readable by its owner only, written whole or not at all."""

import itertools
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kt_cli import client, pictures
from kt_core import paths
from kt_core.errors import BadData, KTError, NotFound

TITLE_LENGTH = 60  # characters of the first question that stand for a conversation


@dataclass(frozen=True)
class Conversation:
    """What a file holds. The system prompt, if any, is the first of the messages."""

    file: Path
    model: str
    messages: tuple[client.Message, ...]

    @property
    def title(self) -> str:
        first = next((pictures.text_of(m["content"]) for m in self.messages if m["role"] == "user"), "")
        line = " ".join(first.split())
        return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1] + "…"

    @property
    def system(self) -> str:
        first = self.messages[0] if self.messages else {"role": "", "content": ""}
        return pictures.text_of(first["content"]) if first["role"] == "system" else ""


def folder() -> Path:
    return paths.state_dir() / "chats"


def new_file() -> Path:
    """A name for a conversation that begins now, which no other one has."""
    name = time.strftime(f"%Y%m%d-%H%M%S-{os.getpid()}")
    files = (folder() / f"{name}-{number}.json" for number in itertools.count(1))
    return next(file for file in files if not file.exists())


def newest(count: int) -> list[Conversation]:
    """The conversations that were written last, newest first; files that are none are left out."""
    files = sorted(folder().glob("*.json"), key=_written, reverse=True)
    found = []
    for file in files:
        with suppress(KTError):
            found.append(read(file))
        if len(found) == count:
            break
    return found


def _written(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def read(file: Path) -> Conversation:
    """Raises NotFound, and BadData for anything but a conversation."""
    try:
        data = json.loads(paths.text(file))
        messages = tuple({"role": str(m["role"]), "content": _content(m["content"])} for m in data["messages"])
        return Conversation(file, str(data.get("model", "")), messages)
    except FileNotFoundError as error:
        raise NotFound("saved.absent", file=file) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadData("saved.bad", file=file, reason=getattr(error, "strerror", None) or error) from error


def _content(value: Any) -> pictures.Content:
    """A text, or parts of text and images as pictures.content makes them. Raises TypeError for anything else."""
    if isinstance(value, list):
        return [_part(part["type"], part[part["type"]]) for part in value]
    if not isinstance(value, str):
        raise TypeError("content")
    return value


def _part(kind: str, value: Any) -> dict[str, Any]:
    text = value["url"] if kind == "image_url" else value
    if kind not in ("text", "image_url") or not isinstance(text, str):
        raise TypeError("content")
    return {"type": kind, kind: {"url": text} if kind == "image_url" else text}


def write(file: Path, model: str, messages: list[dict[str, Any]]) -> None:
    """Write beside and rename. Raises KTError."""
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    text = json.dumps({"model": model, "messages": messages}, ensure_ascii=False, indent=2) + "\n"
    try:
        if file.parent == folder():  # a folder that the user names is not made for a slip of the finger
            file.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
            out.write(text)
        beside.replace(file)
    except (
        OSError,
        ValueError,
    ) as error:  # ValueError: text or a name that cannot be written, such as half a character
        with suppress(OSError, ValueError):
            beside.unlink(missing_ok=True)
        raise KTError("saved.failed", file=file, reason=getattr(error, "strerror", None) or error) from error
