"""GET /metrics: the server's figures in Prometheus' text format; answers while the model loads."""

from fastapi import APIRouter, Request
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import Response

from kt_core.server.state import State

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    state: State = request.app.state.kt
    return Response(generate_latest(state.metrics.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)
