"""The web application: routes, the API key, and errors in one shape."""

import hmac
import logging
from typing import cast

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kt_core.errors import KTError
from kt_core.server import anthropic, errors, health, models, ollama, ollama_models, openai, responses, slots, tokens
from kt_core.server.state import State

log = logging.getLogger(__name__)


def build_app(state: State) -> FastAPI:
    """The application over `state`, whose engine may come later: until then the routes answer 503."""
    app = FastAPI(title="kt", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.kt = state
    app.include_router(health.router)
    for dialect in (models, openai, responses, anthropic, ollama, ollama_models, tokens, slots):
        app.include_router(dialect.router, dependencies=[Depends(_check_key)])
    app.add_exception_handler(KTError, _known)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(ClientDisconnect, _left)
    app.add_middleware(_Unexpected)
    return app


async def _check_key(request: Request) -> None:
    """Raises Unauthorized. The comparison takes the same time wherever the keys differ."""
    key = request.app.state.kt.api_key
    if not key:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        given = request.headers.get("x-api-key", "")  # Anthropic's clients
    # Headers are read as latin-1, so this gives back the bytes that were sent.
    if not hmac.compare_digest(given.strip().encode("latin-1"), key.encode()):
        raise errors.Unauthorized("server.unauthorized")


async def _known(request: Request, error: Exception) -> JSONResponse:
    return _in_dialect(request.url.path, errors.response(cast(KTError, error)))


async def _refused(request: Request, error: Exception) -> JSONResponse:
    refusal = cast(HTTPException, error)
    what = f"{request.method} {request.url.path}: {refusal.detail}"
    return _in_dialect(request.url.path, errors.http_response(refusal.status_code, what, dict(refusal.headers or {})))


def _in_dialect(path: str, response: JSONResponse) -> JSONResponse:
    """An error as the clients of this path expect it."""
    if path.startswith(anthropic.PATH):
        return anthropic.error_response(response)
    return ollama.error_response(response) if path.startswith(ollama.PATH) else response


async def _left(request: Request, error: Exception) -> Response:
    """The client went away while it was still sending; nobody reads this."""
    return Response(status_code=400)


class _Unexpected:
    """Answers for whatever the routes raise besides, inside of Starlette, which would raise it again behind its answer:
    the server would then close the connection under a client that may use it for its next request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as error:
            if begun:  # a part of an answer is no answer: only an early end tells the client so
                raise
            log.exception("%s %s", scope.get("method"), scope.get("path"))
            answer = errors.response(KTError("server.internal", reason=type(error).__name__))
            await _in_dialect(scope["path"], answer)(scope, receive, send)
