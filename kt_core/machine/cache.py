"""How much the last-level caches hold."""

import re

from kt_core.machine.sysfiles import Tree

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def read_last_level(tree: Tree, cpus: tuple[int, ...]) -> int:
    """Bytes of all last-level caches that `cpus` read through, each counted once; 0 when the system does not say."""
    sizes: dict[object, int] = {}
    for cpu in cpus:
        best = max(_caches(tree, cpu), default=None)
        if best:
            _, size, shared = best
            sizes[shared] = size
    return sum(sizes.values())


def _caches(tree: Tree, cpu: int) -> list[tuple[int, int, tuple[int, ...]]]:
    """(level, bytes, CPUs that share it) of a CPU's caches for data."""
    found = []
    for folder in tree.folders(f"/sys/devices/system/cpu/cpu{cpu}/cache", "index").values():
        level, size = tree.number(f"{folder}/level"), _bytes(tree.text(f"{folder}/size") or "")
        if level and size and tree.text(f"{folder}/type") != "Instruction":
            shared = tree.cpus(f"{folder}/shared_cpu_list", f"{folder}/shared_cpu_map") or (cpu,)
            found.append((level, size, shared))
    return found


def _bytes(text: str) -> int:
    """Bytes of a size such as "32768K"; 0 for anything else."""
    match = re.fullmatch(r"(\d{1,12})([KMG]?)", text)
    return int(match[1]) * _UNITS[match[2]] if match else 0
