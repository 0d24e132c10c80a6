"""GET /v1/models: the one model that this server serves; answers while it loads."""

from typing import Any

from fastapi import APIRouter, Request

from kt_core.errors import NotFound
from kt_core.server.state import State

router = APIRouter()


def _model(state: State) -> dict[str, Any]:
    model = {"id": state.model, "object": "model", "created": state.created, "owned_by": "kt"}
    return {**model, "context_length": state.engine.state()["context"]} if state.engine else model


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    return {"object": "list", "data": [_model(request.app.state.kt)]}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    state: State = request.app.state.kt
    if name != state.model:
        raise NotFound("server.model_not_found", field="model", model=name, served=state.model)
    return _model(state)
