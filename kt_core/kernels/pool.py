"""Pools of worker threads: the process's own, and others for users who need their own number of threads."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict
from weakref import WeakValueDictionary

from kt_core.kernels.native import load
from kt_core.machine.numa import node_cpus
from kt_core.machine.sysfiles import Tree

MAX_THREADS = 4096  # more than any machine has; each one takes a stack


class _Threads(TypedDict):
    threads: int


class Group(_Threads, total=False):
    """Threads of one NUMA node. `cpus`: those that the threads may run on, one for each where there are as many.

    Weights that the group multiplies lie in the memory of `node`, or, without it, of the node that loads them.
    """

    cpus: Sequence[int] | None
    node: int | None


class Pool:
    """Worker threads in groups, one group for each NUMA node that is used; the caller is the first of them.

    Layers share their weights' rows out over the groups; results are the same bits for any groups. Where the
    system refuses to pin, to bind memory or to start a thread, the pool goes on without and info()["note"] says so.
    Raises ValueError for no group or too many, a group without threads, more than MAX_THREADS, or an impossible CPU.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self.native = load().Pool(_plain(groups))

    def info(self) -> dict[str, Any]:
        """threads and cpus: of all groups; groups: as asked for; note: what the system refused, empty for nothing."""
        settings: dict[str, Any] = self.native.info()
        return settings

    def read_rate(self, nbytes: int, repeats: int = 5) -> float:
        """Bytes per second that the threads read from memory, best of `repeats`: the ceiling of decoding."""
        return _best_rate(self.native, nbytes, repeats)


def native_pool(pool: Pool | None) -> Any:
    """What the extension takes: None is the process's own pool."""
    if pool is not None and not isinstance(pool, Pool):
        raise TypeError(f"expected a Pool or None, got {type(pool).__name__}")
    return None if pool is None else pool.native


def set_pools(groups: Sequence[Group]) -> None:
    """Let the process's own pool have these groups. Layers that are loaded later spread over them.

    Raises what Pool raises.
    """
    load().default_pool().resize(_plain(groups))


def set_threads(n: int, cpus: Sequence[int] | None = None) -> None:
    """One group of n threads, the caller included, each pinned to its entry of cpus when given.

    Raises ValueError for a cpus list of another length, and what Pool raises.
    """
    if cpus and len(cpus) != n:
        raise ValueError(f"expected one CPU for each of {n} threads, got {len(cpus)}")
    set_pools([{"threads": n, "cpus": cpus}])


def read_rate(nbytes: int, repeats: int = 5) -> float:
    """Pool.read_rate of the process's own pool."""
    return _best_rate(None, nbytes, repeats)


def _best_rate(native: Any, nbytes: int, repeats: int) -> float:
    probe = load().ReadProbe(nbytes, native)
    return float(max(probe.rate() for _ in range(repeats)))


def _plain(groups: Sequence[Group]) -> list[tuple[int, list[int], int]]:
    total = sum(group["threads"] for group in groups)
    if not all(group["threads"] >= 1 for group in groups) or total > MAX_THREADS:
        raise ValueError(f"expected groups of at least 1 thread and {MAX_THREADS} in all, got {list(groups)}")
    plain = []
    for group in groups:
        node = group.get("node")
        plain.append((group["threads"], list(group.get("cpus") or ()), -1 if node is None else node))
    return plain


_shared: "WeakValueDictionary[tuple[object, ...], Pool]" = WeakValueDictionary()
_sharing = threading.Lock()


def shared_pool(groups: Sequence[Group]) -> Pool:
    """A pool of these groups, one for all who ask for the same: a pool for each layer would be too many threads.

    It lives as long as one of them keeps it. Raises what Pool raises.
    """
    key = tuple((threads, *cpus, node) for threads, cpus, node in _plain(groups))
    with _sharing:
        pool = _shared.get(key)
        if pool is None:
            pool = _shared[key] = Pool(groups)
        return pool


def thread_groups(threads: int, count: int = 1, nodes: Sequence[int] | None = None) -> list[Group]:
    """`threads` shared out over `count` groups, the first ones get what is left over; group i is on node nodes[i].

    Without nodes one group runs anywhere, and several on the first nodes of the machine where it has as many.
    Raises ValueError for fewer threads than groups, another number of nodes, or a node without CPUs for this process.
    """
    if not 1 <= count <= threads:
        raise ValueError(f"expected at least one thread for each of at least one group, got {threads} for {count}")
    shares = [threads // count + (i < threads % count) for i in range(count)]
    allowed = tuple(sorted(os.sched_getaffinity(0)))
    there = {node: cpus for node, cpus in node_cpus(Tree(Path("/")), allowed).items() if cpus}
    if nodes is None and (count == 1 or len(there) < count):
        return [{"threads": share} for share in shares]
    nodes = list(there)[:count] if nodes is None else nodes
    if len(nodes) != count or not set(nodes) <= there.keys():
        raise ValueError(f"expected {count} of the NUMA nodes {list(there)}, got {list(nodes)}")
    return [{"threads": share, "cpus": there[node], "node": node} for share, node in zip(shares, nodes, strict=True)]
