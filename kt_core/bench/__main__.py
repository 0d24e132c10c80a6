"""python -m kt_core.bench --job JSON [--events-fd N]: one run of the bench, told as events.

`progress`, `row` (row), `note` (what), `stored` (path) and `error`, one JSON object a line. Rows come as soon as they
are measured, so that whoever stops this process has those that are there.
"""

import argparse
import logging
import os
import sys
import threading

from kt_core.bench.job import CEILINGS, READS, Job
from kt_core.errors import EnvironmentProblem, KTError
from kt_core.events import Events, one_line, wait_for_parents_end


def main() -> int:
    """Returns the exit code. Events go to `--events-fd` (default: standard output), the log to standard error."""
    parser = argparse.ArgumentParser(prog="python -m kt_core.bench", description=__doc__)
    parser.add_argument("--job", required=True, metavar="JSON")
    parser.add_argument("--events-fd", type=int, default=1, metavar="N")
    arguments = parser.parse_args()
    events = Events(os.dup(arguments.events_fd))
    os.dup2(2, 1)  # whatever a library prints belongs into the log, not between the events
    threading.Thread(target=_end_with_parent, daemon=True).start()
    job = Job.parse(arguments.job)
    if not job.vs:  # torch's threads, which a comparison needs as they are, would spin after each of its operations
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        from kt_core.bench import ceilings, run
    except Exception as e:  # a package is missing or broken: it may raise anything
        logging.exception("an import failed")
        return _failed(EnvironmentProblem("bench.broken_package", reason=one_line(e)), events)
    try:
        if job.kind not in (CEILINGS, READS):
            for row in run.rows(job, events.progress, lambda what: events.emit("note", what=what)):
                events.emit("row", row=row)
            return 0
        found = []
        for row in ceilings.rows(job, events.progress):
            found.append(row)
            events.emit("row", row=row)
        if job.kind == CEILINGS:
            events.emit("stored", path=ceilings.store(found))
    except KTError as e:
        return _failed(e, events)
    except Exception as e:
        logging.exception("the bench failed")
        return _failed(KTError("bench.failed", reason=one_line(e)), events)
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
