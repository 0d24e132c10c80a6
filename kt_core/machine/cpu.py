"""Processor name and features, the CPUs this process may use, and which of them share a core."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from kt_core.machine.sysfiles import Tree, parse_list

CPU_FOLDER = "/sys/devices/system/cpu"
_X86 = ("avx2", "fma", "f16c", "avx_vnni")
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512vbmi", "avx512_bf16", "avx512_fp16")
_AMX = ("amx_tile", "amx_int8", "amx_bf16")
_ARM = ("asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve", "sve2")
FEATURES = frozenset(_X86 + _AVX512 + _AMX + _ARM)


@dataclass(frozen=True)
class Cpus:
    """`cores` groups the allowed CPUs by physical core; `fast_cores` are those of the performance type."""

    online: tuple[int, ...]
    allowed: tuple[int, ...]
    cores: tuple[tuple[int, ...], ...]
    fast_cores: tuple[tuple[int, ...], ...]
    all_cores: int


@dataclass(frozen=True)
class CpuInfo:
    model: str
    architecture: str
    features: tuple[str, ...]
    processors: dict[int, dict[str, str]]


def read_cpuinfo(tree: Tree) -> CpuInfo:
    """/proc/cpuinfo in any of its layouts; what is absent or odd is left empty."""
    text = tree.text("/proc/cpuinfo")
    if not text:
        tree.note("machine.no_cpuinfo")
    blocks = [_fields(block) for block in (text or "").split("\n\n")]
    shared = {k: v for block in blocks for k, v in block.items()}
    processors = {int(b["processor"]): b for b in blocks if b.get("processor", "").isdecimal()}
    flag_sets = [set(b[k].lower().split()) for b in blocks for k in ("flags", "features") if k in b]
    features = FEATURES.intersection(*flag_sets) if flag_sets else frozenset()
    name = next((shared[k] for k in ("model name", "processor", "cpu", "hardware") if _is_name(shared.get(k))), "")
    return CpuInfo(name, _architecture(tree, shared), tuple(sorted(features)), processors)


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines() if ":" in line)
    return {key.strip().casefold(): value.strip() for key, _, value in pairs}


def _is_name(value: str | None) -> bool:
    return bool(value) and not str(value).isdecimal()


def _architecture(tree: Tree, fields: dict[str, str]) -> str:
    if tree.root == Path("/"):
        return platform.machine() or "unknown"
    if "flags" in fields:
        return "x86_64" if "lm" in fields["flags"].split() else "i686"
    if "cpu implementer" in fields or "features" in fields:
        return "aarch64" if fields.get("cpu architecture", "").startswith(("8", "9", "AArch64")) else "arm"
    return "ppc64" if "power" in fields.get("cpu", "").casefold() else "unknown"


def read_cpus(tree: Tree, info: CpuInfo) -> Cpus:
    """Online CPUs, those this process may use, and their physical cores."""
    folders = tree.folders(CPU_FOLDER, "cpu")
    online = _online(tree, folders) or tuple(info.processors)
    if not online:
        tree.note("machine.no_topology")
        online = tuple(range(os.cpu_count() or 1)) if tree.root == Path("/") else (0,)
    allowed = tuple(cpu for cpu in _affinity(tree, online) if cpu in set(online)) or online
    keys = {cpu: _core(tree, info, cpu) for cpu in online}
    cores = _grouped(allowed, keys)
    fast = _fast_cpus(tree, allowed)
    fast_cores = tuple(core for core in cores if fast.intersection(core))
    return Cpus(online, allowed, cores, fast_cores, len(set(keys.values())))


def _online(tree: Tree, folders: dict[int, str]) -> tuple[int, ...]:
    """CPUs of the online list (or all that have a folder) whose own `online` file, where there is one, is not 0."""
    listed = tree.cpus(f"{CPU_FOLDER}/online") or tuple(folders)
    return tuple(cpu for cpu in listed if tree.number(f"{CPU_FOLDER}/cpu{cpu}/online") != 0)


def _affinity(tree: Tree, online: tuple[int, ...]) -> tuple[int, ...]:
    if tree.root == Path("/"):
        try:
            return tuple(sorted(os.sched_getaffinity(0)))
        except (AttributeError, OSError):
            return online
    for line in (tree.text("/proc/self/status") or "").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            try:
                return parse_list(line.partition(":")[2].strip())
            except ValueError:
                tree.note("machine.bad_list", path="/proc/self/status", text=line[:60])
    return online


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
    if fields.get("core id", "").isdecimal() and fields.get("physical id", "").isdecimal():
        return int(fields["physical id"]), int(fields["core id"])
    return "cpu", cpu


def _grouped(cpus: tuple[int, ...], keys: dict[int, object]) -> tuple[tuple[int, ...], ...]:
    groups: dict[object, list[int]] = {}
    for cpu in cpus:
        groups.setdefault(keys[cpu], []).append(cpu)
    return tuple(tuple(group) for group in groups.values())


def _fast_cpus(tree: Tree, cpus: tuple[int, ...]) -> set[int]:
    """CPUs of the performance type; all of them when the machine has one type.

    By the kernel's lists of hybrid x86 core types, else by cpu_capacity (ARM): at least 3/4 of the largest,
    because cores of one type differ a little in their highest clock.
    """
    fast = tree.cpus("/sys/devices/cpu_core/cpus")
    if fast and tree.cpus("/sys/devices/cpu_atom/cpus") and set(fast) & set(cpus):
        return set(fast)
    capacities = {cpu: tree.number(f"{CPU_FOLDER}/cpu{cpu}/cpu_capacity") or 0 for cpu in cpus}
    limit = max(capacities.values(), default=0) * 3 / 4
    return {cpu for cpu, capacity in capacities.items() if capacity >= limit}


def read_nodes(tree: Tree, online: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """NUMA node -> its online CPUs; a node that has only memory has none. One node 0 when nothing is known.

    A CPU counts for the first node that lists it: firmware has been seen that gives every node all CPUs.
    """
    nodes = {}
    left = set(online)
    for node, folder in tree.folders("/sys/devices/system/node", "node").items():
        cpus = tree.cpus(f"{folder}/cpulist", f"{folder}/cpumap") or ()
        nodes[node] = tuple(cpu for cpu in cpus if cpu in left)
        left.difference_update(cpus)
    return nodes if any(nodes.values()) else {0: online}
