"""NUMA nodes, and from which of them the process may take memory."""

import re

from kt_core.machine.cgroup import Limits
from kt_core.machine.memory import meminfo, reclaimable
from kt_core.machine.sysfiles import Tree, parse_list, whole
from kt_core.machine.topology import status_field
from kt_core.types import Node

_NODES = "/sys/devices/system/node"
_POLICY = re.compile(r"(default|local|prefer(?: \(many\)|red)?|bind|(?:weighted )?interleave)(?:[:=][^ ]*)?")


def node_cpus(tree: Tree, online: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """NUMA node -> its online CPUs; one node 0 when nothing is known.

    A CPU counts for the first node that lists it: firmware has been seen that gives every node all CPUs. A CPU that
    no node lists (its node's memory is switched off) joins the first node with CPUs.
    """
    cpus = {}
    left = set(online)
    for node, folder in tree.folders(_NODES, "node").items():
        own = _listed(tree, folder)
        cpus[node] = tuple(cpu for cpu in own if cpu in left)
        left.difference_update(own)
    first = next((node for node, own in cpus.items() if own), None)
    if first is None:
        return {0: online}
    if left:
        tree.note("machine.no_node", cpus=", ".join(map(str, sorted(left))), node=first)
        cpus[first] = tuple(sorted({*cpus[first], *left}))
    return cpus


def read_nodes(tree: Tree, online: tuple[int, ...], groups: Limits, policy: str) -> dict[int, Node]:
    """Every NUMA node, by id."""
    cpus = node_cpus(tree, online)
    usable = _usable(tree, groups, policy)
    graphics = _gpu_nodes(tree)
    nodes = {}
    for node in cpus:
        folder = f"{_NODES}/node{node}"
        fields = meminfo(tree.text(f"{folder}/meminfo") or "")
        kind = "cpu" if cpus[node] else "gpu" if node in graphics else "memory"
        nodes[node] = Node(
            cpus=cpus[node],
            memory=fields.get("MemTotal", 0),
            available=reclaimable(fields),
            distances=_distances(tree, folder, list(cpus)),
            kind=kind,
            usable=kind != "gpu" and (usable is None or node in usable),
        )
    return nodes


def _listed(tree: Tree, folder: str) -> tuple[int, ...]:
    """By the node's list, else its mask, else the links to it in the CPUs' folders."""
    found = tree.cpus(f"{folder}/cpulist", f"{folder}/cpumap")
    return tuple(tree.folders(folder, "cpu")) if found is None else found


def _distances(tree: Tree, folder: str, nodes: list[int]) -> dict[int, int]:
    """Node -> distance; the file has one figure for each online node, in the order of their ids."""
    words = (tree.text(f"{folder}/distance", 1 << 16) or "").split()
    figures = [figure for word in words if (figure := whole(word)) is not None and 0 < figure < 256]
    return dict(zip(nodes, figures, strict=True)) if len(figures) == len(words) == len(nodes) else {}


def _gpu_nodes(tree: Tree) -> set[int]:
    """Nodes that are a GPU's memory, by the NVIDIA driver's own list."""
    found = set()
    folder = "/proc/driver/nvidia/gpus"
    for name in tree.names(folder):
        match = re.search(r"(?m)^Node:\s*([0-9]{1,5})$", tree.text(f"{folder}/{name}/numa_status", 4096) or "")
        found |= {int(match[1])} if match else set()
    return found


def _usable(tree: Tree, groups: Limits, policy: str) -> set[int] | None:
    """Nodes that the process may take memory from: cpuset, allowed list, and a policy that binds. None: all."""
    sets = [] if groups.nodes is None else [groups.nodes]
    for text in (status_field(tree, "Mems_allowed_list"), policy[5:] if policy.startswith("bind:") else None):
        try:
            sets += [] if text is None else [parse_list(text)]
        except ValueError:
            tree.note("machine.bad_list", path="/proc/self/status", text=(text or "")[:60])
    sets = [one for one in sets if one]
    return set.intersection(*map(set, sets)) if sets else None


def read_policy(tree: Tree) -> str:
    """The memory policy that the process inherited, as the kernel prints it for memory that has none of its own."""
    line = (tree.text("/proc/self/numa_maps", 4096) or "").partition("\n")[0]
    match = _POLICY.search(line.partition(" ")[2])
    return match[0].replace("=", ":") if match else "default"
