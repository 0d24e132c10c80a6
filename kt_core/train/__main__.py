"""python -m kt_core.train --settings FILE [--events-fd N]: the process of a fine-tuning run."""

import contextlib
import ctypes
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
from kt_core.train.settings import EXPORTS, MEASURES, PARTS, settings

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt


def main() -> int:
    """Returns the exit code. Events go to `--events-fd` (default: standard output), the log to standard error."""
    parser = child.parser("kt_core.train", __doc__)
    parser.add_argument("--settings", type=Path, required=True, metavar="FILE")
    parser.add_argument("--plan", action="store_true", help="tell what the run would take, and end")
    parser.add_argument("--processes", type=int, default=1, metavar="COUNT", help="of the run that is planned")
    parser.add_argument("--gpu", action="store_true", help="each of them has a GPU")
    parser.add_argument("--merge", type=Path, metavar="FOLDER", help="write model and adapter there as one checkpoint")
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="write the adapter there in another form")
    parser.add_argument("--form", choices=EXPORTS, default="pair")
    parser.add_argument("--part", choices=PARTS, default="all", help="of the adapter that is exported")
    parser.add_argument("--measure", choices=MEASURES, help="measure model or adapter on the data set")
    parser.add_argument("--most", type=int, default=128, metavar="COUNT", help="tokens of an answer (text)")
    given = parser.parse_args()
    events = child.begin(_channel(given.events_fd))
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("kt_core").addHandler(Warnings(events))
    _keep_memory()
    # torch's threads would spin between its operations, on the cores that the kernels' pool needs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return child.told(
        events, _load, lambda parts: _work(given, events, *parts), broken="server.broken_package", failed="train.failed"
    )


def _keep_memory() -> None:
    """What a step frees stays the process's: the next one asks for as much, and new pages took an eighth of a step's time."""
    with contextlib.suppress(OSError, AttributeError):  # glibc's alone
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
        mallopt(MMAP_THRESHOLD, 1 << 30)


def _channel(fd: int) -> int:
    """Where this process tells: of several, the first one does, through its launcher's end, which hands down no files."""
    if os.environ.get("RANK", "0") != "0":
        return os.open(os.devnull, os.O_WRONLY)
    if "RANK" in os.environ and fd > 2:
        return os.open(f"/proc/{os.getppid()}/fd/{fd}", os.O_WRONLY)
    return fd


def _load() -> tuple[ModuleType, ModuleType, ModuleType, ModuleType]:
    if importlib.util.find_spec("accelerate") is None:
        raise EnvironmentProblem("train.needs_extra")
    from kt_core.train import evaluate, export, merge, session

    return evaluate, export, merge, session


def _work(
    given: Namespace, events: Events, evaluate: ModuleType, export: ModuleType, merge: ModuleType, session: ModuleType
) -> None:
    chosen = settings(json.loads(given.settings.read_text()))
    folder = Path(chosen.adapter_name_or_path or "")
    if given.export:
        export.export(folder, given.export, given.form, given.part)
    elif given.merge:
        merge.merge(chosen.model_name_or_path, folder, given.merge, events.progress)
    elif given.measure:
        evaluate.evaluate(chosen, given.measure, given.most, events)
    elif given.plan:
        session.foresee(chosen, events, session.Processes(given.processes, given.gpu))
    else:
        session.run(chosen, events)


if __name__ == "__main__":
    child.end(main())
