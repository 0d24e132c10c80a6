"""Errors as OpenAI's clients expect them: {"error": {message, type, param, code}} with a fitting status."""

from typing import Any

from fastapi.responses import JSONResponse

from kt_core.engine.stream import Closed, QueueFull, TimedOut
from kt_core.errors import KTError, NotFound, UsageError


class Loading(KTError):
    """The model is not loaded yet."""


class Unauthorized(UsageError):
    """The API key is missing or wrong."""


class Forbidden(UsageError):
    """Nobody may ask in this way."""


class TooLarge(UsageError):
    """The request's body is longer than the server reads."""


class TooSlow(UsageError):
    """The request's body does not come."""


# First match counts: class -> (status, type, headers).
_KINDS: tuple[tuple[type[KTError], int, str, dict[str, str]], ...] = (
    (QueueFull, 429, "rate_limit_error", {}),
    (Loading, 503, "server_error", {"Retry-After": "2"}),
    (Closed, 503, "server_error", {}),
    (TimedOut, 504, "server_error", {}),
    (Unauthorized, 401, "authentication_error", {"WWW-Authenticate": "Bearer"}),
    (Forbidden, 403, "permission_error", {}),
    (TooSlow, 408, "invalid_request_error", {"Connection": "close"}),
    (TooLarge, 413, "invalid_request_error", {}),
    (NotFound, 404, "invalid_request_error", {}),
    (UsageError, 400, "invalid_request_error", {}),
    (KTError, 500, "server_error", {}),
)
_ROUTER_CODES = {400: "invalid_http", 404: "unknown_route", 405: "method_not_allowed"}
# Codes that clients know; any other error's code is the end of its message key.
_CODES = {"engine.context_overflow": "context_length_exceeded"}


def body(error: KTError) -> dict[str, Any]:
    """The envelope of `error`. Its argument `field`, where it has one, is the param."""
    kind = next(kind for kind in _KINDS if isinstance(error, kind[0]))
    code = _CODES.get(error.key, error.key.split(".")[-1])
    envelope = _envelope(str(error), kind[2], error.args_.get("field"), code)
    what, why, next_step = error.lines()
    envelope["error"].update(what=what, why=why, next=next_step)  # kt's own: the message in its three parts
    return envelope


def response(error: KTError) -> JSONResponse:
    """The HTTP answer to `error`."""
    kind = next(kind for kind in _KINDS if isinstance(error, kind[0]))
    seconds = error.args_.get("seconds") if isinstance(error, QueueFull) else None
    headers = kind[3] if seconds is None else {**kind[3], "Retry-After": str(seconds)}
    return JSONResponse(body(error), kind[1], headers)


def passed_on(response: JSONResponse) -> dict[str, str]:
    """The headers that an error keeps when another dialect writes its body."""
    return {name: value for name, value in response.headers.items() if not name.lower().startswith("content-")}


def http_response(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """The answer to what no route sees: unknown routes and methods, and what is no HTTP."""
    return JSONResponse(_envelope(message, "invalid_request_error", None, _ROUTER_CODES.get(status)), status, headers)


def _envelope(message: str, kind: str, param: object, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
