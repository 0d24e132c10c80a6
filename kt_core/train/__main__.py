"""python -m kt_core.train --settings FILE [--events-fd N]: the process of a fine-tuning run."""

import argparse
import importlib.util
import json
import logging
import os
import sys
import threading
from pathlib import Path

from kt_core.errors import EnvironmentProblem, KTError
from kt_core.events import Events, Warnings, one_line, wait_for_parents_end
from kt_core.train.settings import settings


def main() -> int:
    """Returns the exit code. Events go to `--events-fd` (default: standard output), the log to standard error."""
    parser = argparse.ArgumentParser(prog="python -m kt_core.train", description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, metavar="FILE")
    parser.add_argument("--plan", action="store_true", help="tell what the run would take, and end")
    parser.add_argument("--merge", type=Path, metavar="FOLDER", help="write model and adapter there as one checkpoint")
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="write the adapter there as KTransformers' pair")
    parser.add_argument("--events-fd", type=int, default=1, metavar="N")
    given = parser.parse_args()
    events = Events(os.dup(given.events_fd))
    os.dup2(2, 1)  # whatever a library prints belongs into the log, not between the events
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("kt_core").addHandler(Warnings(events))
    # torch's threads would spin between its operations, on the cores that the kernels' pool needs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if importlib.util.find_spec("accelerate") is None:
        return _failed(EnvironmentProblem("train.needs_extra"), events)
    try:
        from kt_core.train import fused, merge, session
    except Exception as e:  # a package is missing or broken: it may raise anything
        logging.exception("an import failed")
        return _failed(EnvironmentProblem("server.broken_package", reason=one_line(e)), events)
    try:
        chosen = settings(json.loads(given.settings.read_text()))
        folder = Path(chosen.adapter_name_or_path or "")
        if given.export:
            fused.export(folder, given.export)
        elif given.merge:
            merge.merge(chosen.model_name_or_path, folder, given.merge, events.progress)
        elif given.plan:
            session.plan(chosen, events)
        else:
            session.run(chosen, events)
    except KTError as e:
        logging.exception("training failed")
        return _failed(e, events)
    except Exception as e:
        logging.exception("training failed")
        return _failed(KTError("train.failed", reason=one_line(e)), events)
    return 0


def _failed(error: KTError, events: Events) -> int:
    events.error(error)
    return error.exit_code


def _end_with_parent() -> None:
    """Checkpoints are whole at any moment, so there is nothing to tidy up."""
    if wait_for_parents_end():
        os._exit(130)


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    os._exit(code)
