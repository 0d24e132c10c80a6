"""OpenAI's responses dialect: POST /v1/responses, whole and streamed. Stateless: clients send the whole conversation."""

import copy
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from kt_core.engine.stream import Stream
from kt_core.errors import KTError
from kt_core.server import bodies
from kt_core.server.openai_shapes import logprob_entries
from kt_core.server.parsers import Call, Event, Reasoning
from kt_core.server.parsers import Text as Said
from kt_core.server.replies import EventList, Replies, start, streamed, whole
from kt_core.server.responses_fields import Responses
from kt_core.server.state import State
from kt_core.server.streaming import EventStream, cancelled_on_disconnect, named
from kt_core.types import Chunk, TokenLogprob, Usage

router = APIRouter()

_TYPES: dict[type[Event], str] = {Said: "message", Reasoning: "reasoning", Call: "function_call"}


@router.post("/v1/responses")
async def responses(request: Request) -> Response:
    """Whatever can be refused is refused here, before the first byte of an answer."""
    state: State = request.app.state.kt
    engine = state.ready()
    fields = await bodies.parsed(request, Responses)
    adapter = bodies.adapter_of(state, fields.model)
    chat = fields.chat()
    id = f"resp_{uuid.uuid4().hex}"
    generation = replace(chat.request(id, engine.template_arguments()), adapter=adapter)
    stream, replies = await start(state, generation, chat.parallel_tool_calls is not False)
    answer = _Answer(_head(fields, id, fields.model or state.model), replies, engine.token_text)
    if fields.stream:
        return EventStream(stream, _events(stream, answer), frame=named, end="")
    async with cancelled_on_disconnect(request.receive, stream):
        return await _whole(stream, answer)


def _head(fields: Responses, id: str, model: str) -> dict[str, Any]:
    """The response before anything is in it."""
    effort = fields.reasoning.effort if fields.reasoning else None
    return {
        "id": id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "metadata": fields.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": effort, "summary": None},
        "store": False,
        "temperature": 1.0 if fields.temperature is None else fields.temperature,
        "text": {"format": fields.text.format.model_dump() if fields.text else {"type": "text"}},
        "tool_choice": fields.model_dump()["tool_choice"] or "auto",
        "tools": [tool.model_dump() for tool in fields.tools or ()],
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": 1.0 if fields.top_p is None else fields.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": fields.user,
    }


async def _whole(stream: Stream, answer: "_Answer") -> Response:
    for chunk in await whole(stream):
        answer.add(chunk)
    return JSONResponse(answer.response)


async def _events(stream: Stream, answer: "_Answer") -> AsyncIterator[dict[str, Any] | None]:
    """The stream's events, numbered."""
    numbers = itertools.count()
    for event in answer.begin():
        yield {**event, "sequence_number": next(numbers)}
    async for found in streamed(stream, answer.add, answer.fail):
        yield None if found is None else {**found, "sequence_number": next(numbers)}


class _Answer:
    """The response as it grows, and the events by which it does."""

    def __init__(self, head: dict[str, Any], replies: Replies, token_text: Callable[[int], str]) -> None:
        self.response = head
        self._replies = replies
        self._token_text = token_text
        self._reasoning_tokens = 0

    def begin(self) -> EventList:
        return [self._now("response.created"), self._now("response.in_progress")]

    def add(self, chunk: Chunk) -> EventList:
        """What the chunk adds. The last one ends the response."""
        events = self._replies.events(chunk)
        if any(isinstance(event, Reasoning) for event in events):
            self._reasoning_tokens += len(chunk.tokens)
        logprobs = chunk.logprobs
        sent: EventList = []
        for event in events:
            sent += self._added(event, logprobs)
            logprobs = () if isinstance(event, Said) else logprobs  # each token's goes out once
        return [*sent, *self._ended(chunk)] if chunk.finish_reason else sent

    def fail(self, error: KTError) -> EventList:
        if item := self._open:
            item["status"] = "incomplete"
        self.response |= {"status": "failed", "error": {"code": "server_error", "message": str(error)}}
        return [self._now("response.failed")]

    def _now(self, kind: str) -> dict[str, Any]:
        return {"type": kind, "response": {**self.response, "output": [*self.response["output"]]}}

    @property
    def _open(self) -> dict[str, Any] | None:
        """The item that is being written."""
        output = self.response["output"]
        return output[-1] if output and output[-1]["status"] == "in_progress" else None

    def _added(self, event: Event, logprobs: Sequence[TokenLogprob]) -> EventList:
        opened = []
        if self._open is None or isinstance(event, Call) or self._open["type"] != _TYPES[type(event)]:
            opened = [*self._close(), *self._begin_item(event)]
        item, index = self.response["output"][-1], len(self.response["output"]) - 1
        where = {"item_id": item["id"], "output_index": index}
        if isinstance(event, Call):
            item["arguments"] = event.arguments
            return [*opened, {"type": "response.function_call_arguments.delta", **where, "delta": event.arguments}]
        part = item["content"][0]
        part["text"] += event.text
        delta = {"type": f"response.{part['type']}.delta", **where, "content_index": 0, "delta": event.text}
        if isinstance(event, Said):
            delta["logprobs"] = entries = logprob_entries(logprobs, self._token_text)
            part["logprobs"] += entries
        return [*opened, delta]

    def _begin_item(self, event: Event) -> EventList:
        item = _opening(event)
        self.response["output"].append(item)
        index = len(self.response["output"]) - 1
        added = {"type": "response.output_item.added", "output_index": index, "item": {**item}}
        if isinstance(event, Call):
            return [added]
        part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
        if isinstance(event, Said):
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item["content"] = [part]
        where = {"item_id": item["id"], "output_index": index, "content_index": 0}
        return [added, {"type": "response.content_part.added", **where, "part": copy.deepcopy(part)}]

    def _close(self, status: str = "completed") -> EventList:
        """End the open item."""
        item, index = self._open, len(self.response["output"]) - 1
        if item is None:
            return []
        item["status"] = status
        where = {"item_id": item["id"], "output_index": index}
        done = {"type": "response.output_item.done", "output_index": index, "item": item}
        if item["type"] == "function_call":
            named = {"name": item["name"], "arguments": item["arguments"]}
            return [{"type": "response.function_call_arguments.done", **where, **named}, done]
        part, where = item["content"][0], {**where, "content_index": 0}
        text = {name: part[name] for name in ("text", "logprobs") if name in part}
        return [
            {"type": f"response.{part['type']}.done", **where, **text},
            {"type": "response.content_part.done", **where, "part": part},
            done,
        ]

    def _ended(self, chunk: Chunk) -> EventList:
        status = "incomplete" if self._replies.finish_reason(chunk) == "length" else "completed"
        closed = self._close(status)
        self.response |= {"status": status, "completed_at": int(time.time()), "usage": self._usage(chunk.usage)}
        if status == "incomplete":
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        return [*closed, self._now(f"response.{status}")]

    def _usage(self, usage: Usage | None) -> dict[str, Any]:
        usage = usage or Usage(0, 0)
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }


def _opening(event: Event) -> dict[str, Any]:
    """An item before anything is in it."""
    id = uuid.uuid4().hex
    if isinstance(event, Call):
        call = {"call_id": event.id, "name": event.name, "arguments": ""}
        return {"id": f"fc_{id}", "type": "function_call", "status": "in_progress", **call}
    if isinstance(event, Reasoning):
        return {"id": f"rs_{id}", "type": "reasoning", "status": "in_progress", "summary": [], "content": []}
    return {"id": f"msg_{id}", "type": "message", "status": "in_progress", "role": "assistant", "content": []}
