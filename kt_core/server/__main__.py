"""python -m kt_core.server --plan FILE [--events-fd N]: the engine's process."""

import argparse
import logging
import os
import sys
from pathlib import Path

from kt_core.errors import EnvironmentProblem, KTError
from kt_core.events import Events, one_line
from kt_core.messages import t
from kt_core.server import logs


def main() -> int:
    """Returns the exit code. Events go to `--events-fd` (default: standard output), the log to standard error."""
    parser = argparse.ArgumentParser(prog="python -m kt_core.server", description=__doc__)
    parser.add_argument("--plan", type=Path, required=True, metavar="FILE")
    parser.add_argument("--events-fd", type=int, default=1, metavar="N")
    arguments = parser.parse_args()
    try:
        events = Events(os.dup(arguments.events_fd))
    except OSError as e:
        parser.error(f"--events-fd {arguments.events_fd}: {e.strerror}")
    os.dup2(2, 1)  # whatever a library prints belongs into the log, not between the events
    logs.set_up()
    # torch's threads would spin between its operations, on the cores that the kernels' pool needs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        from kt_core.server.serve import serve
    except Exception as e:  # a package is missing or broken: it may raise anything
        logging.exception("an import failed")
        return failed(EnvironmentProblem("server.broken_package", reason=one_line(e)), events)
    try:
        return serve(arguments.plan, events)
    except Exception as e:
        logging.exception("the server failed")
        return failed(KTError("server.start_failed", reason=one_line(e), log=t("server.standard_error")), events)


def failed(error: KTError, events: Events) -> int:
    events.error(error)
    return error.exit_code


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stderr.flush()
    # Not sys.exit: a loader thread may still be inside native code, which the interpreter's end would crash.
    os._exit(code)
