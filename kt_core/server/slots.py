"""GET /slots: what runs and waits, and the cache. POST /flush_cache: forget cached prefixes."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request

router = APIRouter()


@router.get("/slots")
async def slots(request: Request) -> dict[str, Any]:
    found: dict[str, Any] = request.app.state.kt.ready().slots()
    return found


@router.post("/flush_cache")
async def flush_cache(request: Request) -> dict[str, int]:
    """Takes effect between two steps; requests that run keep their pages."""
    return {"flushed_pages": await asyncio.to_thread(request.app.state.kt.ready().flush_cache)}
