"""What the control groups (v1 and v2) that the process is in leave to it: CPUs, a CPU quota, memory and its nodes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from kt_core.machine.sysfiles import Tree, whole

_UNLIMITED = 1 << 60  # v1 writes "no limit" as the largest page-aligned number
# File pages that the kernel drops when memory is needed; v1 has the totals with children under these names
_RECLAIMABLE = (("total_inactive_file", "total_active_file"), ("inactive_file", "active_file"))
# Above memory.high a process is slowed down until it stands still: for a plan that is a limit like the others.
_MEMORY_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
# Effective sets first: the plain ones of v1 may be wider, and those of v2 are empty where they are inherited.
_CPUSET = ("cpuset.{}.effective", "cpuset.effective_{}", "cpuset.{}", "{}")
_CONTROLLERS = ("cpu", "memory", "cpuset")


@dataclass(frozen=True)
class Limits:
    """quota: CPU seconds per second; memory: bytes; available: bytes left, file cache counted as free; cpus and nodes:
    ids of the cpuset. None: no limit."""

    quota: float | None = None
    memory: int | None = None
    available: int | None = None
    cpus: tuple[int, ...] | None = None
    nodes: tuple[int, ...] | None = None


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
        quota=min(quotas, default=None),
        memory=min((limit for limit, _ in memory), default=None),
        available=max(0, min(left for _, left in memory)) if memory else None,
        cpus=_cpuset(tree, groups, "cpus"),
        nodes=_cpuset(tree, groups, "mems"),
    )


def _memberships(tree: Tree) -> dict[str, str]:
    """Controller -> the process's group; the key "" is the v2 hierarchy."""
    groups = {"": "/", "cpu": "/", "memory": "/", "cpuset": tree.text("/proc/self/cpuset", 4096) or "/"}
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
        if len(fields) < 4:
            continue
        old = (fields[2] == "cgroup" and kind in fields[3].split(",")) or (fields[2], kind) == ("cpuset", "cpuset")
        if old if kind else fields[2] == "cgroup2":
            found.append(fields[1])
    usual = [f"/sys/fs/cgroup/{kind}"] if kind else ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
    return list(dict.fromkeys(found + usual))


def _levels(tree: Tree, groups: dict[str, str], kind: str) -> Iterator[str]:
    """The group's folder and its ancestors'. In a container the path is often the host's: then the mount itself."""
    path = PurePosixPath("/", groups[kind].lstrip("/"))
    for mount in _mounts(tree, kind):
        if ".." not in path.parts and tree.has(f"{mount}{path}"):
            yield from (f"{mount}{level}" for level in (path, *path.parents))
        else:
            yield mount


def _cpuset(tree: Tree, groups: dict[str, str], what: str) -> tuple[int, ...] | None:
    """The set of the nearest level that has one, "cpus" or "mems"; a v1 hierarchy comes before v2."""
    v2 = groups | {"": groups[""] if groups[""] != "/" else groups["cpuset"]}
    for kind, memberships in (("cpuset", groups), ("", v2)):
        for folder in _levels(tree, memberships, kind):
            for name in _CPUSET:
                if found := tree.cpus(f"{folder}/{name.format(what)}"):
                    return found
    return None


def _quota(tree: Tree, folder: str) -> float | None:
    """CPUs of cpu.max ("400000 100000", "max ...") or of v1's two files."""
    words = (tree.text(f"{folder}/cpu.max", 256) or "").split()
    if not words:
        words = [tree.text(f"{folder}/cpu.cfs_{name}_us", 64) or "" for name in ("quota", "period")]
    quota, period = (whole(word) or 0 for word in (*words, "", "")[:2])
    return quota / period if quota > 0 and period > 0 else None


def _memory_limit(tree: Tree, folder: str) -> int | None:
    found = (tree.number(f"{folder}/{name}") for name in _MEMORY_LIMITS)
    return min((limit for limit in found if limit is not None and 0 < limit < _UNLIMITED), default=None)


def _unreclaimable(tree: Tree, folder: str) -> int | None:
    """Bytes in use without the file cache, which the kernel gives back; 0 when the use cannot be read."""
    used = tree.number(f"{folder}/memory.current")
    if used is None:
        used = tree.number(f"{folder}/memory.usage_in_bytes") or 0
    lines = (line.split() for line in (tree.text(f"{folder}/memory.stat") or "").splitlines())
    stat = {words[0]: whole(words[1]) or 0 for words in lines if len(words) == 2}
    names = next((n for n in _RECLAIMABLE if n[0] in stat), ())
    return max(0, used - sum(stat.get(name, 0) for name in names))
