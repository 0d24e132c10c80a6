"""The probe on machines of many kinds: each field that a description expects."""

import os
import re
import tarfile
from pathlib import Path
from typing import Any

import boxes
import pytest
from machines import MACHINES

from kt_core.machine import deciding_limit, default_threads, memory_decision, probe
from kt_core.types import Gpu, Machine


def shown(gpu: Gpu) -> str:
    link = f"pcie {gpu.pcie_generation} x{gpu.pcie_lanes}"
    return f"{gpu.kind} {gpu.name} {gpu.capability} node {gpu.node} {link} {gpu.memory / 2**30:.2f} GiB"


def found(machine: Machine) -> dict[str, Any]:
    """Fields of the machine, and figures taken from them."""
    nodes = machine.numa_nodes
    smallest = min(machine.memory_limits, key=lambda name: machine.memory_limits[name], default="")
    return vars(machine) | {
        "threads": default_threads(machine)[0],
        "decides": deciding_limit(machine)[0],
        "decides_memory": smallest,
        "cores": machine.physical_cores,
        "allowed": list(machine.allowed_cpus),
        "node_cpus": [len(node.cpus) for node in nodes.values()],
        "node_gib": [node.memory / 2**30 for node in nodes.values()],
        "kinds": [node.kind for node in nodes.values()],
        "usable_nodes": [number for number, node in nodes.items() if node.usable],
        "distances": next(iter(nodes.values())).distances,
        "memory_gib": machine.memory_total / 2**30,
        "available_gib": machine.memory_available / 2**30,
        "limits_of_memory": list(machine.memory_limits),
        "gpus": [shown(gpu) for gpu in machine.gpus],
        "disks": [(disk.name, disk.kind, disk.bytes) for disk in machine.disks],
        "huge": (machine.hugepages.transparent, machine.hugepages.pools),
        "notes": len(machine.notes),
    }


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_is_read_right(name: str, tmp_path: Path) -> None:
    box, expected = MACHINES[name]
    machine = probe(boxes.build(tmp_path, box))
    figures = found(machine)
    special = {"has", "has_not", "noted"}
    assert {key: figures[key] for key in expected.keys() - special} == {
        key: value for key, value in expected.items() if key not in special
    }
    assert expected.get("has", set()) <= set(machine.features)
    assert not expected.get("has_not", set()) & set(machine.features)
    assert expected.get("noted", "") in " ".join(machine.notes)
    holds_together(machine)


def holds_together(machine: Machine) -> None:
    """What is true of every machine, however odd its files."""
    allowed = set(machine.allowed_cpus)
    homes = [cpu for node in machine.numa_nodes.values() for cpu in node.cpus]
    assert len(homes) == len(set(homes)) and allowed and allowed <= set(homes)
    assert sorted(cpu for core in machine.cores for cpu in core) == sorted(allowed)
    assert set(machine.fast_cores) <= set(machine.cores) and machine.fast_cores
    assert 1 <= default_threads(machine)[0] <= len(allowed) <= machine.logical_cpus
    assert 1 <= machine.physical_cores <= machine.logical_cpus and machine.sockets >= 1
    assert min(machine.memory_available, machine.memory_total) >= 0
    assert default_threads(machine)[1].reason and memory_decision(machine).reason
    assert machine.smt in ("on", "off", "none", "unknown")


READ = (
    r"^proc/(cpuinfo|meminfo|mounts|version|self/|driver/)|^dev/cpuset/[^/]*$|^dev/cpuset/(torque/513099|dummy|prout)|^cgroup/"
    r"|^sys/(fs/|kernel/|block/|class/dmi|devices/cpu_|devices/system/cpu/[^/]*$)|/(topology|cache)/|/cpu\d+/(online|cpu_capacity)$"
    r"|/highest_perf$|/node\d+/(cpulist|cpumap|meminfo|distance|cpu\d+)$|^sys/devices/system/node/[^/]*$|^sys/bus/pci/devices/|/block/"
)


# ---- trees taken on real machines (archives such as hwloc's tests have), which are not ours to hand on: where they are

REAL = Path(os.environ["KT_MACHINE_TREES"]) if "KT_MACHINE_TREES" in os.environ else None
REAL_EXPECTED: dict[str, dict[str, Any]] = {
    "128arm-2pa2n8cluster4co": {"threads": 128, "sockets": 2, "node_cpus": [32] * 4, "cpu_model": "Kunpeng-920",
                                "distances": {0: 10, 1: 16, 2: 32, 3: 33}, "last_level_cache": 128 << 20},
    "16amd64-8n2c-cpusets": {"threads": 10, "decides": "cpuset", "allowed": [0, 1, 2, 3, 5, 6, 12, 13, 14, 15],
                             "usable_nodes": [1, 2, 3, 4], "memory_gib": 32, "logical_cpus": 15, "sockets": 8},
    "16em64t-4s2c2t-offlines": {"threads": 7, "logical_cpus": 12, "cores": 7, "sockets": 4, "node_cpus": [12]},
    "16em64t-4s2ca2c-cpusetreorder": {"threads": 11, "decides": "cpuset", "sockets": 4, "cores": 16},
    "20em64t-hybrid-1p6c2t+2ca4co1t": {"threads": 6, "decides": "fast_cores", "cores": 14, "logical_cpus": 20},
    "256ppc-8n8s4t": {"threads": 64, "node_cpus": [32] * 8, "sockets": 8, "architecture": "ppc64"},
    "2arm-2c": {"threads": 2, "architecture": "arm"},
    "2i386-2c-nohugepage": {"threads": 2, "huge": ("", {}), "last_level_cache": 4 << 20},
    "32amd64-4s2n4c-cgroup2": {"threads": 6, "decides": "cpuset", "usable_nodes": [0, 1, 2, 3, 4, 5], "sockets": 4,
                               "decides_memory": "nodes", "huge": ("", {2 << 20: (513, 513)})},
    "40intel64-2g2n4c+pcilocality": {"threads": 40, "node_cpus": [10] * 4, "sockets": 4, "gpus": [],
                                     "disks": [("sda", "hdd", 1798651772928)]},
    "48amd64-4pa2n6c-sparse": {"threads": 48, "node_cpus": [6] * 8, "sockets": 4,
                               "usable_nodes": [0, 1, 2, 33, 34, 45, 72, 73]},
    "64amd64-4s2n4ca2co": {"threads": 32, "node_cpus": [8] * 8, "sockets": 4, "smt": "on", "cores": 32},
    "8em64t-2s2ca2c-buggynuma": {"threads": 8, "node_cpus": [8] + [0] * 7, "sockets": 2},
    "96em64t-4no4pa3ca2co": {"threads": 96, "node_cpus": [24] * 4, "sockets": 16},
    "memorysidecaches": {"threads": 40, "node_cpus": [20] * 4, "sockets": 2, "generation": "cascade_lake",
                         "distances": {0: 10, 1: 21, 2: 11, 3: 21}},
    "nvidia-dgx-gb10": {"threads": 10, "cpu_model": "Cortex-X925 + Cortex-A725", "decides": "fast_cores"},
    "nvidiagpunumanodes": {"threads": 4, "allowed": list(range(16)), "kinds": ["cpu", "cpu"] + ["gpu"] * 6,
                           "usable_nodes": [0], "sockets": 2, "cores": 8},
    "offline-cpu0-node0": {"threads": 17, "node_cpus": [17], "notes": 1, "generation": "haswell"},
    "zen4-vm-2c": {"threads": 2, "smt": "unknown", "generation": "zen4", "surroundings": ("vm:unknown",)},
}  # fmt: skip

# Unpacking takes a second each, and the boxes above have what is odd about the others.
USUAL = ("16amd64-8n2c-cpusets", "16em64t-4s2c2t-offlines", "offline-cpu0-node0", "zen4-vm-2c")


@pytest.mark.skipif(REAL is None, reason="KT_MACHINE_TREES names no folder of real machines' trees")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.full] * (n not in USUAL)) for n in REAL_EXPECTED])
def test_a_real_machine_is_read_right(name: str, tmp_path: Path) -> None:
    assert REAL is not None
    with tarfile.open(REAL / f"{name}.tar.bz2") as archive:
        archive.extractall(tmp_path, [member for member in archive if _is_read(member.name)], filter="fully_trusted")
    machine = probe(next(tmp_path.iterdir()))
    figures = found(machine)
    assert {key: figures[key] for key in REAL_EXPECTED[name]} == REAL_EXPECTED[name]
    holds_together(machine)


@pytest.mark.skipif(REAL is None, reason="KT_MACHINE_TREES names no folder of real machines' trees")
def test_every_real_machine_has_its_expectations() -> None:
    assert REAL is not None
    assert {path.name.removesuffix(".tar.bz2") for path in REAL.glob("*.bz2")} == REAL_EXPECTED.keys()


def _is_read(name: str) -> bool:
    """Whether the probe may look at it: whole trees have ten thousand files more."""
    return re.search(READ, name.partition("/")[2]) is not None
