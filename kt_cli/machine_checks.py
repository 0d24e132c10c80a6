"""The machine's part of `kt doctor`: what there is, each limit on its use, and the one that decides."""

import time

from kt_cli import output
from kt_cli.check import ERROR, OK, WARN, Check
from kt_core import paths
from kt_core.machine import default_threads, memory_decision, profile
from kt_core.messages import t
from kt_core.types import Gpu, Machine

LOW_MEMORY = 2 * 2**30
SHOWN_NODES = 8  # beyond it a row gets longer than a screen
_FEWEST_FILES = 4096  # a model of 1000 shards that are mapped, its server's connections, and the libraries

SMT = {
    "on": "doctor.smt_on",
    "off": "doctor.smt_off",
    "none": "doctor.smt_none",
    "unknown": "doctor.smt_unknown",
}
MEASURED_SMT = {1: "doctor.smt_measured_one", 2: "doctor.smt_measured_two"}
LIMITS = {
    "online": "doctor.limit_online",
    "affinity": "doctor.limit_affinity",
    "cpuset": "doctor.limit_cpuset",
    "quota": "doctor.limit_quota",
    "cores": "doctor.limit_cores",
    "fast_cores": "doctor.limit_fast_cores",
}
KINDS = {"memory": "doctor.node_memory", "gpu": "doctor.node_gpu"}
DISKS = {
    "nvme": "doctor.disk_nvme",
    "ssd": "doctor.disk_ssd",
    "hdd": "doctor.disk_hdd",
    "virtual": "doctor.disk_virtual",
}


def check(found: Machine) -> list[Check]:
    checks = [_cpu(found), _threads(found), _memory(found), _nodes(found), _gpus(found), _system(found)]
    if found.disks:
        checks.append(
            Check("disks", OK, output.listed(_disk(disk.name, disk.kind, disk.bytes) for disk in found.disks))
        )
    checks += [Check("probe", WARN, note) for note in found.notes]
    return [*checks, _profile(found)]


def _cpu(found: Machine) -> Check:
    if found.architecture not in ("x86_64", "aarch64"):
        return Check("cpu", ERROR, found.architecture, t("doctor.architecture"))
    value = t(
        "doctor.cpu",
        model=found.cpu_model or found.architecture,
        sockets=found.sockets,
        cores=found.physical_cores,
        threads=found.logical_cpus,
        allowed=len(found.allowed_cpus),
        smt=_smt(found),
    )
    if found.surroundings:
        value += t("doctor.inside", names=output.listed(found.surroundings))
    return Check("cpu", OK, value)


def _smt(found: Machine) -> str:
    """Threads of a core; where a virtual machine hides them, as the machine's ceilings tell."""
    measured = profile.of(found) if found.smt == "unknown" else None
    threads = profile.threads_a_core(measured, len(found.allowed_cpus)) if measured else None
    return t(SMT[found.smt] if threads is None else MEASURED_SMT[threads])


def _threads(found: Machine) -> Check:
    """How many threads kernels get, by which limit; the other limits after it."""
    count, decision = default_threads(found)
    limits = output.listed(f"{t(LIMITS[name])} {limit:g}" for name, limit in found.limits.items())
    return Check("threads", OK, t("doctor.threads", count=count, reason=decision.reason, limits=limits))


def _memory(found: Machine) -> Check:
    value = t("doctor.memory", available=output.size(found.memory_available), total=output.size(found.memory_total))
    if len(found.memory_limits) > 1:
        value += t("doctor.decided", reason=memory_decision(found).reason)
    if found.memory_policy not in ("default", "local"):
        value += t("doctor.policy", policy=found.memory_policy)
    if found.memory_available < LOW_MEMORY:
        return Check("memory", WARN, value, t("doctor.low_memory"))
    return Check("memory", OK, value)


def _nodes(found: Machine) -> Check:
    """Each NUMA node with its CPUs and memory; what is no ordinary node is named."""
    rows = []
    for number, node in list(found.numa_nodes.items())[:SHOWN_NODES]:
        row = t("doctor.node", node=number, cpus=len(node.cpus), memory=output.size(node.memory))
        kinds = [t(KINDS[node.kind])] if node.kind != "cpu" else []
        rows.append(row + "".join(kinds) + (t("doctor.node_barred") if not node.usable and node.kind != "gpu" else ""))
    left = len(found.numa_nodes) - len(rows)
    return Check("numa", OK, output.listed(rows) + (t("doctor.more_nodes", count=left) if left else ""))


def _gpus(found: Machine) -> Check:
    if not found.gpus:
        return Check("gpu", OK, t("doctor.no_gpu"))
    return Check("gpu", OK, output.listed(map(_gpu, found.gpus)))


def _gpu(gpu: Gpu) -> str:
    known = [output.size(gpu.memory)] if gpu.memory else []
    known += [
        gpu.capability and f"sm_{gpu.capability.replace('.', '')}",
        gpu.driver and t("doctor.driver", version=gpu.driver),
    ]
    if gpu.pcie_generation and gpu.pcie_lanes:
        known.append(f"PCIe {gpu.pcie_generation}.0 x{gpu.pcie_lanes}")
    if gpu.node is not None:
        known.append(t("doctor.gpu_node", node=gpu.node))
    return f"{gpu.name} ({output.listed(filter(None, known))})"


def _system(found: Machine) -> Check:
    """Huge pages, and what one process may lock and open."""
    huge = found.hugepages
    words = [t("doctor.transparent", mode=huge.transparent or "?")]
    pools = [(size, total, free) for size, (total, free) in huge.pools.items() if total]
    words += [t("doctor.huge_pool", size=output.size(size), total=total, free=free) for size, total, free in pools]
    locked = t("doctor.no_limit") if found.locked_memory is None else output.size(found.locked_memory)
    words += [t("doctor.locked", size=locked), t("doctor.files", count=found.open_files or t("doctor.no_limit"))]
    value = output.listed(words)
    if found.open_files is not None and found.open_files < _FEWEST_FILES:
        return Check("system", WARN, value, t("doctor.few_files", count=_FEWEST_FILES))
    if found.numa_balancing and len(found.numa_nodes) > 1:
        return Check("system", WARN, value, t("doctor.numa_balancing"))
    if huge.transparent == "never":
        return Check("system", WARN, value, t("doctor.no_huge_pages"))
    return Check("system", OK, value)


def _disk(name: str, kind: str, size: int) -> str:
    return f"{name} ({t(DISKS[kind])} {output.size(size)})"


def _profile(found: Machine) -> Check:
    """Whether the machine's ceilings were measured, when, and on hardware like this."""
    name, file = "profile", profile.path()
    if not paths.exists(file):
        return Check(name, OK, t("doctor.no_profile"))
    stored = profile.load()
    if stored is None:
        return Check(name, WARN, t("doctor.bad_profile", file=file), t("doctor.measure"))
    days = max(0, int((time.time() - stored.measured) / 86400))
    when = t("doctor.days_ago", days=days) if days else t("doctor.today")
    if profile.of(found) is None:
        return Check(name, WARN, t("doctor.other_profile", when=when), t("doctor.measure"))
    threads, rate = max(stored.read_rates.items(), key=lambda item: item[1])
    return Check(name, OK, t("doctor.profile", when=when, rate=f"{rate / 1e9:.1f}", threads=threads))
