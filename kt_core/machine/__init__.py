"""What this machine has and what this process may use of it."""

from pathlib import Path

from kt_core.machine.cache import read_caches
from kt_core.machine.cgroup import Limits, read_limits
from kt_core.machine.cpuinfo import read_cpuinfo
from kt_core.machine.disks import read_disks
from kt_core.machine.gpu import read_gpus
from kt_core.machine.memory import read_hugepages, read_memory, read_process_limit
from kt_core.machine.numa import read_nodes, read_policy
from kt_core.machine.surroundings import read_surroundings
from kt_core.machine.sysfiles import Tree
from kt_core.machine.topology import Cpus, read_cpus
from kt_core.messages import t
from kt_core.types import Decision, Machine, Node

__all__ = ["deciding_limit", "default_threads", "memory_decision", "probe"]

# Names of the limits on the thread count; each has a message machine.limit_NAME
ONLINE, AFFINITY, CPUSET = "online", "affinity", "cpuset"
QUOTA, CORES, FAST_CORES = "quota", "cores", "fast_cores"
# Where several limits are equal, the first of these is named, provided that it leaves something out: it says most.
_TELLING = (CPUSET, AFFINITY, CORES, FAST_CORES, QUOTA, ONLINE)


def probe(sysroot: Path = Path("/")) -> Machine:
    """The machine whose /proc and /sys lie under `sysroot`. Never raises: what cannot be read becomes a note.

    Affinity, architecture, AMX permission and GPU drivers of the running system are asked for only when `sysroot` is "/".
    """
    tree = Tree(sysroot)
    info = read_cpuinfo(tree)
    groups = read_limits(tree)
    cpus = read_cpus(tree, info, groups.cpus)
    policy = read_policy(tree)
    nodes = read_nodes(tree, cpus.online, groups, policy)
    memory_limits, available, swap = read_memory(tree, groups, nodes)
    caches, last_level = read_caches(tree, cpus.allowed)
    return Machine(
        cpu_model=info.model,
        architecture=info.architecture,
        features=info.features,
        logical_cpus=len(cpus.online),
        physical_cores=cpus.all_cores,
        allowed_cpus=cpus.allowed,
        numa_nodes=nodes,
        limits=_limits(cpus, groups),
        memory_total=min(memory_limits.values(), default=0),
        memory_available=available,
        last_level_cache=last_level,
        gpus=read_gpus(tree),
        generation=info.generation,
        sockets=_sockets(cpus, nodes),
        cores=cpus.cores,
        fast_cores=cpus.fast_cores,
        smt=cpus.smt,
        memory_limits=memory_limits,
        memory_policy=policy,
        numa_balancing=bool(tree.number("/proc/sys/kernel/numa_balancing")),
        swap=swap,
        caches=caches,
        hugepages=read_hugepages(tree),
        disks=read_disks(tree),
        surroundings=read_surroundings(tree, info),
        locked_memory=read_process_limit(tree, "Max locked memory"),
        open_files=read_process_limit(tree, "Max open files"),
        notes=tree.notes,
    )


def _sockets(cpus: Cpus, nodes: dict[int, Node]) -> int:
    """Packages; hypervisors and old firmware give each core one of its own, then nodes are nearer to the truth."""
    homes = sum(bool(node.cpus) for node in nodes.values())
    return homes if homes < cpus.sockets == cpus.all_cores else cpus.sockets


def _limits(cpus: Cpus, groups: Limits) -> dict[str, float]:
    found = {ONLINE: len(cpus.online), AFFINITY: len(cpus.affinity)}
    if groups.cpus is not None:
        found[CPUSET] = len(set(groups.cpus) & set(cpus.online)) or len(cpus.online)
    found[CORES] = len(cpus.cores)
    if len(cpus.fast_cores) < len(cpus.cores):
        found[FAST_CORES] = len(cpus.fast_cores)
    limits = {name: float(count) for name, count in found.items()}
    return limits if groups.quota is None else limits | {QUOTA: groups.quota}


def deciding_limit(machine: Machine) -> tuple[str, float]:
    """(name, CPUs) of the smallest limit: affinity, cpuset, whole CPUs of the quota, physical (performance) cores."""
    limits = machine.limits or {CORES: float(machine.physical_cores)}
    online = limits.get(ONLINE, machine.logical_cpus)
    real = {name: limit for name, limit in limits.items() if limit < online or name not in (CPUSET, AFFINITY)}
    return min((real or limits).items(), key=lambda item: (int(item[1]), _TELLING.index(item[0])))


def default_threads(machine: Machine) -> tuple[int, Decision]:
    """As many threads as the deciding limit allows, at least 1; the decision names that limit."""
    name, limit = deciding_limit(machine)
    threads = max(1, int(limit))
    reason = t(f"machine.limit_{name}", limit=f"{limit:g}", cpus=machine.logical_cpus)
    return threads, Decision("threads", threads, reason, "machine")


def memory_decision(machine: Machine) -> Decision:
    """The memory that a model may take in all, in bytes, with the limit that decided it; 0 when nothing is known."""
    limits = machine.memory_limits
    name = min(limits, key=lambda limit: limits[limit], default="unknown")
    shown = {limit: f"{count / 2**30:.2f} GiB" for limit, count in limits.items()}
    reason = t(f"machine.memory_{name}", size=shown.get(name, ""), ram=shown.get("ram", "?"))
    return Decision("memory", machine.memory_total, reason, "machine")
