"""What most likely holds a server back: known causes first, else whichever of memory and arithmetic the roofline names."""

from dataclasses import dataclass
from typing import Any

from kt_core.types import Machine

SLOW_READS = 0.8  # of the profile's read rate: below it something else uses the memory; runs differ by a tenth
AS_PREDICTED = 0.75  # of the prediction, from which on a run is as fast as the machine: docs/plan.md's own spread


@dataclass(frozen=True)
class Conditions:
    """How a run was made. Rates in bytes a second, 0 or None where they are not known."""

    threads: int
    tier: str
    best_tier: str
    note: str = ""  # what the kernels say of their memory's places
    reads: float = 0.0  # with these threads, measured just now
    profile_reads: float = 0.0  # the same from the machine's profile


@dataclass(frozen=True)
class Limit:
    """`name`: quota, threads, tier, node, memory (slower reads than this machine's), bandwidth, arithmetic, unknown, or
    unmeasured where no prediction could be made.

    `numbers` are what its sentence names.
    """

    name: str
    numbers: dict[str, Any]


def likely_limit(machine: Machine, run: Conditions, measured: float, predicted: float, decoding: bool = True) -> Limit:
    """The cause of a rate. `measured` and `predicted` in tokens a second; `predicted` is 0 where nothing is known."""
    quota = machine.limits.get("quota", 0.0)
    if quota and quota < run.threads:
        return Limit("quota", {"quota": quota, "threads": run.threads})
    cores = min(machine.physical_cores or run.threads, len(machine.allowed_cpus) or run.threads)
    if run.threads > cores:
        return Limit("threads", {"threads": run.threads, "cores": cores})
    if run.tier != run.best_tier:
        return Limit("tier", {"tier": run.tier, "best": run.best_tier})
    if run.note:
        return Limit("node", {"note": run.note})
    if run.reads and run.profile_reads and run.reads < SLOW_READS * run.profile_reads:
        return Limit("memory", {"reads": run.reads / 1e9, "profile": run.profile_reads / 1e9})
    if not predicted:
        return Limit("unmeasured", {})
    if measured < AS_PREDICTED * predicted:
        return Limit("unknown", {"share": measured / predicted})
    return Limit("bandwidth" if decoding else "arithmetic", {})
