"""python -m kt_core.quality --job JSON [--events-fd N]: judges models, told as events.

`progress`, `row` (row) and `error`, one JSON object a line; a row comes as soon as its model is judged.
"""

import argparse
import logging
import os
import sys
import threading

from kt_core.errors import EnvironmentProblem, KTError
from kt_core.events import Events, one_line, wait_for_parents_end
from kt_core.quality.job import Job


def main() -> int:
    """Returns the exit code. Events go to `--events-fd` (default: standard output), the log to standard error."""
    parser = argparse.ArgumentParser(prog="python -m kt_core.quality", description=__doc__)
    parser.add_argument("--job", required=True, metavar="JSON")
    parser.add_argument("--events-fd", type=int, default=1, metavar="N")
    arguments = parser.parse_args()
    events = Events(os.dup(arguments.events_fd))
    os.dup2(2, 1)  # whatever a library prints belongs into the log, not between the events
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    job = Job.parse(arguments.job)
    try:
        from kt_core.quality import judge
    except Exception as e:  # a package is missing or broken: it may raise anything
        logging.exception("an import failed")
        return _failed(EnvironmentProblem("quality.broken_package", reason=one_line(e)), events)
    try:
        for row in judge.rows(job, events.progress):
            events.emit("row", row=row)
    except KTError as e:
        return _failed(e, events)
    except Exception as e:
        logging.exception("judging failed")
        return _failed(KTError("quality.failed", reason=one_line(e)), events)
    return 0


def _failed(error: KTError, events: Events) -> int:
    events.error(error)
    return error.exit_code


def _end_with_parent() -> None:
    if wait_for_parents_end():
        os._exit(1)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # a thread waits for standard input's end
