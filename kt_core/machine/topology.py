"""The CPUs this process may use, which of them share a core, and which cores are the fast ones."""

import os
from dataclasses import dataclass

from kt_core.machine.cpuinfo import CpuInfo
from kt_core.machine.sysfiles import Tree, parse_list, whole

CPU_FOLDER = "/sys/devices/system/cpu"
_FAST = 3 / 4  # of the highest figure: cores of one type differ a little, those of another by a third or more


@dataclass(frozen=True)
class Cpus:
    """`cores` groups the allowed CPUs by physical core; `fast_cores` are those of the performance type."""

    online: tuple[int, ...]
    affinity: tuple[int, ...]  # by the process's mask alone
    allowed: tuple[int, ...]
    cores: tuple[tuple[int, ...], ...]
    fast_cores: tuple[tuple[int, ...], ...]
    all_cores: int
    sockets: int
    smt: str  # as in Machine


def read_cpus(tree: Tree, info: CpuInfo, cpuset: tuple[int, ...] | None) -> Cpus:
    """Online CPUs; those of them that affinity and `cpuset` leave to this process; their physical cores."""
    folders = tree.folders(CPU_FOLDER, "cpu")
    online = _online(tree, folders) or tuple(sorted(info.processors))
    if not online:
        tree.note("machine.no_topology")
        online = tuple(range(os.cpu_count() or 1)) if tree.live else (0,)
    affinity = _affinity(tree, online)
    inside = set(affinity if cpuset is None else cpuset) & set(affinity)
    if not inside:
        tree.note("machine.no_cpus_left")
    allowed = tuple(cpu for cpu in online if cpu in inside) or online
    keys = {cpu: _core(tree, info, cpu) for cpu in online}
    cores = _grouped(allowed, keys)
    fast = _fast_cpus(tree, info, allowed)
    fast_cores = tuple(core for core in cores if fast.intersection(core)) or cores
    all_cores = len(set(keys.values()))
    smt = _smt(tree, info, len(online) > all_cores)
    return Cpus(online, affinity, allowed, cores, fast_cores, all_cores, _sockets(tree, info, online), smt)


def _online(tree: Tree, folders: dict[int, str]) -> tuple[int, ...]:
    """CPUs of the online list (or all that have a folder) whose own `online` file, where there is one, is not 0."""
    listed = tree.cpus(f"{CPU_FOLDER}/online") or tuple(folders)
    return tuple(cpu for cpu in listed if tree.number(f"{CPU_FOLDER}/cpu{cpu}/online") != 0)


def _affinity(tree: Tree, online: tuple[int, ...]) -> tuple[int, ...]:
    if tree.live:
        try:
            return tuple(sorted(os.sched_getaffinity(0)))
        except (AttributeError, OSError):
            return online
    text = status_field(tree, "Cpus_allowed_list")
    try:
        mask = None if text is None else parse_list(text)
    except ValueError:
        tree.note("machine.bad_list", path="/proc/self/status", text=(text or "")[:60])
        mask = None
    return online if mask is None else tuple(cpu for cpu in online if cpu in set(mask))


def status_field(tree: Tree, name: str) -> str | None:
    """A field of /proc/self/status."""
    for line in (tree.text("/proc/self/status") or "").splitlines():
        if line.startswith(f"{name}:"):
            return line.partition(":")[2].strip()
    return None


def _core(tree: Tree, info: CpuInfo, cpu: int) -> object:
    """Something equal for CPUs of the same physical core, and different for others."""
    topology = f"{CPU_FOLDER}/cpu{cpu}/topology"
    for new, old in (("core_cpus_list", "core_cpus"), ("thread_siblings_list", "thread_siblings")):
        siblings = tree.cpus(f"{topology}/{new}", f"{topology}/{old}")
        if siblings and cpu in siblings:
            return siblings
    core, package = tree.number(f"{topology}/core_id"), tree.number(f"{topology}/physical_package_id")
    if core is not None and package is not None:
        return package, core
    fields = info.processors.get(cpu, {})
    core, package = whole(fields.get("core id", "")), whole(fields.get("physical id", ""))
    return ("cpu", cpu) if core is None or package is None else (package, core)


def _grouped(cpus: tuple[int, ...], keys: dict[int, object]) -> tuple[tuple[int, ...], ...]:
    groups: dict[object, list[int]] = {}
    for cpu in cpus:
        groups.setdefault(keys[cpu], []).append(cpu)
    return tuple(tuple(group) for group in groups.values())


def _fast_cpus(tree: Tree, info: CpuInfo, cpus: tuple[int, ...]) -> set[int]:
    """CPUs of the performance type; all of them when the machine has one type.

    By the kernel's lists of hybrid x86 core types, else by cpu_capacity (ARM), else by what Intel's firmware says of
    the cores' highest speed (AMD's differs by a quarter among cores of one type).
    """
    fast = tree.cpus("/sys/devices/cpu_core/cpus")
    if fast and tree.cpus("/sys/devices/cpu_atom/cpus") and set(fast) & set(cpus):
        return set(fast)
    names = ["cpu_capacity"] + ["acpi_cppc/highest_perf"] * (info.vendor == "GenuineIntel")
    for name in names:
        figures = {cpu: tree.number(f"{CPU_FOLDER}/cpu{cpu}/{name}") or 0 for cpu in cpus}
        limit = max(figures.values(), default=0) * _FAST
        if min(figures.values(), default=0) > 0:
            return {cpu for cpu, figure in figures.items() if figure >= limit}
    return set(cpus)


def _sockets(tree: Tree, info: CpuInfo, online: tuple[int, ...]) -> int:
    """Packages with online CPUs."""
    found = set()
    for cpu in online:
        topology = f"{CPU_FOLDER}/cpu{cpu}/topology"
        package = tree.number(f"{topology}/physical_package_id")
        if package is None:
            package = whole(info.processors.get(cpu, {}).get("physical id", ""))
        if package is None or package < 0:  # some firmware says -1; then the CPUs beside it tell packages apart
            beside = tree.cpus(f"{topology}/package_cpus_list") or tree.cpus(f"{topology}/core_siblings_list")
            package = min(beside) - _MANY if beside else None
        found.add(package)
    return len(found - {None}) or 1


_MANY = 1 << 17  # keeps CPU ids apart from package ids


def _smt(tree: Tree, info: CpuInfo, shared: bool) -> str:
    if shared:
        return "on"
    if "hypervisor" in info.flags:  # x86 only: the flag that the CPU itself sets for guests
        return "unknown"
    return "off" if tree.text(f"{CPU_FOLDER}/smt/control") in ("off", "forceoff") else "none"
