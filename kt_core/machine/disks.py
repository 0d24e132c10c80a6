"""The disks, as /sys/block has them."""

import re

from kt_core.machine.sysfiles import Tree
from kt_core.types import Disk

_NO_DISK = re.compile(r"(loop|ram|zram|dm-|md|sr|fd|nbd|zd)[0-9]+")
_VIRTUAL = re.compile(r"(vd|xvd)[a-z]+")
_SECTOR = 512  # bytes, whatever the disk's own sectors are


def read_disks(tree: Tree) -> tuple[Disk, ...]:
    """Disks with a size, by name; what lies on other disks (loop, RAID, mapped) is left out."""
    found = []
    for name in tree.names("/sys/block"):
        folder = f"/sys/block/{name}"
        sectors = tree.number(f"{folder}/size") or 0
        if sectors > 0 and not _NO_DISK.fullmatch(name):
            model = (tree.text(f"{folder}/device/model", 256) or "").strip()
            found.append(Disk(name, _kind(tree, name, model), sectors * _SECTOR, model))
    return tuple(found)


def _kind(tree: Tree, name: str, model: str) -> str:
    if _VIRTUAL.fullmatch(name) or re.search(r"(?i)virtual|qemu|msft|vmware", model):
        return "virtual"
    if name.startswith("nvme"):
        return "nvme"
    return "ssd" if tree.number(f"/sys/block/{name}/queue/rotational") == 0 else "hdd"
