"""The answer to one request as text, reasoning and calls: what every chat dialect writes down in its own way."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kt_core.engine.prompt import chat_text, decode, prompt_end
from kt_core.engine.stream import Closed, Observer, Stream
from kt_core.errors import KTError, UsageError
from kt_core.server import attachments, grammars
from kt_core.server.outer import HTTP_ID
from kt_core.server.parsers import Call, Event, Parser, Style, Text
from kt_core.server.state import State
from kt_core.server.streaming import chunks
from kt_core.types import Chunk, Request

if TYPE_CHECKING:  # it imports torch
    from kt_core.engine.engine import Engine

log = logging.getLogger(__name__)

EventList = list[dict[str, Any]]

_END = 256  # characters of a prompt's end


def styled(request: Request, style: Style) -> Request:
    """A chat request as the model's style needs it: earlier answers as its template takes them, marks kept in the text."""
    parser = style.parser(request.tools)
    messages = tuple(
        style.history(message) if message["role"] == "assistant" else message for message in request.messages or ()
    )
    return replace(request, messages=messages, marks=parser.marks if parser else ())


async def start(state: State, request: Request, parallel: bool = True) -> tuple[Stream, "Replies"]:
    """Submit a request; in a thread, because tokenizing a long prompt and unpacking images take a while.

    Raises what Engine.submit raises, and UsageError for a form or a call that no grammar can ask for. The prompt goes into
    the log where the settings ask for it, and nowhere else.
    """
    engine, style = state.ready(), Style()
    if request.messages is not None:
        style = state.style()
        request = styled(request, style)
        last = style.calls.last if style.calls and not request.ignore_eos else ()
        known = engine.tokenizer.get_added_vocab() if last else {}
        request = replace(request, stop_tokens=(*request.stop_tokens, *(known[end] for end in last if end in known)))
    request = await attachments.fetched(request, state.media_hosts)
    stream = await asyncio.to_thread(_submit, engine, request, style, parallel, state.metrics.observe)
    log.info("request %s: for http %s", request.id, HTTP_ID.get())
    if state.log_prompts:
        text = await asyncio.to_thread(decode, engine.tokenizer, stream.prompt)
        log.info("request %s: the prompt is %r", request.id, text)
    replies = Replies(style, request, prompt_end(engine.tokenizer, stream.prompt), parallel)
    if request.echo:
        replies.echo = request.text or decode(engine.tokenizer, stream.prompt)
    return stream, replies


def _submit(engine: "Engine", request: Request, style: Style, parallel: bool, observe: Observer) -> Stream:
    if not grammars.wanted(request):
        return engine.submit(request, observe)
    # What the template writes last says whether reasoning has begun.
    end = "" if request.messages is None else chat_text(engine.tokenizer, request)[-_END:]
    field = request.format.field if request.format else "tools"
    try:
        grammar = grammars.grammar_of(request, style, engine.special_tokens, end, parallel)
        return engine.submit(replace(request, grammar=grammar), observe)
    except RecursionError:
        raise UsageError("engine.grammar", reason="nested too deep", field=field) from None
    except UsageError as error:
        if error.key != "engine.grammar":
            raise
        raise UsageError(error.key, **{"field": field, **error.args_}) from None


def _failure(stream: Stream, chunk: Chunk) -> KTError | None:
    """The error that a last chunk stands for. Only a shutdown cancels an answer that somebody still reads."""
    if chunk.finish_reason == "error":
        return stream.error or KTError("server.internal", reason="-")
    return Closed("engine.closed") if chunk.finish_reason == "cancelled" else None


async def whole(stream: Stream) -> list[Chunk]:
    """All chunks of an answer, once it has ended. Raises the error that ended it."""
    found = []
    async for chunk in chunks(stream):
        if chunk is None:
            continue
        if error := _failure(stream, chunk):
            raise error
        found.append(chunk)
    return found


async def streamed(
    stream: Stream, add: Callable[[Chunk], EventList], fail: Callable[[KTError], EventList]
) -> AsyncIterator[dict[str, Any] | None]:
    """The events that `add` makes of each chunk, None where there is none yet; those of `fail` are the last ones."""
    async for chunk in chunks(stream):
        error = _failure(stream, chunk) if chunk else None
        events = fail(error) if error else add(chunk) if chunk else []
        for event in events or (None,):
            yield event
        if error:
            return


class Replies:
    """The choices of one request.

    `prompt_end` is the text that the prompt ends with. With `parallel` false, a choice has one call at most.
    """

    def __init__(self, style: Style, request: Request, prompt_end: str, parallel: bool = True) -> None:
        self._style = style
        self._request = request
        self._prompt_end = prompt_end
        self._parallel = parallel
        self._parsers: dict[int, Parser | None] = {}
        self._calls: dict[int, int] = {}
        self.echo = ""  # what each choice's text begins with

    def events(self, chunk: Chunk) -> list[Event]:
        """What the chunk adds to its choice."""
        parser = self._parser(chunk.choice)
        if parser is None:
            return [Text(chunk.text)] if chunk.text else []
        events = parser.push(chunk.text)
        if chunk.finish_reason:
            events += parser.finish()
        return [event for event in events if not isinstance(event, Call) or self._counted(chunk.choice)]

    def finish_reason(self, chunk: Chunk) -> str | None:
        """The chunk's own, or "tool_calls" where a choice that came to its end has made some."""
        called = self._calls.get(chunk.choice) and chunk.finish_reason == "stop"
        return "tool_calls" if called else chunk.finish_reason

    def _counted(self, choice: int) -> bool:
        self._calls[choice] = self._calls.get(choice, 0) + 1
        return self._parallel or self._calls[choice] == 1

    def _parser(self, choice: int) -> Parser | None:
        if choice not in self._parsers:
            self._parsers[choice] = parser = self._style.parser(self._request.tools)
            if parser:
                parser.begin(self._prompt_end, self._request.continued)
        return self._parsers[choice]
