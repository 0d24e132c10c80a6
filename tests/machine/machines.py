"""Machines of many kinds, each with what the probe must say. Written from data sheets and from what users report.

`expected` names fields of Machine, or one of the figures that `found` in test_machines.py takes from it.
"""

from typing import Any

from boxes import Box, Card, Cpu
from trees import GIB

SPR = ("GenuineIntel", 6, 143, 8)
GROUP = "sys/fs/cgroup"
WSL = "Linux version 6.6.87.2-microsoft-standard-WSL2 (root@439a258ad544) #1 SMP\n"
KVM = {"sys/class/dmi/id/sys_vendor": "QEMU\n", "sys/class/dmi/id/product_name": "Standard PC (Q35 + ICH9, 2009)\n"}
NO_TOPOLOGY = ("sys/devices", "sys/class")
AMX = {"amx_tile", "amx_int8", "amx_bf16"}


def x86(name: str, flags: str, family: int, model: int, stepping: int = 1, guest: bool = False) -> Cpu:
    vendor = "AuthenticAMD" if family > 20 else "GenuineIntel"
    return Cpu(name, flags, (vendor, family, model, stepping), guest)


def nvme(name: str, tib: float) -> dict[str, str]:
    folder = f"sys/block/{name}"
    return {
        f"{folder}/size": str(int(tib * 2**40) // 512),
        f"{folder}/queue/rotational": "0",
        f"{folder}/device/model": "X",
    }


GOLD = x86("Intel(R) Xeon(R) Gold 6454S", "sapphire", 6, 143, 8)
EPYC_9355 = x86("AMD EPYC 9355 32-Core Processor", "zen5", 26, 2)
RTX_4090 = Card("NVIDIA GeForce RTX 4090", 23.99)

MACHINES: dict[str, tuple[Box, dict[str, Any]]] = {
    "xeon-6454s-2s-4090": (
        Box(GOLD, 32, 2, gib=1024, l3=("61440K", 0), cards=(RTX_4090,), files=nvme("nvme0n1", 2)),
        {
            "threads": 64, "decides": "cores", "sockets": 2, "cores": 64, "logical_cpus": 128, "smt": "on",
            "generation": "sapphire_rapids", "has": AMX, "node_cpus": [64, 64], "memory_gib": 1024,
            "last_level_cache": 120 << 20, "gpus": ["cuda NVIDIA GeForce RTX 4090 8.9 node 0 pcie 4 x16 23.99 GiB"],
            "disks": [("nvme0n1", "nvme", 2 << 40)], "distances": {0: 10, 1: 21}, "notes": 0, "surroundings": (),
        },
    ),
    "xeon-8488c-2s-snc2-4090x2": (
        Box(x86("Intel(R) Xeon(R) Platinum 8488C", "sapphire", 6, 143, 8), 48, 2, nodes=2, gib=2048, cards=(
            RTX_4090, Card("NVIDIA GeForce RTX 4090", 23.99, address="0000:81:00.0", node=2, slot=3))),
        {"threads": 96, "node_cpus": [48] * 4, "distances": {0: 10, 1: 12, 2: 21, 3: 21}, "gpus": [
            "cuda NVIDIA GeForce RTX 4090 8.9 node 0 pcie 4 x16 23.99 GiB",
            "cuda NVIDIA GeForce RTX 4090 8.9 node 2 pcie 3 x16 23.99 GiB"]},
    ),
    "epyc-9355-2s-5090": (
        Box(EPYC_9355, 32, 2, gib=1024, l3=("32768K", 4), cards=(
            Card("NVIDIA GeForce RTX 5090", 31.84, generation=5, capability="12.0"),)),
        {"threads": 64, "generation": "zen5", "has": {"avx512_bf16", "avx_vnni"}, "has_not": AMX,
         "last_level_cache": 512 << 20, "gpus": ["cuda NVIDIA GeForce RTX 5090 12.0 node 0 pcie 5 x16 31.84 GiB"]},
    ),
    "epyc-9355-2s-nps4": (
        Box(EPYC_9355, 32, 2, nodes=4, gib=736, l3=("32768K", 4)),
        {"threads": 64, "node_cpus": [16] * 8, "node_gib": [92] * 8, "sockets": 2},
    ),
    "threadripper-5995wx-4gpu": (
        Box(x86("AMD Ryzen Threadripper PRO 5995WX 64-Cores", "avx2", 25, 8), 64, gib=256, l3=("32768K", 8), cards=tuple(
            Card("NVIDIA RTX PRO 6000 Blackwell", 95, address=f"0000:{bus}:00.0", generation=5, slot=4, capability="12.0")
            for bus in ("01", "21", "41", "61"))),
        {"threads": 64, "generation": "zen3", "has_not": {"avx512f"}, "node_cpus": [128],
         "gpus": ["cuda NVIDIA RTX PRO 6000 Blackwell 12.0 node 0 pcie 4 x16 95.00 GiB"] * 4},
    ),
    "xeon-w7-2495x-1s": (
        Box(x86("Intel(R) Xeon(R) w7-2495X", "sapphire", 6, 143, 8), 24, gib=256),
        {"threads": 24, "sockets": 1, "has": AMX, "node_cpus": [48]},
    ),
    "xeon-6960p-snc3": (
        Box(x86("Intel(R) Xeon(R) 6960P", "granite", 6, 173), 72, nodes=3, gib=1152),
        {"threads": 72, "generation": "granite_rapids", "has": {"amx_fp16"}, "node_cpus": [48] * 3, "node_gib": [384] * 3},
    ),
    "core-i9-7980xe": (
        Box(x86("Intel(R) Core(TM) i9-7980XE CPU @ 2.60GHz", "skylake", 6, 85, 4), 18, gib=128),
        {"threads": 18, "generation": "skylake_x", "has": {"avx512bw"}, "has_not": {"avx512_vnni"}},
    ),
    "haswell-laptop": (
        Box(x86("Intel(R) Core(TM) i7-4712HQ CPU @ 2.30GHz", "avx2", 6, 60, 3), 4, gib=16, l3=("6144K", 0)),
        {"threads": 4, "generation": "haswell", "last_level_cache": 6 << 20, "gpus": [], "memory_gib": 16},
    ),
    "alder-lake-12700k": (
        Box(x86("12th Gen Intel(R) Core(TM) i7-12700K", "avx_vnni", 6, 151, 2), 12, fast=8, numbering="beside", gib=64),
        {"threads": 8, "decides": "fast_cores", "cores": 12, "logical_cpus": 20, "generation": "alder_lake",
         "limits": {"online": 20, "affinity": 20, "cores": 12, "fast_cores": 8}},
    ),
    "arrow-lake-285k": (
        Box(x86("Intel(R) Core(TM) Ultra 9 285K", "avx_vnni", 6, 198, 2), 24, threads=1, fast=8, gib=96),
        {"threads": 8, "decides": "fast_cores", "smt": "none", "cores": 24},
    ),
    "raptor-lake-by-firmware": (  # an old kernel without lists of core types
        Box(x86("13th Gen Intel(R) Core(TM) i7-1370P", "avx_vnni", 6, 186, 2), 14, fast=6, numbering="beside",
            drop=("sys/devices/cpu_",), files={
            f"sys/devices/system/cpu/cpu{cpu}/acpi_cppc/highest_perf": "67" if cpu < 12 else "39" for cpu in range(20)}),
        {"threads": 6, "decides": "fast_cores"},
    ),
    "ryzen-7950x": (
        Box(x86("AMD Ryzen 9 7950X 16-Core Processor", "zen4", 25, 97, 2), 16, gib=96, l3=("32768K", 8), cards=(
            Card("NVIDIA GeForce RTX 3090", 24, capability="8.6"),), files={
            f"sys/devices/system/cpu/cpu{cpu}/acpi_cppc/highest_perf": str(231 - 5 * (cpu % 16)) for cpu in range(32)}),
        {"threads": 16, "decides": "cores", "generation": "zen4", "last_level_cache": 64 << 20},
    ),
    "ryzen-9950x": (
        Box(x86("AMD Ryzen 9 9950X 16-Core Processor", "zen5", 26, 68), 16, gib=96, l3=("32768K", 8)),
        {"threads": 16, "generation": "zen5", "has": {"avx512_bf16"}},
    ),
    "ryzen-ai-max-395": (
        Box(x86("AMD RYZEN AI MAX+ 395", "zen5", 26, 112), 16, gib=124, l3=("32768K", 8), cards=(
            Card("Radeon 8060S", 0.5, vendor="0x1002"),)),
        {"threads": 16, "gpus": [], "memory_gib": 124},
    ),
    "cascade-lake-4s": (
        Box(x86("Intel(R) Xeon(R) Platinum 8280 CPU @ 2.70GHz", "cascade", 6, 85, 7), 28, 4, gib=1536, l3=("39424K", 0)),
        {"threads": 112, "sockets": 4, "generation": "cascade_lake", "has": {"avx512_vnni"}, "has_not": {"avx512vbmi"},
         "node_cpus": [56] * 4},
    ),
    "epyc-naples-2s-8-nodes": (
        Box(x86("AMD EPYC 7601 32-Core Processor", "avx2", 23, 1, 2), 32, 2, nodes=4, gib=512, distances=(16, 32),
            l3=("8192K", 4)),
        {"threads": 64, "generation": "zen1", "node_cpus": [16] * 8, "distances": {0: 10} | dict.fromkeys((1, 2, 3), 16)
         | dict.fromkeys((4, 5, 6, 7), 32)},
    ),
    "epyc-milan-32-small-nodes": (  # each L3 is a node, of 16 GiB
        Box(x86("AMD EPYC 7773X 64-Core Processor", "avx2", 25, 1, 2), 64, 2, nodes=16, gib=512, l3=("98304K", 4)),
        {"threads": 128, "node_cpus": [8] * 32, "node_gib": [16] * 32, "sockets": 2},
    ),
    "xeon-max-9480-flat": (  # HBM as nodes of its own
        Box(x86("Intel(R) Xeon(R) CPU Max 9480", "sapphire", 6, 143, 8), 56, 2, gib=512, extra_nodes={2: 64, 3: 64}),
        {"threads": 112, "node_cpus": [112, 112, 0, 0], "kinds": ["cpu", "cpu", "memory", "memory"], "memory_gib": 640},
    ),
    "xeon-with-cxl": (
        Box(GOLD, 32, gib=256, extra_nodes={1: 128}, distances=(17, 17)),
        {"kinds": ["cpu", "memory"], "distances": {0: 10, 1: 17}, "memory_gib": 384},
    ),
    "xeon-6780e-sierra-forest": (
        Box(x86("Intel(R) Xeon(R) 6780E", "avx_vnni", 6, 175, 3), 144, threads=1, gib=512),
        {"threads": 144, "decides": "cores", "smt": "none", "generation": "sierra_forest", "has_not": {"avx512f"}},
    ),
    "kunpeng-920-ascend": (
        Box(Cpu("", "n1", ("0x48", "0xd01")), 64, 2, threads=1, nodes=2, gib=1024, distances=(16, 32), cards=(
            Card("", vendor="0x19e5", address="0000:c1:00.0", node=3, code="0x120000"),)),
        {"threads": 128, "architecture": "aarch64", "cpu_model": "Kunpeng-920", "has": {"asimddp"}, "has_not": {"sve"},
         "node_cpus": [32] * 4, "gpus": ["npu Ascend 0x2684  node 3 pcie 4 x16 0.00 GiB"]},
    ),
    "grace-hopper": (  # the GPU's memory is a node
        Box(Cpu("", "v2", ("0x41", "0xd4f")), 72, threads=1, gib=480, extra_nodes={1: 94}, l3=("116736K", 0), cards=(
            Card("NVIDIA GH200 480GB", 95, address="0009:01:00.0", generation=5, capability="9.0", numa=1),)),
        {"threads": 72, "architecture": "aarch64", "generation": "neoverse_v2", "kinds": ["cpu", "gpu"],
         "memory_gib": 480, "usable_nodes": [0], "has": {"sve2", "i8mm", "bf16"}, "limits_of_memory": ["ram"]},
    ),
    "graviton4-vm": (
        Box(Cpu("", "v2", ("0x41", "0xd4f")), 96, threads=1, gib=192),
        {"threads": 96, "cpu_model": "Neoverse-V2", "smt": "none"},
    ),
    "gb10": (
        Box(Cpu("", "v2", ("0x41", "0xd85")), 20, threads=1, gib=120, files={
            f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity": "718" if cpu % 10 < 5 else "1024" for cpu in range(20)}),
        {"threads": 10, "decides": "fast_cores"},
    ),
    "epyc-9274f-7900xtx": (
        Box(x86("AMD EPYC 9274F 24-Core Processor", "zen4", 25, 17), 24, gib=384, cards=(
            Card("", 24, vendor="0x1002", address="0000:43:00.0"),)),
        {"threads": 24, "generation": "zen4", "gpus": ["rocm AMD 0x2684  node 0 pcie 4 x16 24.00 GiB"]},
    ),
    "arc-b580": (
        Box(x86("AMD Ryzen 7 5700X 8-Core Processor", "avx2", 25, 33), 8, gib=64, cards=(
            Card("", vendor="0x8086", lanes=8),)),
        {"threads": 8, "gpus": ["xpu Intel 0x2684  node 0 pcie 4 x8 0.00 GiB"]},
    ),
    "smt-off": (
        Box(GOLD, 32, threads=1, gib=256, files={"sys/devices/system/cpu/smt/control": "off\n"}),
        {"threads": 32, "smt": "off"},
    ),
    "docker-quota-2.5": (
        Box(x86("AMD Ryzen 9 7950X 16-Core Processor", "zen4", 25, 97, 2), 16, gib=96, files={
            "proc/self/cgroup": "0::/\n", f"{GROUP}/cpu.max": "250000 100000\n", f"{GROUP}/memory.max": "max\n",
            f"{GROUP}/memory.high": f"{32 * GIB}\n", ".dockerenv": ""}),
        {"threads": 2, "decides": "quota", "limits": {"online": 32, "affinity": 32, "cores": 16, "quota": 2.5},
         "surroundings": ("docker",), "memory_gib": 32, "decides_memory": "cgroup"},
    ),
    "kubernetes-pod": (  # the limits are those of groups above; the memory's is below the machine's
        Box(GOLD, 32, 2, gib=1024, files={
            "proc/self/cgroup": "0::/kubepods.slice/pod1/app\n",
            f"{GROUP}/kubepods.slice/pod1/app/cpu.max": "max 100000",
            f"{GROUP}/kubepods.slice/pod1/cpu.max": "1600000 100000",
            f"{GROUP}/kubepods.slice/pod1/app/memory.max": "max",
            f"{GROUP}/kubepods.slice/pod1/memory.max": str(128 * GIB),
            f"{GROUP}/kubepods.slice/pod1/memory.current": str(100 * GIB),
            f"{GROUP}/kubepods.slice/pod1/memory.stat": f"inactive_file {70 * GIB}\nactive_file {5 * GIB}\n"}),
        {"threads": 16, "decides": "quota", "memory_gib": 128, "available_gib": 103, "surroundings": ("kubernetes",),
         "decides_memory": "cgroup"},
    ),
    "slurm-cpuset": (  # 8 of 128 CPUs, of one node, with the hyperthreads
        Box(GOLD, 32, 2, gib=512, files={
            "proc/self/cgroup": "0::/slurm/job_1\n", "proc/self/status": "Cpus_allowed_list:\t0-127\nMems_allowed_list:\t1\n",
            f"{GROUP}/slurm/job_1/cpuset.cpus.effective": "32-35,96-99\n",
            f"{GROUP}/slurm/job_1/cpuset.mems.effective": "1\n"}),
        {"threads": 4, "decides": "cores", "limits": {"online": 128, "affinity": 128, "cpuset": 8, "cores": 4},
         "usable_nodes": [1], "memory_gib": 256, "decides_memory": "nodes", "allowed": [32, 33, 34, 35, 96, 97, 98, 99]},
    ),
    "lxc": (  # v1 groups, and /proc files that LXC makes narrower itself
        Box(x86("Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz", "ice", 6, 106, 6), 28, 2, gib=256, files={
            "proc/self/cgroup": "5:memory:/lxc/a\n4:cpu,cpuacct:/lxc/a\n3:cpuset:/lxc/a\n",
            "proc/self/status": "Cpus_allowed_list:\t0-11\n",
            f"{GROUP}/cpuset/lxc/a/cpuset.cpus": "0-27\n", f"{GROUP}/cpuset/lxc/a/cpuset.effective_cpus": "0-11\n",
            f"{GROUP}/cpu,cpuacct/lxc/a/cpu.cfs_quota_us": "-1\n", f"{GROUP}/cpu,cpuacct/lxc/a/cpu.cfs_period_us": "100000\n",
            f"{GROUP}/memory/lxc/a/memory.limit_in_bytes": f"{64 * GIB}\n",
            f"{GROUP}/memory/lxc/a/memory.usage_in_bytes": f"{8 * GIB}\n"}),
        {"threads": 12, "decides": "cpuset", "generation": "ice_lake_sp", "memory_gib": 64, "available_gib": 56,
         "surroundings": ("lxc",), "has_not": {"avx512_bf16"}},
    ),
    "wsl2": (
        Box(x86("AMD Ryzen 7 5700X3D 8-Core Processor", "avx2", 25, 33, guest=True), 8, gib=31, files={"proc/version": WSL},
            drop=("sys/devices/system/node",)),
        {"threads": 8, "surroundings": ("wsl",), "node_cpus": [16], "memory_gib": 31, "sockets": 1},
    ),
    "vm-one-package-a-cpu": (
        Box(x86("Intel(R) Xeon(R) Processor @ 2.70GHz", "sapphire", 6, 143, 8, guest=True), 1, 16, threads=1, gib=128,
            files=KVM, drop=("sys/devices/system/node",)),
        {"threads": 16, "sockets": 1, "smt": "unknown", "surroundings": ("vm:kvm",), "has": AMX, "notes": 0},
    ),
    "vm-that-hides-amx": (
        Box(x86("Intel Xeon Processor (SapphireRapids)", "zen4", 6, 143, 4, guest=True), 8, threads=1, gib=64, files=KVM),
        {"threads": 8, "smt": "unknown", "has_not": AMX, "notes": 1, "noted": "AMX"},
    ),
    "vm-qemu64": (
        Box(x86("QEMU Virtual CPU version 2.5+", "sse", 6, 15, 11, guest=True), 4, threads=1, gib=8, files=KVM),
        {"threads": 4, "features": (), "notes": 1, "noted": "AVX2", "generation": ""},
    ),
    "numactl-membind-1": (
        Box(GOLD, 32, 2, gib=512, files={
            "proc/self/status": "Cpus_allowed_list:\t32-63,96-127\nMems_allowed_list:\t0-1\n",
            "proc/self/numa_maps": "55d0c0a00000 bind:1 file=/usr/bin/python3 mapped=2\n"}),
        {"threads": 32, "decides": "cores", "memory_policy": "bind:1", "usable_nodes": [1], "memory_gib": 256,
         "decides_memory": "nodes"},
    ),
    "taskset-without-smt": (
        Box(EPYC_9355, 32, 2, gib=512, files={"proc/self/status": "Cpus_allowed_list:\t0-15\n"}),
        {"threads": 16, "decides": "affinity", "node_cpus": [64, 64]},
    ),
    "interleaved": (
        Box(EPYC_9355, 32, 2, gib=512, files={"proc/self/numa_maps": "7f00 interleave:0-1 anon=1\n",
            "proc/sys/kernel/numa_balancing": "1\n"}),
        {"numa_balancing": True, "memory_policy": "interleave:0-1", "usable_nodes": [0, 1], "memory_gib": 512},
    ),
    "no-sys": (
        Box(x86("AMD EPYC 7302 16-Core Processor", "avx2", 23, 49), 16, threads=1, gib=128, drop=("sys/",)),
        {"threads": 16, "generation": "zen2", "node_cpus": [16], "memory_gib": 128, "last_level_cache": 0},
    ),
    "huge-pages-and-limits": (
        Box(x86("AMD EPYC 7763 64-Core Processor", "avx2", 25, 1, 1), 64, gib=512, files={
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "512\n",
            "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "500\n",
            "proc/self/limits": "Limit   Soft Limit   Hard Limit   Units\nMax open files            1024                 "
            "524288               files\nMax locked memory         8388608              8388608              bytes\n"}),
        {"huge": ("madvise", {2 << 20: (512, 500)}), "locked_memory": 8 << 20, "open_files": 1024},
    ),
}  # fmt: skip
