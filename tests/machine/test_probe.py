"""The probe on fixture trees, and the default thread count with the limit that decided it."""

import os
from pathlib import Path

import pytest
import trees
from trees import GIB

from kt_core.machine import default_threads, probe, profile
from kt_core.machine.sysfiles import parse_list, parse_mask
from kt_core.types import Machine, MachineProfile


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KT_LANG", "en")


def threads(machine: Machine) -> tuple[int, str]:
    count, decision = default_threads(machine)
    assert decision.value == count and decision.name == "threads"
    return count, decision.reason


def by_node(machine: Machine) -> dict[int, tuple[int, ...]]:
    return {number: node.cpus for number, node in machine.numa_nodes.items()}


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("250000 100000", 2), ("400000 100000", 4), ("765000 100000", 7), ("50000 100000", 1), ("max 100000", 8)],
)
def test_cgroup_v2_quota(tmp_path: Path, quota: str, expected: int) -> None:
    root = trees.machine(tmp_path, trees.smt(8), sys__fs__cgroup__cpu_max=quota)
    (root / "sys/fs/cgroup/cpu_max").rename(root / "sys/fs/cgroup/cpu.max")
    count, reason = threads(probe(root))
    assert count == expected
    assert ("quota" in reason) == (expected < 8)


def test_cgroup_v2_nested_group_and_its_parents(tmp_path: Path) -> None:
    root = trees.machine(tmp_path, trees.single(16))
    group = "sys/fs/cgroup/kube/pod/app"
    trees.write(
        root,
        {
            "proc/self/cgroup": "0::/kube/pod/app\n",
            f"{group}/cpu.max": "max 100000",
            "sys/fs/cgroup/kube/pod/cpu.max": "300000 100000",
            f"{group}/memory.max": "max",
            "sys/fs/cgroup/kube/memory.max": str(4 * GIB),
            "sys/fs/cgroup/kube/memory.current": str(GIB),
            "sys/fs/cgroup/kube/memory.stat": "anon 5\n",
        },
    )
    machine = probe(root)
    assert threads(machine)[0] == 3
    assert machine.memory_total == 4 * GIB and machine.memory_available == 3 * GIB


def test_cgroup_v1(tmp_path: Path) -> None:
    root = trees.machine(tmp_path, trees.single(8), gib=64, free=60)
    trees.write(
        root,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n",
            "proc/self/mounts": "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "350000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(8 * GIB),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(6 * GIB),
            "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {3 * GIB}\ntotal_active_file {GIB}\n",
        },
    )
    machine = probe(root)
    assert machine.limits["quota"] == 3.5 and threads(machine)[0] == 3
    assert machine.memory_total == 8 * GIB and machine.memory_available == 6 * GIB


def test_unlimited_cgroup_v1_is_no_limit(tmp_path: Path) -> None:
    root = trees.machine(tmp_path, trees.single(2))
    trees.write(
        root,
        {
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
    )
    machine = probe(root)
    assert "quota" not in machine.limits and machine.memory_total == 16 * GIB


def test_file_cache_of_the_group_counts_as_available(tmp_path: Path) -> None:
    root = trees.machine(tmp_path, trees.single(4), gib=128, free=100)
    trees.write(
        root,
        {
            "sys/fs/cgroup/memory.max": str(32 * GIB),
            "sys/fs/cgroup/memory.current": str(30 * GIB),
            "sys/fs/cgroup/memory.stat": f"anon {5 * GIB}\nfile {25 * GIB}\ninactive_file {25 * GIB}\n",
        },
    )
    assert probe(root).memory_available == 27 * GIB


def test_hybrid_without_smt_gets_its_performance_cores(tmp_path: Path) -> None:
    root = trees.machine(tmp_path, trees.single(20))
    trees.write(root, {"sys/devices/cpu_core/cpus": "0-7", "sys/devices/cpu_atom/cpus": "8-19"})
    count, reason = threads(probe(root))
    assert count == 8 and "performance" in reason


def test_hybrid_by_capacity_on_arm(tmp_path: Path) -> None:
    root = trees.machine(tmp_path, trees.single(8))
    capacities = {f"sys/devices/system/cpu/cpu{i}/cpu_capacity": "1024" if i > 3 else "400" for i in range(8)}
    assert threads(probe(trees.write(root, capacities)))[0] == 4


def test_smt_counts_cores_once(tmp_path: Path) -> None:
    machine = probe(trees.machine(tmp_path, trees.smt(15)))
    assert machine.logical_cpus == 30 and machine.physical_cores == 15
    assert threads(machine)[0] == 15


def test_affinity_narrower_than_the_machine(tmp_path: Path) -> None:
    root = trees.machine(tmp_path, trees.smt(8))
    trees.write(root, {"proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-1,8-9\n"})
    machine = probe(root)
    assert machine.allowed_cpus == (0, 1, 8, 9)
    assert threads(machine)[0] == 2 and machine.physical_cores == 8


def test_eight_nodes_gaps_and_a_node_of_memory_only(tmp_path: Path) -> None:
    root = trees.machine(tmp_path, trees.single(16))
    lists = {n: f"{n}-{n + 1}" if n % 2 == 0 else "" for n in range(0, 16, 2)} | {33: "", 250: ""}
    machine = probe(trees.write(root, trees.nodes(lists)))
    assert by_node(machine) == {n: (n, n + 1) for n in range(0, 16, 2)} | {33: (), 250: ()}


def test_interleaved_ranges_and_offline_cpus(tmp_path: Path) -> None:
    groups = [[i, i + 64] for i in range(64) if i != 5]
    root = trees.machine(tmp_path, groups)
    machine = probe(trees.write(root, trees.nodes({0: "0-31,64-95", 1: "32-63,96-127"})))
    assert by_node(machine)[0] == tuple(c for c in (*range(32), *range(64, 96)) if c not in (5, 69))
    assert threads(machine)[0] == 63


def test_every_node_listing_every_cpu_counts_each_once(tmp_path: Path) -> None:
    root = trees.machine(tmp_path, trees.single(4))
    machine = probe(trees.write(root, trees.nodes({0: "0-3", 1: "0-3"})))
    assert by_node(machine) == {0: (0, 1, 2, 3), 1: ()}


def test_old_kernel_with_masks_only(tmp_path: Path) -> None:
    root = trees.write(
        tmp_path,
        {
            "proc/cpuinfo": trees.x86_cpuinfo(36),
            "sys/devices/system/node/node0/cpumap": "f,ffffffff\n",
        }
        | {
            f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings": f"{3 << i // 2 * 2 & 0xFFFFFFFF:x}"
            for i in range(32)
        }
        | {
            f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings": f"{3 << (i - 32) // 2 * 2:x},00000000"
            for i in range(32, 36)
        },
    )
    machine = probe(root)
    assert machine.physical_cores == 18 and by_node(machine) == {0: tuple(range(36))}


@pytest.mark.parametrize(
    "cpuinfo",
    [
        "",
        "\0\1\2 no colon",
        "processor\t: many\ncpu cores\t: -\nphysical id\t: ?\nflags\t:\n",
        "处理器\t: 甲\n型号名称：乙\n",
        "Architecture: x86_64\nCPU(s): 8\n",
        "processor: 0\ncore id: 99999999999999999999\nphysical id: x\n",
    ],
)
def test_junk_cpuinfo_never_stops_the_probe(tmp_path: Path, cpuinfo: str) -> None:
    machine = probe(trees.write(tmp_path, {"proc/cpuinfo": cpuinfo}))
    assert machine.logical_cpus >= 1 and threads(machine)[0] >= 1


def test_junk_everywhere_else(tmp_path: Path) -> None:
    root = trees.machine(tmp_path, trees.single(4))
    trees.write(
        root,
        {
            "sys/devices/system/cpu/online": "0-99999999999",
            "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "3-1",
            "sys/devices/system/node/node0/cpulist": "zero",
            "proc/meminfo": "MemTotal: lots\nMemAvailable:\n",
            "proc/self/cgroup": "::\n0\n0::/../../etc\n",
            "proc/self/mounts": "cgroup\n",
            "sys/fs/cgroup/cpu.max": "many 0",
            "sys/fs/cgroup/memory.max": "-5",
        },
    )
    machine = probe(root)
    assert machine.logical_cpus == 4 and machine.notes


def test_nothing_at_all(tmp_path: Path) -> None:
    machine = probe(tmp_path)
    assert threads(machine)[0] == 1 and machine.memory_total == 0
    assert len(machine.notes) == 3 and machine.gpus == ()


def test_arm_layout(tmp_path: Path) -> None:
    block = "processor\t: {}\nFeatures\t: fp asimd asimddp i8mm\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
    machine = probe(trees.write(tmp_path, {"proc/cpuinfo": "\n".join(block.format(i) for i in range(4))}))
    assert machine.architecture == "aarch64" and machine.logical_cpus == 4
    assert machine.features == ("asimd", "asimddp", "i8mm")


def test_a_feature_counts_only_when_every_cpu_has_it(tmp_path: Path) -> None:
    text = trees.x86_cpuinfo(1, "lm avx2 avx512f") + "\n" + trees.x86_cpuinfo(1, "lm avx2").replace(": 0", ": 1")
    machine = probe(trees.write(tmp_path, {"proc/cpuinfo": text}))
    assert machine.features == ("avx2",) and machine.architecture == "x86_64"


def test_this_machine() -> None:
    machine = probe()
    assert set(machine.allowed_cpus) == os.sched_getaffinity(0)
    assert 1 <= machine.physical_cores <= machine.logical_cpus
    assert 0 < machine.memory_available <= machine.memory_total
    assert 1 <= threads(machine)[0] <= len(machine.allowed_cpus)


@pytest.mark.parametrize("script", ["exit 9", "echo broken >&2; exit 1", "sleep 20", "echo junk"])
def test_failing_nvidia_smi_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("kt_core.machine.gpu.TIMEOUT_SECONDS", 0.5)
    machine = probe()
    assert machine.gpus == ()
    assert script == "echo junk" or any("nvidia-smi" in note for note in machine.notes)


def test_lists_and_masks() -> None:
    assert parse_list("0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert parse_list("") == ()
    assert parse_mask("1,80000001") == (0, 31, 32)
    for bad in ("a", "3-1", "-1", "1-", "0-70000"):
        with pytest.raises(ValueError):
            parse_list(bad)
    for bad in ("", "g", "1ffffffff", "-1"):
        with pytest.raises(ValueError):
            parse_mask(bad)


def test_last_level_caches_are_counted_once(tmp_path: Path) -> None:
    """Two complexes of two CPUs with 32 MiB each, as on chips of several dies."""
    root = trees.machine(tmp_path, trees.single(4))
    for cpu, pair in ((0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")):
        trees.write(root, trees.cache(cpu, 0, 1, "32K", str(cpu), "Data"))
        trees.write(root, trees.cache(cpu, 1, 1, "64M", str(cpu), "Instruction"))
        trees.write(root, trees.cache(cpu, 2, 2, "1024K", str(cpu)) | trees.cache(cpu, 3, 3, "32768K", pair))
    assert probe(root).last_level_cache == 64 << 20
    trees.write(root, {"proc/self/status": "Cpus_allowed_list:\t1,0\n"})
    assert probe(root).last_level_cache == 32 << 20


def test_an_unknown_cache_is_zero(tmp_path: Path) -> None:
    root = trees.machine(tmp_path, trees.single(1))
    assert probe(root).last_level_cache == 0
    trees.write(root, trees.cache(0, 0, 3, "a lot", "0") | trees.cache(0, 1, 3, "", "0"))
    assert probe(root).last_level_cache == 0


@pytest.mark.parametrize(("alone", "together", "told"), [
    (0.62e12, 5.0e12, 2), (0.35e12, 5.0e12, 1), (0.48e12, 5.0e12, None), (465e9, 5.0e12, None), (0, 1e12, None),
])  # fmt: skip
def test_cores_that_a_virtual_machine_hides(alone: float, together: float, told: int | None) -> None:
    """16 CPUs that reach what 8 cores can, beside 16 that hold their clock."""
    measured = MachineProfile({}, 1.0, {}, {"int8": {1: alone, 16: together}}, {})
    assert profile.threads_a_core(measured, 16) == told
    assert profile.threads_a_core(measured, 8) is None
