"""python -m kt_core.train --settings FILE [--events-fd N]: the process of a fine-tuning run."""

import importlib.util
import json
import logging
import os
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

from kt_core import child
from kt_core.errors import EnvironmentProblem
from kt_core.events import Events, Warnings
from kt_core.train.settings import settings


def main() -> int:
    """Returns the exit code. Events go to `--events-fd` (default: standard output), the log to standard error."""
    parser = child.parser("kt_core.train", __doc__)
    parser.add_argument("--settings", type=Path, required=True, metavar="FILE")
    parser.add_argument("--plan", action="store_true", help="tell what the run would take, and end")
    parser.add_argument("--merge", type=Path, metavar="FOLDER", help="write model and adapter there as one checkpoint")
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="write the adapter there as KTransformers' pair")
    given = parser.parse_args()
    events = child.begin(given.events_fd)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("kt_core").addHandler(Warnings(events))
    # torch's threads would spin between its operations, on the cores that the kernels' pool needs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return child.told(
        events, _load, lambda parts: _work(given, events, *parts), broken="server.broken_package", failed="train.failed"
    )


def _load() -> tuple[ModuleType, ModuleType, ModuleType]:
    if importlib.util.find_spec("accelerate") is None:
        raise EnvironmentProblem("train.needs_extra")
    from kt_core.train import fused, merge, session

    return fused, merge, session


def _work(given: Namespace, events: Events, fused: ModuleType, merge: ModuleType, session: ModuleType) -> None:
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


if __name__ == "__main__":
    child.end(main())
