"""CPU quota and memory limit of the control groups (v1 and v2) that the process is in."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from kt_core.machine.sysfiles import Tree

_UNLIMITED = 1 << 60  # v1 writes "no limit" as the largest page-aligned number
# File pages that the kernel drops when memory is needed; v1 has the totals with children under these names
_RECLAIMABLE = (("total_inactive_file", "total_active_file"), ("inactive_file", "active_file"))


@dataclass(frozen=True)
class Limits:
    """cpus: CPU seconds per second; memory: bytes; available: bytes left, file cache counted as free. None: no limit."""

    cpus: float | None = None
    memory: int | None = None
    available: int | None = None


def read_limits(tree: Tree) -> Limits:
    """The tightest limit over all levels of the groups."""
    groups = _memberships(tree)
    quotas = [q for kind in ("cpu", "") for folder in _levels(tree, groups, kind) if (q := _quota(tree, folder))]
    memory = [
        (limit, limit - used)
        for kind in ("memory", "")
        for folder in _levels(tree, groups, kind)
        if (limit := _memory_limit(tree, folder)) is not None and (used := _unreclaimable(tree, folder)) is not None
    ]
    return Limits(
        cpus=min(quotas, default=None),
        memory=min((limit for limit, _ in memory), default=None),
        available=max(0, min(left for _, left in memory)) if memory else None,
    )


def _memberships(tree: Tree) -> dict[str, str]:
    """Controller -> the process's group; the key "" is the v2 hierarchy."""
    groups = {"": "/", "cpu": "/", "memory": "/"}
    for line in (tree.text("/proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            groups[controller] = path or "/"
    return groups


def _mounts(tree: Tree, kind: str) -> list[str]:
    """Folders where the hierarchy may be mounted: those in the mount table, then the usual ones."""
    found = []
    for line in (tree.text("/proc/self/mounts") or tree.text("/proc/mounts") or "").splitlines():
        fields = line.split()
        wanted = ("cgroup", kind) if kind else ("cgroup2", "")
        if len(fields) >= 4 and fields[2] == wanted[0] and wanted[1] in ["", *fields[3].split(",")]:
            found.append(fields[1])
    usual = [f"/sys/fs/cgroup/{kind}"] if kind else ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
    return list(dict.fromkeys(found + usual))


def _levels(tree: Tree, groups: dict[str, str], kind: str) -> Iterator[str]:
    """The group's folder and its ancestors'. In a container the path is often the host's: then the mount itself."""
    path = PurePosixPath(groups[kind])
    for mount in _mounts(tree, kind):
        if ".." not in path.parts and (tree.root / f"{mount}{path}".lstrip("/")).is_dir():
            yield from (f"{mount}{level}" for level in (path, *path.parents))
        else:
            yield mount


def _quota(tree: Tree, folder: str) -> float | None:
    """CPUs of cpu.max ("400000 100000", "max ...") or of v1's two files."""
    words = (tree.text(f"{folder}/cpu.max") or "").split()
    if not words:
        words = [tree.text(f"{folder}/cpu.cfs_quota_us") or "", tree.text(f"{folder}/cpu.cfs_period_us") or ""]
    try:
        quota, period = int(words[0]), int(words[1])
    except (ValueError, IndexError):
        return None
    return quota / period if quota > 0 and period > 0 else None


def _memory_limit(tree: Tree, folder: str) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        limit = tree.number(f"{folder}/{name}")
        if limit is not None and 0 < limit < _UNLIMITED:
            return limit
    return None


def _unreclaimable(tree: Tree, folder: str) -> int | None:
    """Bytes in use without the file cache, which the kernel gives back; 0 when the use cannot be read."""
    used = tree.number(f"{folder}/memory.current")
    if used is None:
        used = tree.number(f"{folder}/memory.usage_in_bytes") or 0
    lines = (line.split() for line in (tree.text(f"{folder}/memory.stat") or "").splitlines())
    stat = {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdecimal()}
    names = next((n for n in _RECLAIMABLE if n[0] in stat), ())
    return max(0, used - sum(stat.get(name, 0) for name in names))
