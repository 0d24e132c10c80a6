"""The web application: routes, the API key, and errors in one shape."""

import hmac
import ipaddress
import socket
from typing import cast
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from kt_core.errors import KTError
from kt_core.server import (
    adapters,
    anthropic,
    errors,
    health,
    info,
    metrics,
    models,
    ollama,
    ollama_models,
    openai,
    openapi,
    outer,
    page,
    responses,
    slots,
    tokens,
)
from kt_core.server.state import State

# Every route of these asks for the API key, where there is one.
KEYED = (models, adapters, openai, responses, anthropic, ollama, ollama_models, tokens, slots, metrics, info, openapi)


def build_app(state: State) -> FastAPI:
    """The application over `state`, whose engine may come later: until then the routes answer 503."""
    app = FastAPI(title="kt", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.kt = state
    app.include_router(health.router)
    app.include_router(page.router)
    for routes in KEYED:
        app.include_router(routes.router, dependencies=[Depends(_check_key)])
    app.add_exception_handler(KTError, _known)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(ClientDisconnect, _left)
    if state.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=state.cors,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[outer.REQUEST_ID, outer.IGNORED, "Retry-After"],
        )
    app.add_middleware(outer.Outer, state=state, dialect=_in_dialect)
    return app


async def _check_key(request: Request) -> None:
    """Raises Unauthorized, and Forbidden where there is no key to ask for. Comparing takes the same time wherever the keys differ, and whichever is the right one."""
    state: State = request.app.state.kt
    keys = state.api_keys
    if not keys:
        _check_host(request.url.hostname or "", state)
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        given = request.headers.get("x-api-key", "")  # Anthropic's clients
    # Headers are read as latin-1, so this gives back the bytes that were sent.
    sent = given.strip().encode("latin-1")
    if not sum(hmac.compare_digest(sent, key.encode()) for key in keys):
        raise errors.Unauthorized("server.unauthorized")


def _check_host(host: str, state: State) -> None:
    """Raises Forbidden. A page whose name is made to point at this machine is of the server's own origin for a browser,
    but the browser still sends the page's name. Addresses and local names cannot be made to point elsewhere.
    """
    allowed = {urlsplit(origin).hostname for origin in state.cors} | {"localhost", socket.gethostname().lower(), ""}
    if not state.local or host in allowed or "*" in state.cors or host.endswith((".localhost", ".local", ".internal")):
        return
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise errors.Forbidden("server.unknown_host", host=host) from None


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
