"""python -m kt_core.bench --job JSON [--events-fd N]: one run of the bench, told as events.

`progress`, `row` (row), `note` (what), `stored` (path) and `error`, one JSON object a line. Rows come as soon as they
are measured, so that whoever stops this process has those that are there.
"""

import os
from types import ModuleType

from kt_core import child
from kt_core.bench.job import CEILINGS, READS, Job
from kt_core.events import Events


def main() -> int:
    """Returns the exit code. Events go to `--events-fd` (default: standard output), the log to standard error."""
    parser = child.parser("kt_core.bench", __doc__)
    parser.add_argument("--job", required=True, metavar="JSON")
    arguments = parser.parse_args()
    events = child.begin(arguments.events_fd)
    job = Job.parse(arguments.job)
    if not job.vs:  # torch's threads, which a comparison needs as they are, would spin after each of its operations
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return child.told(
        events, _load, lambda parts: _measure(job, events, *parts), broken="bench.broken_package", failed="bench.failed"
    )


def _load() -> tuple[ModuleType, ModuleType]:
    from kt_core.bench import ceilings, run

    return ceilings, run


def _measure(job: Job, events: Events, ceilings: ModuleType, run: ModuleType) -> None:
    if job.kind not in (CEILINGS, READS):
        for row in run.rows(job, events.progress, lambda what: events.emit("note", what=what)):
            events.emit("row", row=row)
        return
    found = []
    for row in ceilings.rows(job, events.progress):
        found.append(row)
        events.emit("row", row=row)
    if job.kind == CEILINGS:
        events.emit("stored", path=ceilings.store(found))


if __name__ == "__main__":
    child.end(main())
