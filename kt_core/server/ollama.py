"""Ollama's dialect: POST /api/chat and /api/generate, as lines of JSON or whole."""

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from kt_core.engine.stream import Stream
from kt_core.server import bodies, errors
from kt_core.server.ollama_fields import Generate, OllamaChat
from kt_core.server.openai_shapes import logprob_entries
from kt_core.server.parsers import Call, Event, Reasoning
from kt_core.server.replies import EventList, Replies, start, streamed, whole
from kt_core.server.state import State
from kt_core.server.streaming import EventStream, cancelled_on_disconnect, compact
from kt_core.types import Chunk, Timings, TokenLogprob, Usage

router = APIRouter()

PATH = "/api/"
LINES = "application/x-ndjson"
Shape = Callable[[str, str, list[dict[str, Any]]], dict[str, Any]]  # of text, thinking and calls


@router.post("/api/chat")
async def chat(request: Request) -> Response:
    return await _answer(request, OllamaChat, _message)


@router.post("/api/generate")
async def generate(request: Request) -> Response:
    return await _answer(request, Generate, _response)


def adapter_of(state: State, name: str | None) -> str | None:
    """As bodies.adapter_of; Ollama's clients put a tag behind a name that has none."""
    return bodies.adapter_of(state, name if name == state.model or name is None else name.removesuffix(":latest"))


def now() -> str:
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")


def error_response(response: JSONResponse) -> JSONResponse:
    """The dialect's form of an error that is in OpenAI's."""
    error = json.loads(bytes(response.body))["error"]
    return JSONResponse({"error": error["message"]}, response.status_code, errors.passed_on(response))


async def _answer(request: Request, kind: type[OllamaChat] | type[Generate], shape: Shape) -> Response:
    """Whatever can be refused is refused here, before the first byte of an answer."""
    state: State = request.app.state.kt
    engine = state.ready()
    fields = await bodies.parsed(request, kind)
    adapter = adapter_of(state, fields.model)
    head = {"model": fields.model or state.model}
    if fields.loads_only:
        return JSONResponse({**head, "created_at": now(), **shape("", "", []), "done": True, "done_reason": "load"})
    generation = fields.request(f"ollama-{uuid.uuid4().hex}", engine.template_arguments(), state.style())
    stream, replies = await start(state, replace(generation, adapter=adapter))
    answer = _Answer(head, replies, shape, engine.token_text)
    if fields.streamed:
        ping = _line({**head, "created_at": now(), **shape("", "", []), "done": False})
        lines = streamed(stream, answer.lines, lambda error: [{"error": str(error)}])
        return EventStream(stream, lines, frame=_line, end="", ping=ping, media_type=LINES)
    async with cancelled_on_disconnect(request.receive, stream):
        return await _whole(stream, answer)


def _line(event: dict[str, Any]) -> str:
    return f"{compact(event)}\n"


async def _whole(stream: Stream, answer: "_Answer") -> Response:
    found = await whole(stream)
    events = [event for chunk in found for event in answer.replies.events(chunk)]
    logprobs = [entry for chunk in found for entry in chunk.logprobs]
    return JSONResponse({**answer.piece(events, logprobs), **answer.ending(found[-1])})


class _Answer:
    """One answer in the words of this dialect."""

    def __init__(self, head: dict[str, Any], replies: Replies, shape: Shape, token_text: Callable[[int], str]) -> None:
        self.replies = replies
        self._head = head
        self._shape = shape
        self._token_text = token_text

    def lines(self, chunk: Chunk) -> EventList:
        """A line where the chunk brings something, and the last one with the figures."""
        events = self.replies.events(chunk)
        found = [self.piece(events, chunk.logprobs)] if events or chunk.logprobs else []
        return [*found, {**self.piece([], ()), **self.ending(chunk)}] if chunk.finish_reason else found

    def piece(self, events: Sequence[Event], logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        text = thinking = ""
        calls = []
        for event in events:
            if isinstance(event, Call):
                function = {"name": event.name, "arguments": json.loads(event.arguments)}
                calls.append({"id": event.id, "function": function})
            elif isinstance(event, Reasoning):
                thinking += event.text
            else:
                text += event.text
        entries = {"logprobs": logprob_entries(logprobs, self._token_text)} if logprobs else {}
        return {**self._head, "created_at": now(), **self._shape(text, thinking, calls), **entries, "done": False}

    def ending(self, chunk: Chunk) -> dict[str, Any]:
        """Durations are in nanoseconds."""
        usage, timings = chunk.usage or Usage(0, 0), chunk.timings or Timings()
        return {
            "done": True,
            "done_reason": chunk.finish_reason,
            "total_duration": int((timings.queued + timings.prefill + timings.decode) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": int(timings.prefill * 1e9),
            "eval_count": usage.completion_tokens,
            "eval_duration": int(timings.decode * 1e9),
        }


def _message(text: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"message": {**message, **_beside(thinking, calls)}}


def _response(text: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {"response": text, **_beside(thinking, calls)}


def _beside(thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {**({"thinking": thinking} if thinking else {}), **({"tool_calls": calls} if calls else {})}
