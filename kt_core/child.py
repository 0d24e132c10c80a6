"""A process that does one job for the command line: its events on a pipe, its log on standard error."""

import argparse
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from kt_core.errors import EnvironmentProblem, KTError
from kt_core.events import Events, one_line, wait_for_parents_end

Parts = TypeVar("Parts")
INTERRUPTED = 130


def parser(module: str, doc: str | None) -> argparse.ArgumentParser:
    """The arguments of `python -m module`: --events-fd, and what the caller adds."""
    made = argparse.ArgumentParser(prog=f"python -m {module}", description=doc)
    made.add_argument("--events-fd", type=int, default=1, metavar="N", help="default: standard output")
    return made


def begin(fd: int) -> Events:
    """Events to `fd`; whatever a library prints goes to the log, not between them. The process ends with its parent."""
    events = Events(os.dup(fd))
    os.dup2(2, 1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return events


def told(events: Events, load: Callable[[], Parts], work: Callable[[Parts], None], *, broken: str, failed: str) -> int:
    """Do `work` with what `load` imports, and tell how it failed; the exit code.

    `broken` and `failed` are the messages, with a {reason}, of imports and of work that end in an error which is not kt's.
    """
    try:
        parts = load()
    except KTError as e:
        return _failed(e, events)
    except Exception as e:  # a package is missing or broken: it may raise anything
        logging.exception("an import failed")
        return _failed(EnvironmentProblem(broken, reason=one_line(e)), events)
    try:
        work(parts)
    except KTError as e:
        logging.exception("the job failed")
        return _failed(e, events)
    except Exception as e:
        logging.exception("the job failed")
        return _failed(KTError(failed, reason=one_line(e)), events)
    return 0


def end(code: int) -> None:
    """Leave at once: a thread waits for standard input's end."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)


def _failed(error: KTError, events: Events) -> int:
    events.error(error)
    return error.exit_code


def _end_with_parent() -> None:
    """What jobs write is whole at any moment, so there is nothing to tidy up."""
    if wait_for_parents_end():
        os._exit(INTERRUPTED)
