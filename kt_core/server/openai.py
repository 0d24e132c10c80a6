"""OpenAI's dialect: POST /v1/chat/completions and /v1/completions, whole and streamed."""

import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from kt_core.engine.stream import Stream
from kt_core.server import bodies, errors
from kt_core.server.openai_fields import Chat, Completion, Fields
from kt_core.server.openai_shapes import ChatShape, CompletionShape, Shape, prompt_progress, timings, usage
from kt_core.server.replies import EventList, start, streamed, whole
from kt_core.server.state import State
from kt_core.server.streaming import EventStream, cancelled_on_disconnect
from kt_core.types import Chunk

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat(request: Request) -> Response:
    return await _answer(request, Chat, ChatShape)


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    return await _answer(request, Completion, CompletionShape)


async def _answer(request: Request, kind: type[Chat] | type[Completion], shape_of: type[Shape]) -> Response:
    """Whatever can be refused is refused here, with its status, before the first byte of an answer."""
    state: State = request.app.state.kt
    engine = state.ready()
    fields = await bodies.parsed(request, kind)
    adapter = bodies.adapter_of(state, fields.model)
    id = f"{shape_of.prefix}-{uuid.uuid4().hex}"
    parallel = not isinstance(fields, Chat) or fields.parallel_tool_calls is not False
    generation = replace(fields.request(id, engine.template_arguments()), adapter=adapter)
    stream, replies = await start(state, generation, parallel)
    head = {"id": id, "created": int(time.time()), "model": fields.model or state.model}
    shape = shape_of(head, engine.token_text, replies)
    if fields.stream:
        return EventStream(stream, _events(stream, shape, fields))
    async with cancelled_on_disconnect(request.receive, stream):
        return await _whole(stream, shape)


async def _whole(stream: Stream, shape: Shape) -> Response:
    parts: dict[int, list[Chunk]] = {}
    for chunk in await whole(stream):
        parts.setdefault(chunk.choice, []).append(chunk)
    last = [choice[-1] for choice in parts.values()]
    choices = [shape.whole(choice) for choice in parts.values()]
    return JSONResponse({**shape.head(), "choices": choices, "usage": usage(last), "timings": timings(last)})


async def _events(stream: Stream, shape: Shape, fields: Fields) -> AsyncIterator[dict[str, Any] | None]:
    """The stream's events; after an error event nothing follows."""
    head = shape.head(streamed=True)
    if fields.usage_wanted:
        head["usage"] = None
    last = []

    def add(chunk: Chunk) -> EventList:
        if chunk.computed is not None:
            return [{**head, "choices": [], "prompt_progress": prompt_progress(chunk)}]
        if chunk.finish_reason:
            last.append(chunk)
        return [
            {**head, "choices": [choice], **({"timings": timings([chunk])} if choice["finish_reason"] else {})}
            for choice in shape.pieces(chunk)  # a call goes out when it is whole, which may take a while
        ]

    event: dict[str, Any] | None = None
    async for event in streamed(stream, add, lambda error: [errors.body(error)]):
        yield event
    if fields.usage_wanted and not (event and "error" in event):
        yield {**head, "choices": [], "usage": usage(last)}
