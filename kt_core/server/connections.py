"""Connections of clients that are slow or hostile: how long the server waits for them, and how much they may send."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from kt_core.messages import t
from kt_core.server import errors

# A request's head must be whole after so many seconds, so that connections cannot be held by a byte now and then.
HEAD_SECONDS = 20.0
# The longest that a client may leave an answer unread once the buffers are full; then the connection is cut.
STALL_SECONDS = 60.0
# An idle connection lives longer than clients keep it (httpx 5 s, Node's 4 s, load balancers 60 s): where the server closes first,
# a request that is just being sent is lost.
IDLE_SECONDS = 75
# Bytes of a request's head.
HEAD_BYTES = 64 * 1024


class Connection(H11Protocol):
    """uvicorn's own, with an end to waiting."""

    _head: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()
        else:
            self._head = _stopped(self._head)

    def send_400_response(self, msg: str) -> None:
        """The answer to what is no HTTP, in OpenAI's envelope: no route was reached that could have another one."""
        answer = errors.http_response(400, t("server.no_http"))
        headers = [*answer.raw_headers, (b"connection", b"close")]
        parts = (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        )
        self.transport.write(b"".join(self.conn.send(part) or b"" for part in parts))
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self._stall or self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall = _stopped(self._stall)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._head, self._stall = _stopped(self._head), _stopped(self._stall)

    def _await_head(self) -> None:
        self._head = self._head or self.loop.call_later(HEAD_SECONDS, self.transport.abort)


def _stopped(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """None, for where the timer was."""
    if timer:
        timer.cancel()
    return None
