"""Images and videos in messages: from data URLs, or fetched from hosts that the server's settings name."""

import asyncio
import base64
import binascii
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
from typing_extensions import TypedDict

from kt_core.errors import UsageError
from kt_core.events import one_line
from kt_core.types import Attachment, Request

FETCH_BYTES = 32 << 20
FETCH_SECONDS = 15.0  # for a file, all of it
_FRAMES = "data:video/jpeg;base64,"  # frames of a video, with commas between them, as other servers take them


class Url(TypedDict):
    url: str


class ImagePart(TypedDict):
    type: Literal["image_url"]
    image_url: Url | str


class VideoPart(TypedDict):
    type: Literal["video_url"]
    video_url: Url | str


def content(value: Any) -> Any:
    """A message's content: parts of text alone as one string, joined by line breaks; with images or videos as a list of
    texts and Attachments. Raises ValueError for parts that are neither."""
    if not isinstance(value, list):
        return value
    parts = [_part(part) for part in value]
    texts = [part for part in parts if isinstance(part, str)]
    return "\n".join(texts) if len(texts) == len(parts) else parts


def plain(content: Any) -> Any:
    """Content as chat templates know it."""
    if not isinstance(content, list):
        return content
    return [{"type": "text", "text": p} if isinstance(p, str) else {"type": p.kind} for p in content]


def of(content: Any) -> list[Attachment]:
    """The attachments of a message's content."""
    return [part for part in content if isinstance(part, Attachment)] if isinstance(content, list) else []


def _part(part: Any) -> str | Attachment:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    if kind not in ("image_url", "video_url"):
        raise ValueError(f"parts of type {kind!r} are not supported; text, image_url and video_url are")
    url = part.get(kind)
    url = url.get("url") if isinstance(url, dict) else url
    if not isinstance(url, str):
        raise ValueError(f"{kind} has no url")
    return _attachment(kind.removesuffix("_url"), url)


def _attachment(kind: str, url: str) -> Attachment:
    if url.startswith(("http://", "https://")):
        return Attachment(kind, url=url)
    head, comma, data = url.partition(",")
    if not head.startswith("data:") or not head.endswith(";base64") or not comma:
        raise ValueError("the url of an image or video is a data URL in base64, or http(s) where the server fetches")
    if kind == "video" and url.startswith(_FRAMES):
        return Attachment(kind, frames=tuple(decoded(frame) for frame in data.split(",")))
    return Attachment(kind, decoded(data))


def decoded(data: str) -> bytes:
    """Raises ValueError for what is no base64."""
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("the data of an image or video is not base64") from None


async def fetched(request: Request, hosts: tuple[str, ...]) -> Request:
    """The request with everything fetched that its attachments name. Raises UsageError, also for a host not in `hosts`."""
    if not any(attachment.url for attachment in request.attachments):
        return request
    found = [await _fetched(attachment, hosts) if attachment.url else attachment for attachment in request.attachments]
    return replace(request, attachments=tuple(found))


async def _fetched(attachment: Attachment, hosts: tuple[str, ...]) -> Attachment:
    url, field = attachment.url, "messages"
    try:
        host = (urlsplit(url).hostname or "").lower()
    except ValueError:
        host = ""
    if host not in hosts:
        raise UsageError("media.remote", field=field, host=host or "?")
    try:
        # Redirects are not followed: they could lead to a host that is not named.
        async with httpx.AsyncClient(follow_redirects=False) as client:
            return replace(attachment, data=await asyncio.wait_for(_read(client, url), FETCH_SECONDS), url="")
    except (httpx.HTTPError, httpx.InvalidURL, asyncio.TimeoutError, ValueError) as error:
        reason = one_line(error) or type(error).__name__
        raise UsageError("media.fetch", field=field, url=url, reason=reason) from error


async def _read(client: httpx.AsyncClient, url: str) -> bytes:
    body = bytearray()
    async with client.stream("GET", url) as response:
        if response.status_code != 200:
            raise ValueError(f"status {response.status_code}")
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > FETCH_BYTES:
                raise ValueError(f"more than {FETCH_BYTES >> 20} MiB")
    return bytes(body)
