"""The caller's end of a request: chunks as they come, and cancel. Imports no torch, so a server can start before it."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kt_core.errors import KTError
from kt_core.types import Chunk, Request

if TYPE_CHECKING:
    from kt_core.engine.adapters import Taken
    from kt_core.engine.constraint import Constraint
    from kt_core.engine.vision import Seen


class QueueFull(KTError):
    """As many requests wait as the server keeps."""


class Closed(KTError):
    """The engine has been shut down and takes no more requests."""


class TimedOut(KTError):
    """The request's own time limit passed."""


# Sees every chunk before the caller does, in the engine's thread: it must not block and must not raise.
Observer = Callable[["Stream", Chunk], None]


class Stream:
    """The chunks of one request, in order. Safe to use from any thread; iterate or `take`, not both.

    `prompt` are the token ids of the rendered prompt. `error` says why when a chunk has the
    finish_reason "error".
    """

    def __init__(
        self,
        request: Request,
        prompt: list[int],
        abort: Callable[["Stream", str], None],
        observe: "Observer | None" = None,
    ) -> None:
        self.request = request
        self.prompt = prompt
        self.submitted = time.monotonic()
        self.error: KTError | None = None
        self.aborted: str | None = None  # finish_reason that the engine is to end this request with
        self.constraint: Constraint | None = None  # where each choice's answer begins in its grammar
        self.seen: Seen | None = None  # the prompt's images and videos
        self.adapter: Taken | None = None
        self.keys = prompt  # what finds the prompt's pages; see Sequence.keys
        self.timer: threading.Timer | None = None  # ends the request at its timeout
        self._abort = abort
        self._observe = observe
        self._ready = threading.Condition()
        self._chunks: deque[Chunk] = deque()
        self._ended = False
        self._wake: Callable[[], None] | None = None

    def cancel(self) -> None:
        """End the request: at once while it waits, within one step while it runs; never another one."""
        self._abort(self, "cancelled")

    def __iter__(self) -> Iterator[Chunk]:
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._chunks or self._ended)
                if not self._chunks:
                    return
                chunk = self._chunks.popleft()
            yield chunk

    def listen(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from the engine's thread, when `take` has something new; it must not block."""
        with self._ready:
            self._wake = wake
        wake()

    def take(self) -> tuple[list[Chunk], bool]:
        """(chunks that are ready, whether these are the last ones), without waiting."""
        with self._ready:
            chunks = list(self._chunks)
            self._chunks.clear()
            return chunks, self._ended

    def put(self, chunk: Chunk) -> None:
        """For the engine, which calls `tell` or `end` soon: whoever waits gets a step's chunks once the step is done, since threads
        of Python that wake each other in the middle of it take turns."""
        if self._observe:
            self._observe(self, chunk)
        with self._ready:
            self._chunks.append(chunk)

    def tell(self) -> None:
        """For the engine: there is something new, or the end."""
        with self._ready:
            self._ready.notify_all()
            wake = self._wake
        if wake:
            wake()

    def end(self) -> None:
        """For the engine: no chunk follows."""
        if self.timer:
            self.timer.cancel()
        if self.adapter and not self._ended:
            self.adapter.leave()
        with self._ready:
            self._ended = True
        self.tell()
