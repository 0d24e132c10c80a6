"""What the process tells its parent: one JSON object a line on a pipe."""

import json
import logging
import os
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path

from kt_core.errors import KTError

# A loader may report every tensor; a person sees no more than this many a second.
_PROGRESS_SECONDS = 0.1


def wait_for_parents_end() -> bool:
    """Wait until the other end of standard input's pipe is closed: whoever started this has gone. False: there is none."""
    with suppress(OSError):
        mode = os.fstat(0).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
            return False
        while os.read(0, 4096):
            pass
    return True


def born(pid: int) -> int:
    """When the process began, in the kernel's ticks since it booted: another process with the same id began later.

    0 where that cannot be read.
    """
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    return 0


def one_line(error: BaseException) -> str:
    """An unexpected error as the reason within a message."""
    return " ".join(f"{type(error).__name__}: {error}".split())


class Events:
    """Writes events to a file descriptor. Safe from any thread; a reader that has gone is no error."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._stage = ""
        self._last = 0.0

    def emit(self, event: str, **fields: object) -> None:
        line = json.dumps({"event": event, "time": time.time(), **fields}) + "\n"  # escapes: a path need not be UTF-8
        with self._lock, suppress(OSError):
            os.write(self._fd, line.encode())

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        """The first and the last report of a stage always go out."""
        now = time.monotonic()
        if stage == self._stage and done != total and now - self._last < _PROGRESS_SECONDS:
            return
        self._stage, self._last = stage, now
        self.emit("progress", stage=stage, done=done, total=total, unit=unit)

    def error(self, error: KTError) -> None:
        what, why, next_step = error.lines()
        self.emit("error", kind=error.kind, what=what, why=why, next=next_step, exit_code=error.exit_code)


class Warnings(logging.Handler):
    """Passes what kt logs as a warning on as an event: the log is a file that nobody watches."""

    def __init__(self, events: Events) -> None:
        super().__init__(logging.WARNING)
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:  # a failure has an event of its own
            self._events.emit("warning", what=record.getMessage())
