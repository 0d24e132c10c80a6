"""The engine's chunks in asyncio: awaited, ended when the client leaves, and sent as server-sent events."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import lru_cache
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kt_core.engine.stream import Stream
from kt_core.types import Chunk

# Silence after which a comment is sent, so that no proxy or client takes a long prefill for a dead connection.
PING_SECONDS = 10.0


class _Bell:
    """Wakes tasks of a loop from another thread: all that are to be woken meanwhile with one call, which is a write to a socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._waiting: list[asyncio.Event] = []

    def ring(self, news: asyncio.Event) -> None:
        with self._lock:
            self._waiting.append(news)
            first = len(self._waiting) == 1
        if first:
            with contextlib.suppress(RuntimeError):  # the loop was closed at shutdown; nobody listens any more
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for news in waiting:
            news.set()


_bell_of = lru_cache(maxsize=4)(_Bell)


async def chunks(stream: Stream) -> AsyncIterator[Chunk | None]:
    """The chunks as they come, and None now and then, four times in PING_SECONDS."""
    loop, news = asyncio.get_running_loop(), asyncio.Event()
    bell = _bell_of(loop)
    timer: asyncio.TimerHandle

    def tick() -> None:
        nonlocal timer
        news.set()
        timer = loop.call_later(PING_SECONDS / 4, tick)

    timer = loop.call_later(PING_SECONDS / 4, tick)
    stream.listen(lambda: bell.ring(news))
    try:
        while True:
            await news.wait()
            news.clear()
            ready, ended = stream.take()
            for chunk in ready:
                yield chunk
            if ended:
                return
            if not ready:
                yield None
    finally:
        timer.cancel()


@contextlib.asynccontextmanager
async def cancelled_on_disconnect(receive: Receive, stream: Stream) -> AsyncIterator[None]:
    """Within this block the request is cancelled as soon as its client is gone, and at the block's end in any case."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        stream.cancel()

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
        stream.cancel()


def compact(event: dict[str, Any]) -> str:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":"))


def data(event: dict[str, Any]) -> str:
    """An event of its data alone."""
    return f"data: {compact(event)}\n\n"


def named(event: dict[str, Any]) -> str:
    """An event with its type before its data."""
    return f"event: {event['type']}\n{data(event)}"


class EventStream(Response):
    """Sends `events`, each written by `frame`, and then `end`, which an error leaves out.

    None among them stands for silence: `ping`, if it lasts.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        stream: Stream,
        events: AsyncIterator[dict[str, Any] | None],
        frame: Callable[[dict[str, Any]], str] = data,
        end: str = "data: [DONE]\n\n",
        ping: str = ": ping\n\n",
        media_type: str | None = None,
    ) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._stream = stream
        self._events = events
        self._frame, self._end, self._ping = frame, end, ping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(text: str, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": more})

        async with cancelled_on_disconnect(receive, self._stream):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            failed, sent = False, time.monotonic()
            async for event in self._events:
                if event is None and time.monotonic() - sent < 0.7 * PING_SECONDS:  # timers may be early
                    continue
                sent = time.monotonic()
                failed = event is not None and "error" in event
                await write(self._ping if event is None else self._frame(event))
            await write("" if failed else self._end, more=False)
