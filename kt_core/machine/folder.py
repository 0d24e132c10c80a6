"""Room on the disk of a folder."""

import shutil
from pathlib import Path

import psutil

_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})


def free_bytes(folder: Path) -> int:
    """Bytes that may be written below `folder`, which need not be there yet; 0 where its files would lie in memory, or
    nothing can be found out."""
    try:
        folder = folder.absolute()
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        folder = folder.resolve()
        mounts = [m for m in psutil.disk_partitions(all=True) if folder.is_relative_to(m.mountpoint)]
        kind = max(mounts, key=lambda m: len(m.mountpoint)).fstype if mounts else ""
        return 0 if kind in _IN_MEMORY else shutil.disk_usage(folder).free
    except OSError:
        return 0
