"""What a run's figures are compared with: the machine, its profile, and its memory as it is just now."""

from typing import Any
from urllib.parse import urlsplit

from kt_cli import launch
from kt_core.bench import job as jobs
from kt_core.bench.serving import Conditions, Figures, Limit, likely_limit
from kt_core.errors import KTError
from kt_core.machine import probe, profile
from kt_core.plan.tiers import runnable

HERE = ("127.0.0.1", "localhost", "::1")
REPEATS = 3
JOB = "reads"


def machine() -> dict[str, Any]:
    """What a figure depends on, to be kept beside it."""
    found = probe()
    return profile.fingerprint(found)


def limit(info: dict[str, Any], rows: list[Figures], url: str) -> Limit | None:
    """What most likely holds back a server of kt on this machine; None for any other server."""
    kernels = info.get("kernels")
    alone = next((row for row in rows if row.concurrency == 1 and row.depth == 0), None)
    if not isinstance(kernels, dict) or not kernels or urlsplit(url).hostname not in HERE:
        return None
    here = probe()
    threads = int(kernels.get("threads") or 0)
    known = profile.of(here)
    conditions = Conditions(
        threads=threads,
        tier=str(kernels.get("chosen", "")),
        best_tier=runnable(here)[-1],
        note=str(kernels.get("note") or ""),
        reads=_reads(threads) if known else 0.0,
        profile_reads=known.read_rates.get(threads, 0.0) if known else 0.0,
    )
    predicted = float((info.get("predicted") or {}).get("decode_tokens_per_second") or 0) if alone else 0.0
    return likely_limit(here, conditions, alone.decode_rate if alone else 0.0, predicted)


def _reads(threads: int) -> float:
    """Bytes a second that so many threads read just now; 0 where that cannot be measured."""
    job = jobs.make(jobs.READS, probe(), repeats=REPEATS, threads=(threads,))
    try:
        with launch.running([*launch.BENCH, "--job", job.text()], JOB) as child:
            rows = [event["row"] for event in launch.events(child) if event.get("event") == "row"]
    except KTError:
        return 0.0
    return float(rows[0]["median"]) if rows else 0.0
