"""RAM, swap, huge pages and the process's own limits."""

import os
import re

from kt_core.machine.cgroup import Limits
from kt_core.machine.sysfiles import Tree, whole
from kt_core.types import HugePages, Node

_HUGE = "/sys/kernel/mm/hugepages"


def read_memory(tree: Tree, groups: Limits, nodes: dict[int, Node]) -> tuple[dict[str, int], int, int]:
    """(limits by name, available bytes, swap bytes). Nodes that are a GPU's memory are no RAM."""
    fields = meminfo(tree.text("/proc/meminfo") or "")
    total, available = fields.get("MemTotal", 0), fields.get("MemAvailable", reclaimable(fields))
    graphics = [node for node in nodes.values() if node.kind == "gpu"]
    total = max(0, total - sum(node.memory for node in graphics))
    available = min(total, max(0, available - sum(node.available for node in graphics)))
    if not total and tree.live:
        total = available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits, left = {}, []
    if total:
        limits["ram"] = total
        left.append(available)
    else:
        tree.note("machine.no_meminfo")
    if groups.memory is not None and groups.available is not None:
        limits["cgroup"] = groups.memory
        left.append(groups.available)
    filled = [node for node in nodes.values() if node.memory and node.kind != "gpu"]
    inside = [node for node in filled if node.usable]
    if 0 < len(inside) < len(filled):
        limits["nodes"] = sum(node.memory for node in inside)
        left.append(sum(node.available for node in inside))
    return limits, min(left, default=0), fields.get("SwapTotal", 0)


def read_hugepages(tree: Tree) -> HugePages:
    chosen = re.search(r"\[(\w+)\]", tree.text("/sys/kernel/mm/transparent_hugepage/enabled", 256) or "")
    pools = {}
    for name in tree.names(_HUGE):
        match = re.fullmatch(r"hugepages-([0-9]{1,9})kB", name)
        counts = [tree.number(f"{_HUGE}/{name}/{file}_hugepages") for file in ("nr", "free")] if match else []
        if match and counts[0] is not None and counts[0] >= 0:
            pools[int(match[1]) << 10] = (counts[0], max(0, counts[1] or 0))
    return HugePages(chosen[1] if chosen else "", pools)


def read_process_limit(tree: Tree, name: str) -> int | None:
    """The soft limit called `name` in /proc/self/limits; None when there is none or it is not said."""
    match = re.search(rf"(?m)^{name} +([0-9]+) ", tree.text("/proc/self/limits", 1 << 14) or "")
    return whole(match[1]) if match else None


def meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo or a node's in bytes; lines that are not numbers are left out."""
    found = {}
    for match in re.finditer(r"(?m)^(?:Node +[0-9]+ +)?([\w()]+): +([0-9]{1,15})(?: kB)?$", text):
        found[match[1]] = int(match[2]) << 10
    return found


def reclaimable(fields: dict[str, int]) -> int:
    """Free bytes and file cache, where the kernel does not sum them up itself (nodes; before 3.14)."""
    files = fields.get("Active(file)", 0) + fields.get("Inactive(file)", 0)
    if not files:
        files = fields.get("Buffers", 0) + fields.get("Cached", 0) - fields.get("Shmem", 0)
    return fields.get("MemFree", 0) + max(0, files) + fields.get("SReclaimable", 0)
