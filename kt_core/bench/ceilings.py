"""Measures the machine profile: memory, arithmetic units and links, at every number of threads asked for."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kt_core.bench.job import READS, Job
from kt_core.kernels import ReadProbe, peak_rate, set_threads, units
from kt_core.machine import probe, profile
from kt_core.messages import t
from kt_core.types import MachineProfile, Progress

Row = dict[str, Any]
SECONDS = 0.05  # of a unit's peak
LINK_BYTES = 256 << 20
READ = "read"


def rows(job: Job, progress: Progress) -> Iterator[Row]:
    """`what` ("read", a unit, or "cuda:0 to", "cuda:0 from"), `threads`, and the median, low and high rate a second."""
    memory = ReadProbe(job.probe)
    total = len(job.threads) * (1 + len(_units(job))) + 2 * torch.cuda.device_count()
    for number, row in enumerate(_rows(job, memory)):
        yield row
        progress(t("bench.stage_rows"), number + 1, total, "")


def _rows(job: Job, memory: ReadProbe) -> Iterator[Row]:
    for threads in job.threads:
        set_threads(threads)
        memory.rate()  # wakes the threads
        yield _row(READ, threads, memory.rate, job.repeats)
        for unit in _units(job):
            yield _row(unit, threads, lambda unit=unit: peak_rate(unit, None, SECONDS), job.repeats)  # type: ignore[misc]
    for index in range(0 if job.kind == READS else torch.cuda.device_count()):
        yield from _links(f"cuda:{index}", job.repeats)


def _units(job: Job) -> tuple[str, ...]:
    """What is measured beside memory; a job of READS alone looks at the memory as it is just now."""
    return () if job.kind == READS else tuple(units())


def _row(what: str, threads: int, measure: Callable[[], float], repeats: int) -> Row:
    rates = [measure() for _ in range(repeats)]
    return {
        "what": what,
        "threads": threads,
        "median": statistics.median(rates),
        "low": min(rates),
        "high": max(rates),
    }


def _links(device: str, repeats: int) -> Iterator[Row]:
    """Copies between pinned memory and a GPU."""
    here = torch.empty(LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(LINK_BYTES, dtype=torch.uint8, device=device)

    def rate(to: torch.Tensor, source: torch.Tensor) -> float:
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        to.copy_(source, non_blocking=True)
        torch.cuda.synchronize(device)
        return LINK_BYTES / (time.perf_counter() - start)

    rate(there, here)  # the first copy sets things up
    yield _row(f"{device} to", 1, lambda: rate(there, here), repeats)
    yield _row(f"{device} from", 1, lambda: rate(here, there), repeats)


def store(found: list[Row]) -> str:
    """Write the profile of this machine from all rows; the file's path. Raises OSError."""
    units_found: dict[str, dict[int, float]] = {}
    links: dict[str, dict[str, float]] = {}
    for row in found:
        device, _, way = row["what"].partition(" ")
        if way:
            links.setdefault(device, {})[way] = row["median"]
        elif row["what"] != READ:
            units_found.setdefault(row["what"], {})[row["threads"]] = row["median"]
    made = MachineProfile(
        fingerprint=profile.fingerprint(probe()),
        measured=time.time(),
        read_rates={row["threads"]: row["median"] for row in found if row["what"] == READ},
        unit_rates=units_found,
        link_rates=links,
    )
    profile.path().parent.mkdir(parents=True, exist_ok=True)
    made.write(profile.path())
    return str(profile.path())
