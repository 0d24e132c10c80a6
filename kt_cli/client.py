"""A client of kt's server: the OpenAI-compatible API over the standard library's HTTP.

Proxy variables are not followed: the server is on this machine or at the address that the user gave.
"""

import json
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from kt_cli import output
from kt_core.errors import KTError, NotFound, RemoteError, UsageError
from kt_core.messages import t

CONNECT_SECONDS = 5.0
LIST_SECONDS = 30.0  # for the list of models, which servers have at hand
HEALTH_SECONDS = 1.0
TOO_LONG = "context_length_exceeded"  # the API's code for a prompt that the context does not hold
Message = dict[str, Any]  # role, and content: a text or parts, as pictures.content has it


class Refused(RemoteError):
    """A server's own error. `code` is the API's word for it, empty where it gave none; `status` is HTTP's, 0 in a stream."""

    code = ""
    status = 0


@dataclass(frozen=True)
class Api:
    """Where a server is. `key` goes along as a bearer token unless it is empty."""

    url: str
    key: str = ""


@dataclass(frozen=True)
class Piece:
    """A part of a streamed answer. `usage` and `timings` come once, near the end."""

    text: str = ""
    reasoning: str = ""
    finish: str = ""
    usage: dict[str, Any] | None = None
    timings: dict[str, float] | None = None


@dataclass(frozen=True)
class Options:
    """What a request may set, by the API's names; None leaves it to the server."""

    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    enable_thinking: bool | None = None


@dataclass
class Stats:
    """Figures of one answer. The rates are the server's own where it reports them, else measured here."""

    started: float
    first: float = 0.0
    last: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    finish: str = ""
    timings: dict[str, float] = field(default_factory=dict)

    def add(self, piece: Piece) -> None:
        if piece.text or piece.reasoning:
            self.last = time.monotonic()
            self.first = self.first or self.last
        self.finish = piece.finish or self.finish
        if piece.usage:
            self.prompt_tokens = int(piece.usage.get("prompt_tokens") or 0)
            self.completion_tokens = int(piece.usage.get("completion_tokens") or 0)
            self.cached_tokens = int((piece.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        self.timings = piece.timings or self.timings

    def prefill_rate(self) -> float:
        """Prompt tokens computed per second of prefill; 0 when unknown."""
        seconds = self.first - self.started if self.first else 0.0
        here = (self.prompt_tokens - self.cached_tokens) / seconds if seconds > 0 else 0.0
        return self.timings.get("prompt_per_second") or here

    def decode_rate(self) -> float:
        """Tokens per second after the first one, which prefill yields; 0 when unknown."""
        seconds = self.last - self.first
        here = (self.completion_tokens - 1) / seconds if seconds > 0 and self.completion_tokens > 1 else 0.0
        return self.timings.get("predicted_per_second") or here

    def line(self, context: int = 0) -> str:
        """One line for a person; with the share of the `context` that is used, where that is known."""
        parts = [
            t("client.tokens_in", count=self.prompt_tokens, rate=f"{self.prefill_rate():.1f}"),
            t("client.tokens_out", count=self.completion_tokens, rate=f"{self.decode_rate():.1f}"),
        ]
        if self.cached_tokens:
            parts.append(t("client.cached", count=self.cached_tokens))
        if self.first:
            parts.append(t("client.first", seconds=f"{self.first - self.started:.2f}"))
        if context:
            parts.append(t("client.context", used=self.prompt_tokens + self.completion_tokens, context=context))
        if self.finish == "length":
            parts.append(t("client.cut"))
        return " · ".join(parts)

    def data(self) -> dict[str, Any]:
        """The figures for JSON; rates in tokens per second."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
            "first_token_seconds": round(self.first - self.started, 3) if self.first else None,
            "prefill_rate": round(self.prefill_rate(), 3),
            "decode_rate": round(self.decode_rate(), 3),
            "finish_reason": self.finish,
        }


def health(url: str) -> dict[str, Any]:
    """What kt's server at `url` says of itself; empty when it does not answer soon."""
    connection = _connection(Api(url), HEALTH_SECONDS)
    try:
        connection.request("GET", "/health")
        found = json.loads(connection.getresponse().read())
    except (OSError, HTTPException, ValueError):
        return {}
    finally:
        connection.close()
    return found if isinstance(found, dict) else {}


def models(api: Api) -> dict[str, int]:
    """The models that the server offers: name -> tokens that it holds (0: not said). Raises as _entries does."""
    try:
        return {str(entry["id"]): int(entry.get("context_length") or 0) for entry in _entries(api)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KTError("client.not_a_server", url=api.url) from error


def sees(api: Api, model: str) -> bool | None:
    """Whether a model looks at images; None where the server does not say. Raises as _entries does."""
    kinds = next((entry.get("input_modalities") for entry in _entries(api) if entry.get("id") == model), None)
    return "image" in kinds if isinstance(kinds, list) else None


def _entries(api: Api) -> list[dict[str, Any]]:
    """The server's list of models. Raises NotFound when nothing answers, or when what answers has no such list."""
    with output.still(t("client.waits", url=api.url, seconds=f"{LIST_SECONDS:g}")):
        return _listed(api)


def _listed(api: Api) -> list[dict[str, Any]]:
    try:
        response, connection = _send(api, "GET", "/v1/models", seconds=LIST_SECONDS)
    except Refused as refused:
        if refused.status != 404:
            raise
        parts = urlsplit(api.url)
        root = f"{parts.scheme}://{parts.netloc}"
        raise NotFound("client.no_models", url=api.url, root=root) from refused
    try:
        found = json.loads(response.read())["data"]
        return [entry for entry in found if isinstance(entry, dict)]
    except TimeoutError as error:
        raise _silent(api, LIST_SECONDS) from error
    except (ValueError, KeyError, TypeError) as error:
        raise KTError("client.not_a_server", url=api.url) from error
    finally:
        connection.close()


def chat(api: Api, model: str, messages: list[Message], options: Options) -> Generator[Piece, None, None]:
    """Stream an answer. Closing the iterator closes the connection, which stops the server's work.

    Raises NotFound when nothing answers, Refused with the server's own words for a refusal.
    """
    body: dict[str, Any] = {"model": model, "messages": messages, "stream": True}
    body["stream_options"] = {"include_usage": True}
    body |= {name: value for name, value in asdict(options).items() if value is not None}
    response, connection = _send(api, "POST", "/v1/chat/completions", body)
    try:
        yield from _pieces(response, api)
    finally:
        connection.close()
        response.close()


def _pieces(response: HTTPResponse, api: Api) -> Iterator[Piece]:
    """The parts of an event stream; one that ends without its end mark is an error."""
    try:
        for line in response:
            data = line.strip().removeprefix(b"data:").strip()
            if not line.startswith(b"data:"):
                continue  # blank lines, and comments that keep the connection open
            if data == b"[DONE]":
                return
            yield _piece(json.loads(data))
    except (OSError, HTTPException, ValueError) as error:
        raise KTError("client.broken_stream", url=api.url) from error
    raise KTError("client.broken_stream", url=api.url)


def _piece(event: dict[str, Any]) -> Piece:
    if "error" in event:
        raise _refusal(event, 0)
    choice = (event.get("choices") or [{}])[0]
    delta = choice.get("delta") or {}
    return Piece(
        text=delta.get("content") or "",
        reasoning=delta.get("reasoning_content") or "",
        finish=choice.get("finish_reason") or "",
        usage=event.get("usage"),
        timings=event.get("timings"),
    )


def _silent(api: Api, seconds: float) -> NotFound:
    return NotFound("client.silent", url=api.url, seconds=f"{seconds:g}")


def _send(
    api: Api, method: str, path: str, body: Any = None, seconds: float | None = None
) -> tuple[HTTPResponse, HTTPConnection]:
    """Send a request; the response when the server accepts it. None `seconds`: a long prompt may keep the first byte
    waiting for minutes."""
    connection = _connection(api)
    headers: dict[str, str | bytes] = {"Content-Type": "application/json"}
    if api.key:
        headers["Authorization"] = b"Bearer " + api.key.encode()  # http.client would send text as latin-1
    connected = False
    try:
        connection.connect()
        connected = True
        connection.sock.settimeout(seconds)
        connection.request(method, urlsplit(api.url).path.rstrip("/") + path, body and json.dumps(body), headers)
        response = connection.getresponse()
    except UnicodeError:  # a host name that cannot be one
        connection.close()
        raise UsageError("client.bad_url", url=api.url) from None
    except (OSError, HTTPException) as error:
        connection.close()
        if connected and seconds and isinstance(error, TimeoutError):
            raise _silent(api, seconds) from error
        raise NotFound("client.no_answer", url=api.url, reason=_reason(error)) from error
    except BaseException:  # Ctrl-C while the prompt is computed: the server must see the client leave
        connection.close()
        raise
    if response.status == 200:
        return response, connection
    try:
        content = json.loads(response.read())
    except (OSError, HTTPException, ValueError):
        content = {}
    connection.close()
    raise _refusal(content, response.status)


def _connection(api: Api, timeout: float = CONNECT_SECONDS) -> HTTPConnection:
    kinds: dict[str, type[HTTPConnection]] = {"http": HTTPConnection, "https": HTTPSConnection}
    try:
        parts = urlsplit(api.url)
        if parts.scheme not in kinds or not parts.hostname:
            raise ValueError(api.url)
        return kinds[parts.scheme](parts.hostname, parts.port, timeout=timeout)
    except (ValueError, HTTPException):  # a port that is none, a host with a space
        raise UsageError("client.bad_url", url=api.url) from None


def _refusal(content: Any, status: int) -> KTError:
    """The server's error object in its own words: kt's servers send them in three parts, others as one message."""
    found = content.get("error") if isinstance(content, dict) else None
    parts = found if isinstance(found, dict) else {"message": found}
    what, why, next_step = (str(parts.get(name) or "") for name in ("what", "why", "next"))
    what = what or str(parts.get("message") or "")
    if status == 401:
        return RemoteError(t("client.unauthorised"), why or what, t("client.unauthorised_next"))
    if isinstance(content, dict) and content.get("status") == "loading":
        return KTError("client.loading")
    if not what:
        what, _, next_step = KTError("client.refused", status=status).lines()
    refused = Refused(" ".join(what.split()), " ".join(why.split()), next_step)
    refused.code, refused.status = str(parts.get("code") or ""), status
    return refused


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
