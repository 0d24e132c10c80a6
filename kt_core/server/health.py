"""GET /health: open to everybody, 503 until the model answers."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

router = APIRouter()


@router.get("/health")
async def health(request: Request) -> JSONResponse:
    state = request.app.state.kt
    if state.engine is None:
        loading = {"status": "loading", "stage": state.stage, "done": state.done, "total": state.total}
        return JSONResponse(loading, 503)
    engine = state.engine.state()
    if not engine.pop("alive"):
        return JSONResponse({"status": "stopped"}, 503)
    return JSONResponse({"status": "ok", "model": state.model, **engine})
