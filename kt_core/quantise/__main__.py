"""python -m kt_core.quantise --job JSON [--events-fd N]: one job, told as events.

`plan` (the figures of make.figures), `progress`, `done` (path) and `error`, one JSON object a line.
"""

import argparse
import logging
import os
import sys
import threading

from kt_core.errors import EnvironmentProblem, KTError
from kt_core.events import Events, one_line, wait_for_parents_end
from kt_core.quantise.job import Job


def main() -> int:
    """Returns the exit code. Events go to `--events-fd` (default: standard output), the log to standard error."""
    parser = argparse.ArgumentParser(prog="python -m kt_core.quantise", description=__doc__)
    parser.add_argument("--job", required=True, metavar="JSON")
    parser.add_argument("--events-fd", type=int, default=1, metavar="N")
    arguments = parser.parse_args()
    events = Events(os.dup(arguments.events_fd))
    os.dup2(2, 1)  # whatever a library prints belongs into the log, not between the events
    threading.Thread(target=_end_with_parent, daemon=True).start()
    job = Job.parse(arguments.job)
    try:
        import torch

        from kt_core.quantise import make
    except Exception as e:  # a package is missing or broken: it may raise anything
        logging.exception("an import failed")
        return _failed(EnvironmentProblem("quantise.broken_package", reason=one_line(e)), events)
    torch.set_num_threads(1)  # the job's own threads are all that there are to be
    try:
        prepared = make.prepare(job)
        if job.dry_run:
            events.emit("plan", **make.figures(prepared))
            return 0
        events.emit("done", path=str(make.run(prepared, events.progress)))
    except KTError as e:
        return _failed(e, events)
    except Exception as e:
        logging.exception("quantising failed")
        return _failed(KTError("quantise.failed", reason=one_line(e)), events)
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
