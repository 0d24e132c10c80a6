"""The machine's measured ceilings as kept in the cache folder: `kt_core.bench` writes them, others only read."""

import json
from pathlib import Path
from typing import Any

from kt_core import paths
from kt_core.types import Machine, MachineProfile


def path() -> Path:
    return paths.cache_dir() / "machine.json"


def fingerprint(machine: Machine) -> dict[str, Any]:
    """What the ceilings depend on: a profile holds for machines with the same one. Memory is in whole GiB."""
    return {
        "cpu": machine.cpu_model,
        "architecture": machine.architecture,
        "features": sorted(machine.features),
        "cpus": machine.logical_cpus,
        "usable_cpus": len(machine.allowed_cpus),
        "cores": machine.physical_cores,
        "nodes": len(machine.numa_nodes),
        "memory_gib": round(machine.memory_total / 2**30),
        "gpus": [gpu.name for gpu in machine.gpus],
    }


# Of so many times one thread's arithmetic, what all CPUs reach together: half where two share a core. All cores of a socket
# busy hold 0.7 to 0.8 of one core's clock; between the two nothing is said
_SHARED, _OWN = 0.6, 0.68


def threads_a_core(measured: MachineProfile, cpus: int) -> int | None:
    """How many of the `cpus` that a virtual machine shows share a core: 1 or 2, by the vector units' rates; None where they
    were not measured with one thread and with all, or do not tell."""
    for unit in ("f32", "int8", "bf16"):
        rates = measured.unit_rates.get(unit, {})
        if cpus > 1 and {1, cpus} <= rates.keys() and rates[1] > 0:
            part = rates[cpus] / (cpus * rates[1])
            return 2 if part < _SHARED else 1 if part > _OWN else None
    return None


def load() -> MachineProfile | None:
    """The stored profile; None when there is none, or none that this version can read."""
    try:
        return MachineProfile.read(path())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def of(machine: Machine) -> MachineProfile | None:
    """The stored profile if it was measured on hardware like this."""
    profile = load()
    return profile if profile and profile.fingerprint == json.loads(json.dumps(fingerprint(machine))) else None
