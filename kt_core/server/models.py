"""GET /v1/models: the model that this server serves, and it with each adapter; answers while it loads."""

from typing import Any

from fastapi import APIRouter, Request

from kt_core.errors import NotFound
from kt_core.server.state import State

router = APIRouter()


def _model(state: State, name: str) -> dict[str, Any]:
    model = {"id": name, "object": "model", "created": state.created, "owned_by": "kt"}
    if name != state.model:
        model |= {"parent": state.model}
    if state.engine is None:
        return model
    kinds = ["text", "image"] if state.engine.sees else ["text"]
    return {**model, "context_length": state.engine.state()["context"], "input_modalities": kinds}


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    state: State = request.app.state.kt
    return {"object": "list", "data": [_model(state, name) for name in state.served()]}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    state: State = request.app.state.kt
    if name not in state.served():
        raise NotFound("server.model_not_found", field="model", model=name, served=", ".join(state.served()))
    return _model(state, name)
