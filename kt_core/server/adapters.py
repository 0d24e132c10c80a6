"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, in vLLM's words: adapters come and go while others are served."""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from fastapi import APIRouter, Request
from pydantic import Field

from kt_core.errors import BadData, Unsupported, UsageError
from kt_core.server import bodies
from kt_core.server.errors import Forbidden
from kt_core.server.state import State

router = APIRouter()

_HARMLESS = {"lora_int_id": "numbers are the server's own", "load_inplace": "drop the name first"}
NAME = r"[A-Za-z0-9._-]{1,64}"


class Load(bodies.Body):
    """`lora_path` is taken from the folder that the server allows."""

    lora_name: str = Field(pattern=rf"^{NAME}$")
    lora_path: str = Field(min_length=1, max_length=4096)
    harmless: ClassVar[Mapping[str, str]] = _HARMLESS


class Unload(bodies.Body):
    lora_name: str = Field(min_length=1, max_length=64)
    harmless: ClassVar[Mapping[str, str]] = _HARMLESS


@router.post("/v1/load_lora_adapter")
async def load(request: Request) -> dict[str, Any]:
    """Raises Forbidden where the server allows none, or not that folder."""
    state: State = request.app.state.kt
    engine = state.ready()
    fields = await bodies.parsed(request, Load)
    if fields.lora_name == state.model:
        raise UsageError("lora.taken", field="lora_name", name=fields.lora_name)
    folder = _inside(state, fields.lora_path)
    try:
        taken = await asyncio.to_thread(engine.adapters.load, fields.lora_name, folder)
    except (BadData, Unsupported) as error:  # the client's choice, and no fault of the server
        raise UsageError(error.key, **{"field": "lora_path", **error.args_}) from error
    return {"id": f"{state.model}:{taken.name}", "object": "model", "bytes": taken.nbytes}


@router.post("/v1/unload_lora_adapter")
async def unload(request: Request) -> dict[str, Any]:
    """Raises NotFound. Requests that take it already go on with it."""
    state: State = request.app.state.kt
    engine = state.ready()
    fields = await bodies.parsed(request, Unload)
    if not state.lora_folder:
        raise Forbidden("lora.closed")
    await asyncio.to_thread(engine.adapters.drop, re.sub(f"^{re.escape(state.model)}:", "", fields.lora_name))
    return {"id": fields.lora_name, "object": "model", "deleted": True}


def _inside(state: State, path: str) -> Path:
    """The folder that a client named, links followed. Nothing outside the allowed one is looked at."""
    if not state.lora_folder:
        raise Forbidden("lora.closed")
    root = Path(state.lora_folder).resolve()
    try:
        folder = (root / path).resolve()
    except (OSError, ValueError, RuntimeError):
        raise Forbidden("lora.outside", path=path) from None
    if root != folder and root not in folder.parents:
        raise Forbidden("lora.outside", path=path)
    return folder
