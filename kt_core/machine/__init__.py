"""What this machine has and what this process may use of it."""

import os
from pathlib import Path

from kt_core.machine.cache import read_last_level
from kt_core.machine.cgroup import Limits, read_limits
from kt_core.machine.cpu import read_cpuinfo, read_cpus, read_nodes
from kt_core.machine.gpu import read_gpus
from kt_core.machine.sysfiles import Tree
from kt_core.messages import t
from kt_core.types import Decision, Machine

__all__ = ["default_threads", "probe"]

# Names of the limits on the thread count; each has a message machine.limit_NAME
AFFINITY, QUOTA, CORES, FAST_CORES = "affinity", "quota", "cores", "fast_cores"


def probe(sysroot: Path = Path("/")) -> Machine:
    """The machine whose /proc and /sys lie under `sysroot`. Never raises: what cannot be read becomes a note.

    Affinity, architecture and GPUs of the running system are asked for only when `sysroot` is "/".
    """
    tree = Tree(sysroot)
    info = read_cpuinfo(tree)
    cpus = read_cpus(tree, info)
    groups = read_limits(tree)
    total, available = _memory(tree, groups)
    limits = {AFFINITY: float(len(cpus.allowed)), CORES: float(len(cpus.cores))}
    if len(cpus.fast_cores) < len(cpus.cores):
        limits[FAST_CORES] = float(len(cpus.fast_cores))
    if groups.cpus is not None:
        limits[QUOTA] = groups.cpus
    gpus = read_gpus(tree) if sysroot == Path("/") else ()
    return Machine(
        cpu_model=info.model,
        architecture=info.architecture,
        features=info.features,
        logical_cpus=len(cpus.online),
        physical_cores=cpus.all_cores,
        allowed_cpus=cpus.allowed,
        numa_nodes=read_nodes(tree, cpus.online),
        limits=limits,
        memory_total=total,
        memory_available=available,
        last_level_cache=read_last_level(tree, cpus.allowed),
        gpus=gpus,
        notes=tree.notes,
    )


def default_threads(machine: Machine) -> tuple[int, Decision]:
    """The smallest of affinity, whole CPUs of the quota, and physical (performance) cores; at least 1.

    The decision names the limit that won.
    """
    limits = machine.limits or {CORES: float(machine.physical_cores)}
    name, limit = min(limits.items(), key=lambda item: (int(item[1]), item[0] != CORES))
    threads = max(1, int(limit))
    reason = t(f"machine.limit_{name}", limit=f"{limit:g}", cpus=machine.logical_cpus)
    return threads, Decision("threads", threads, reason, "machine")


def _memory(tree: Tree, groups: Limits) -> tuple[int, int]:
    """(total, available) bytes; each the smaller of the machine's and the control group's."""
    fields = _meminfo(tree)
    total = fields.get("MemTotal", 0)
    if "MemAvailable" in fields:
        available = fields["MemAvailable"]
    else:  # kernels before 3.14
        cached = fields.get("Buffers", 0) + fields.get("Cached", 0) - fields.get("Shmem", 0)
        available = fields.get("MemFree", 0) + max(0, cached)
    if not total and tree.root == Path("/"):
        total = available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if not total:
        tree.note("machine.no_meminfo")
        total, available = groups.memory or 0, groups.available or 0
    if groups.memory is not None and groups.available is not None:
        return min(total, groups.memory), min(available, groups.available)
    return total, available


def _meminfo(tree: Tree) -> dict[str, int]:
    """/proc/meminfo in bytes; lines that are not numbers are left out."""
    fields = {}
    for line in (tree.text("/proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        number = value.split()
        if number and number[0].isdecimal():
            fields[name] = int(number[0]) << 10
    return fields
