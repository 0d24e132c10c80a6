"""python -m kt_core.quantise --job JSON [--events-fd N]: one job, told as events.

`warning` (what), `plan` (the figures of make.figures), `progress`, `done` (path) and `error`, one JSON object a line.
"""

from types import ModuleType

from kt_core import child
from kt_core.messages import t
from kt_core.quantise.job import Job


def main() -> int:
    """Returns the exit code. Events go to `--events-fd` (default: standard output), the log to standard error."""
    parser = child.parser("kt_core.quantise", __doc__)
    parser.add_argument("--job", required=True, metavar="JSON")
    arguments = parser.parse_args()
    events = child.begin(arguments.events_fd)
    job = Job.parse(arguments.job)

    def work(make: ModuleType) -> None:
        prepared = make.prepare(job)
        if why := prepared.source.unloadable:
            events.emit("warning", what=t("quantise.unloadable", model=job.model.name, reason=why))
        if job.dry_run:
            events.emit("plan", **make.figures(prepared))
        else:
            events.emit("done", path=str(make.run(prepared, events.progress)))

    return child.told(events, _load, work, broken="quantise.broken_package", failed="quantise.failed")


def _load() -> ModuleType:
    import torch

    from kt_core.quantise import make

    torch.set_num_threads(1)  # the job's own threads are all that there are to be
    return make


if __name__ == "__main__":
    child.end(main())
