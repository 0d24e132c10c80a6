"""python -m kt_core.quality --job JSON [--events-fd N]: judges models, told as events.

`progress`, `row` (row) and `error`, one JSON object a line; a row comes as soon as its model is judged.
"""

import os
from types import ModuleType

from kt_core import child
from kt_core.quality.job import Job


def main() -> int:
    """Returns the exit code. Events go to `--events-fd` (default: standard output), the log to standard error."""
    parser = child.parser("kt_core.quality", __doc__)
    parser.add_argument("--job", required=True, metavar="JSON")
    arguments = parser.parse_args()
    events = child.begin(arguments.events_fd)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    job = Job.parse(arguments.job)

    def work(judge: ModuleType) -> None:
        for row in judge.rows(job, events.progress):
            events.emit("row", row=row)

    return child.told(events, _load, work, broken="quality.broken_package", failed="quality.failed")


def _load() -> ModuleType:
    from kt_core.quality import judge

    return judge


if __name__ == "__main__":
    child.end(main())
