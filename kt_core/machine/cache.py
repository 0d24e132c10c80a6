"""The CPUs' caches."""

import re
from collections import Counter

from kt_core.machine.sysfiles import Tree
from kt_core.machine.topology import CPU_FOLDER
from kt_core.types import Cache

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_KINDS = {"Data": "data", "Instruction": "instruction", "Unified": "unified"}


def read_caches(tree: Tree, cpus: tuple[int, ...]) -> tuple[tuple[Cache, ...], int]:
    """The caches that `cpus` read through, equal ones together, by level; and the bytes of the last-level ones.

    A cache counts once, however many CPUs share it. () and 0 when the system does not say.
    """
    seen: dict[tuple[int, str, tuple[int, ...]], int] = {}
    last: dict[object, int] = {}
    for cpu in cpus:
        own = _of(tree, cpu)
        seen |= own
        if best := max((key for key in own if key[1] != "instruction"), default=None):
            last[best] = own[best]
    sizes = Counter((level, kind, size, len(set(shared) & set(cpus))) for (level, kind, shared), size in seen.items())
    caches = [Cache(level, kind, size, count, used) for (level, kind, size, used), count in sorted(sizes.items())]
    return tuple(caches), sum(last.values())


def _of(tree: Tree, cpu: int) -> dict[tuple[int, str, tuple[int, ...]], int]:
    """(level, kind, CPUs that share it) -> bytes of a CPU's caches."""
    found = {}
    for folder in tree.folders(f"{CPU_FOLDER}/cpu{cpu}/cache", "index").values():
        level, size = tree.number(f"{folder}/level"), _bytes(tree.text(f"{folder}/size", 64) or "")
        kind = _KINDS.get(tree.text(f"{folder}/type", 64) or "", "unified")
        if level and 0 < level < 10 and size:
            # Both are said; old kernels have been seen whose list names one CPU where the mask has two.
            listed = tree.cpus(f"{folder}/shared_cpu_list") or ()
            shared = max(listed, tree.cpus("", f"{folder}/shared_cpu_map") or (), key=len)
            found[level, kind, shared if cpu in shared else (cpu,)] = size
    return found


def _bytes(text: str) -> int:
    """Bytes of a size such as "32768K"; 0 for anything else."""
    match = re.fullmatch(r"([0-9]{1,12})([KMG]?)", text)
    return int(match[1]) * _UNITS[match[2]] if match else 0
