"""What is around every request: its id, a line in the log, a count, and an answer to whatever the routes raise besides."""

import logging
import re
import time
import uuid
from collections.abc import Callable
from contextvars import ContextVar

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kt_core.errors import KTError
from kt_core.server import errors
from kt_core.server.state import State

log = logging.getLogger(__name__)

HTTP_ID: ContextVar[str] = ContextVar("http_id", default="-")  # of the request that is being answered
REQUEST_ID = "X-Request-Id"
IGNORED = "X-Kt-Ignored"
# An id of a client's own goes into the log and into a header, so it is one word of plain letters.
_SANE = re.compile(r"[A-Za-z0-9._:-]{1,128}")
# Asked for every few seconds by machines and the web page: a line each would be most of the log.
_POLLED = ("/health", "/metrics", "/slots", "/v1/kt/info", "/v1/kt/experts")
_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"})


class Outer:
    """Inside of Starlette's own net, which would raise again behind its answer: the server would then close the
    connection under a client that may use it for its next request. `dialect` puts an error as the path's clients expect.
    """

    def __init__(self, app: ASGIApp, state: State, dialect: Callable[[str, JSONResponse], JSONResponse]) -> None:
        self._app = app
        self._kt = state
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        shared = scope.setdefault("state", {})
        id = _id(scope)
        HTTP_ID.set(id)
        status, started = 0, time.monotonic()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = id
                if shared.get("ignored"):
                    headers[IGNORED] = ", ".join(shared["ignored"])
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as error:
            if status:  # a part of an answer is no answer: only an early end tells the client so
                raise
            log.exception("http %s: %s", id, _target(scope))
            answer = errors.response(KTError("server.internal", reason=type(error).__name__))
            await self._dialect(scope["path"], answer)(scope, receive, noted)
        finally:
            seconds = time.monotonic() - started
            level = logging.DEBUG if status == 200 and scope["path"] in _POLLED else logging.INFO
            log.log(level, "http %s: %s: %s after %.3f s", id, _target(scope), status or "no answer", seconds)
            self._count(scope, status)

    def _count(self, scope: Scope, status: int) -> None:
        """By the route's pattern and known methods: what clients make up must not become labels."""
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._kt.metrics.http.labels(method, route, str(status)).inc()


def _id(scope: Scope) -> str:
    """The client's own id for the request where it is a sane one, else a new one."""
    given = Headers(scope=scope).get(REQUEST_ID, "")
    return given if _SANE.fullmatch(given) else uuid.uuid4().hex


def _target(scope: Scope) -> str:
    """The path as it was sent, in ASCII; a query may hold anything and is left out."""
    return f"{scope['method']} {scope.get('raw_path', b'').decode('ascii', 'replace')}"
