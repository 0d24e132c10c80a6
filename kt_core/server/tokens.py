"""POST /tokenize, /detokenize and /apply-template: what a prompt becomes, without an answer to it."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field, StrictBool

from kt_core.engine import prompt
from kt_core.errors import UsageError
from kt_core.server import attachments, bodies
from kt_core.server.openai_fields import Chat, Whole
from kt_core.server.replies import styled
from kt_core.server.state import State
from kt_core.types import Request as Generation

router = APIRouter()


class Source(bodies.Body):
    """A text, by either name that servers have for it. Chat messages have their own fields, which Chat reads."""

    content: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    add_special: StrictBool = True
    add_special_tokens: StrictBool = True  # its other name
    with_pieces: StrictBool = False


class Tokens(bodies.Body):
    tokens: list[Whole] = Field(max_length=10**7)


@router.post("/tokenize")
async def tokenize(request: Request) -> dict[str, Any]:
    """The ids of a text, or of chat messages as /v1/chat/completions would render them."""
    state: State = request.app.state.kt
    engine = state.ready()
    body = await bodies.read(request)
    source = bodies.parse(Source, body)
    text = source.content if source.prompt is None else source.prompt
    if (text is None) == (source.messages is None):
        raise UsageError("server.field", field="content", reason="give one of content (or prompt) and messages")
    if text is None:
        generation = await attachments.fetched(_generation(state, body), state.media_hosts)
        ids, _ = await asyncio.to_thread(engine.prompt, generation)
    else:
        special = source.add_special and source.add_special_tokens
        ids = await asyncio.to_thread(prompt.encode, engine.tokenizer, text, special)
    answer = {"tokens": ids, "count": len(ids), "max_model_len": engine.state()["context"]}
    if source.with_pieces:
        answer["tokens"] = [{"id": id, "piece": engine.token_text(id)} for id in ids]
    return answer


@router.post("/detokenize")
async def detokenize(request: Request) -> dict[str, Any]:
    """The text of token ids, special ones included, by both names that clients look for."""
    state: State = request.app.state.kt
    engine = state.ready()
    tokens = (await bodies.parsed(request, Tokens)).tokens
    last = len(engine.tokenizer) - 1
    for token in tokens:
        if not 0 <= token <= last:
            raise UsageError("engine.unknown_token", token=token, last=last)
    text = await asyncio.to_thread(prompt.decode, engine.tokenizer, tokens)
    return {"content": text, "prompt": text}


@router.post("/apply-template")
async def apply_template(request: Request) -> dict[str, Any]:
    """The prompt that a chat request would have."""
    state: State = request.app.state.kt
    generation = _generation(state, await bodies.read(request))
    return {"prompt": await asyncio.to_thread(prompt.chat_text, state.ready().tokenizer, generation)}


def _generation(state: State, body: bytes) -> Generation:
    fields = bodies.parse(Chat, body)
    bodies.adapter_of(state, fields.model)
    return styled(fields.request("", state.ready().template_arguments()), state.style())
