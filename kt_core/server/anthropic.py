"""Anthropic's dialect: POST /v1/messages, whole and streamed, and /v1/messages/count_tokens."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from kt_core.engine.stream import Stream
from kt_core.errors import KTError
from kt_core.server import attachments, bodies, errors
from kt_core.server.anthropic_fields import Messages, Prompt
from kt_core.server.parsers import Call, Event, Reasoning
from kt_core.server.replies import EventList, Replies, start, streamed, styled, whole
from kt_core.server.state import State
from kt_core.server.streaming import EventStream, cancelled_on_disconnect, named
from kt_core.types import Chunk, Usage

router = APIRouter()

PATH = "/v1/messages"
_PING = 'event: ping\ndata: {"type":"ping"}\n\n'
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


@router.post(PATH)
async def messages(request: Request) -> Response:
    """Whatever can be refused is refused here, before the first byte of an answer."""
    state: State = request.app.state.kt
    engine = state.ready()
    fields = await bodies.parsed(request, Messages)
    adapter = bodies.adapter_of(state, fields.model)
    known = engine.template_arguments()
    chat = fields.whole_chat(known)
    id = f"msg_{uuid.uuid4().hex}"
    generation = replace(chat.request(id, known), adapter=adapter)
    stream, replies = await start(state, generation, chat.parallel_tool_calls is not False)
    head = {"id": id, "type": "message", "role": "assistant", "model": fields.model or state.model}
    if fields.stream:
        return EventStream(stream, _events(stream, head, replies), frame=named, end="", ping=_PING)
    async with cancelled_on_disconnect(request.receive, stream):
        return await _whole(stream, head, replies)


@router.post(f"{PATH}/count_tokens")
async def count_tokens(request: Request) -> dict[str, int]:
    """The tokens that a request's prompt would have."""
    state: State = request.app.state.kt
    engine = state.ready()
    fields = await bodies.parsed(request, Prompt)
    bodies.adapter_of(state, fields.model)
    known = engine.template_arguments()
    generation = styled(fields.chat(known).request("", known), state.style())
    generation = await attachments.fetched(generation, state.media_hosts)
    ids, _ = await asyncio.to_thread(engine.prompt, generation)
    return {"input_tokens": len(ids)}


def error_response(response: JSONResponse) -> JSONResponse:
    """The dialect's form of an error that is in OpenAI's."""
    error = json.loads(bytes(response.body))["error"]
    body = _error(error, response.status_code)
    return JSONResponse(body, response.status_code, errors.passed_on(response))


def _error(error: dict[str, Any], status: int) -> dict[str, Any]:
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {**error, "type": kind}}


async def _whole(stream: Stream, head: dict[str, Any], replies: Replies) -> Response:
    answer = await whole(stream)
    events = [event for chunk in answer for event in replies.events(chunk)]
    ending = {**_ending(answer[-1], replies), "usage": _usage(answer[-1].usage)}
    return JSONResponse({**head, "content": _blocks(events), **ending})


def _blocks(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Pieces of one kind that follow one another are one block."""
    blocks: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event, Call):
            blocks.append({**_opening(event), "input": json.loads(event.arguments)})
            continue
        opening = _opening(event)
        if not blocks or blocks[-1]["type"] != opening["type"]:
            blocks.append(opening)
        blocks[-1][opening["type"]] += event.text
    return blocks


def _opening(event: Event) -> dict[str, Any]:
    """A block before anything is in it."""
    if isinstance(event, Call):
        return {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
    return (
        {"type": "thinking", "thinking": "", "signature": ""}
        if isinstance(event, Reasoning)
        else {"type": "text", "text": ""}
    )


def _ending(chunk: Chunk, replies: Replies) -> dict[str, Any]:
    reason = _REASONS.get(replies.finish_reason(chunk) or "")
    if chunk.stopped is not None and reason == "end_turn":
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": chunk.stopped}


def _usage(usage: Usage | None) -> dict[str, int]:
    """Tokens that were read from a cache do not count as input here."""
    usage = usage or Usage(0, 0)
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


async def _events(stream: Stream, head: dict[str, Any], replies: Replies) -> AsyncIterator[dict[str, Any] | None]:
    """The stream's events; after an error event nothing follows."""
    usage = _usage(Usage(len(stream.prompt), 0))
    yield {
        "type": "message_start",
        "message": {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage},
    }
    blocks = _OpenBlocks()

    def add(chunk: Chunk) -> EventList:
        sent = [piece for event in replies.events(chunk) for piece in blocks.add(event)]
        if not chunk.finish_reason:
            return sent
        delta = {"type": "message_delta", "delta": _ending(chunk, replies), "usage": _usage(chunk.usage)}
        return [*sent, *blocks.close(), delta, {"type": "message_stop"}]

    async for event in streamed(stream, add, lambda error: [_failed(error)]):
        yield event


def _failed(error: KTError) -> dict[str, Any]:
    response = errors.response(error)
    return _error(json.loads(bytes(response.body))["error"], response.status_code)


class _OpenBlocks:
    """Content blocks as events of a stream: each is opened, added to, and closed before the next one."""

    def __init__(self) -> None:
        self._index = -1
        self._kind = ""  # of the open block

    def add(self, event: Event) -> list[dict[str, Any]]:
        opening = _opening(event)
        kind, opened = opening["type"], []
        if kind != self._kind or isinstance(event, Call):
            opened = self.close()
            self._index, self._kind = self._index + 1, kind
            opened.append({"type": "content_block_start", "index": self._index, "content_block": opening})
        if isinstance(event, Call):
            delta = {"type": "input_json_delta", "partial_json": event.arguments}
        else:
            delta = {"type": f"{kind}_delta", kind: event.text}
        return [*opened, {"type": "content_block_delta", "index": self._index, "delta": delta}]

    def close(self) -> list[dict[str, Any]]:
        kind, self._kind = self._kind, ""
        return [{"type": "content_block_stop", "index": self._index}] if kind else []
