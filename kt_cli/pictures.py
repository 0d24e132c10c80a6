"""Images that go along with a question: read here and sent as data URLs, so that the server opens no file and no address.

What they are is seen in their first bytes, not in their names. The message of a question without one stays a plain text.
"""

import base64
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from kt_cli import client
from kt_core import paths
from kt_core.errors import BadData, NotFound, UsageError

BYTES = 32 << 20  # of one file, as the server has it
SECONDS = 15.0  # for an address to answer, and between two parts of what it sends
ADDRESSES = ("http://", "https://")
# first bytes of a file -> its type; WebP has its name after the length of the file
KINDS = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"BM": "bmp"}
NAMED = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")  # how a file's name ends that is looked for in a question

Content = str | list[dict[str, Any]]


@dataclass(frozen=True)
class Picture:
    """`name` as the user gave it; `url` holds the image itself."""

    name: str
    url: str


def load(name: str) -> Picture:
    """The image at a path or an http(s) address. Raises NotFound, BadData for what is no image, UsageError for one too large."""
    data = _fetched(name) if name.lower().startswith(ADDRESSES) else _read(paths.expanded(_path(name)))
    if len(data) > BYTES:
        raise UsageError("client.large_image", name=name, limit=BYTES >> 20)
    kind = kind_of(data)
    if not kind:
        raise BadData("client.no_image", name=name, known=", ".join([*KINDS.values(), "webp"]))
    return Picture(name, f"data:image/{kind};base64,{base64.b64encode(data).decode()}")


def kind_of(head: bytes) -> str:
    """The type of the image that begins so; empty for what is none."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    return next((kind for first, kind in KINDS.items() if head.startswith(first)), "")


def paths_in(question: str) -> list[str]:
    """Paths of images that a question names: what a file manager pastes, quoted or with backslashes. A name without a folder
    is a word, not a path."""
    try:
        words = shlex.split(question)
    except ValueError:  # a quotation mark alone, as in "don't"
        words = question.split()
    return [word for word in words if _is_image(word)]


def is_nothing_else(question: str, names: list[str]) -> bool:
    """Whether a question is these paths and no more."""
    try:
        return shlex.split(question) == names
    except ValueError:
        return question.split() == names


def content(text: str, pictures: Iterable[Picture]) -> Content:
    """A message's content: the text, after its images if there are any."""
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": picture.url}} for picture in pictures]
    return [*parts, {"type": "text", "text": text}] if parts else text


def text_of(found: Content) -> str:
    """The text of a message's content."""
    return found if isinstance(found, str) else "\n".join(part["text"] for part in found if part["type"] == "text")


def check(api: client.Api, model: str) -> None:
    """Raises UsageError where the server says that this model sees no images; one that does not say is asked by sending them."""
    if client.sees(api, model) is False:
        raise UsageError("client.no_vision", model=model)


def _path(name: str) -> str:
    """A path as file managers give it: maybe a file:// address."""
    return unquote(name.removeprefix("file://")) if name.startswith("file://") else name


def _is_image(word: str) -> bool:
    file = paths.expanded(_path(word))
    if "/" not in word or not word.lower().endswith(NAMED) or not paths.is_file(file):
        return False
    try:
        with file.open("rb") as opened:
            return bool(kind_of(opened.read(16)))
    except OSError:
        return False


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(BYTES + 1)
    except FileNotFoundError as error:
        raise NotFound("client.no_file", file=file) from error
    except (OSError, ValueError) as error:
        raise BadData("client.bad_image", file=file, reason=getattr(error, "strerror", None) or error) from error


def _fetched(url: str) -> bytes:
    """What an address answers with, through the proxy that the environment names."""
    from http.client import HTTPException
    from urllib.request import Request, urlopen

    try:
        with urlopen(Request(url, headers={"User-Agent": "kt"}), timeout=SECONDS) as answer:
            found: bytes = answer.read(BYTES + 1)
            return found
    except (OSError, HTTPException, ValueError) as error:  # urllib's own errors are OSErrors
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise NotFound("client.no_fetch", url=url, reason=reason) from error
