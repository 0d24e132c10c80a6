"""Builds /proc and /sys of a machine from a short description, in the layouts that current kernels have."""

from dataclasses import dataclass, field
from pathlib import Path

import trees
from trees import GIB

_OLD = "fpu lm sse2 ssse3 sse4_1 sse4_2 avx f16c fma avx2 bmi2"
_SKYLAKE = f"{_OLD} avx512f avx512dq avx512cd avx512bw avx512vl"
_CASCADE = f"{_SKYLAKE} avx512_vnni"
_ICE = f"{_CASCADE} avx512ifma avx512vbmi avx512_vbmi2 avx512_bitalg avx512_vpopcntdq gfni"
FLAGS = {
    "sse": "fpu lm sse2 ssse3 sse4_1 sse4_2",
    "avx2": _OLD,
    "avx_vnni": f"{_OLD} avx_vnni gfni",
    "skylake": _SKYLAKE,
    "cascade": _CASCADE,
    "ice": _ICE,
    "zen4": f"{_ICE} avx512_bf16",
    "zen5": f"{_ICE} avx512_bf16 avx_vnni",
    "sapphire": f"{_ICE} avx512_bf16 avx512_fp16 avx_vnni amx_tile amx_int8 amx_bf16",
    "granite": f"{_ICE} avx512_bf16 avx512_fp16 avx_vnni amx_tile amx_int8 amx_bf16 amx_fp16",
    "n1": "fp asimd asimdhp asimddp",
    "v2": "fp asimd asimdhp asimddp i8mm bf16 sve sve2 svei8mm svebf16",
}


@dataclass(frozen=True)
class Cpu:
    """x86: vendor, family, model, stepping. ARM: implementer and part. `flags` names an entry of FLAGS."""

    name: str
    flags: str
    ids: tuple[object, ...] = ("GenuineIntel", 6, 143, 8)
    guest: bool = False

    def blocks(self, count: int) -> str:
        if str(self.ids[0]).startswith("0x"):
            text = f"Features\t: {FLAGS[self.flags]}\nCPU implementer\t: {self.ids[0]}\nCPU architecture: 8\n"
            text += f"CPU part\t: {self.ids[1]}\n"
        else:
            flags = FLAGS[self.flags] + " hypervisor" * self.guest
            keys = ("vendor_id", "cpu family", "model", "stepping")
            text = "".join(f"{key}\t: {value}\n" for key, value in zip(keys, self.ids, strict=True))
            text += f"model name\t: {self.name}\nflags\t\t: {flags}\n"
        return "\n".join(f"processor\t: {n}\n{text}" for n in range(count))


@dataclass(frozen=True)
class Card:
    """A PCI accelerator. `gib` is what nvidia-smi or AMD's driver says; `slot` the highest generation of its slot."""

    name: str
    gib: float = 0
    vendor: str = "0x10de"
    address: str = "0000:01:00.0"
    node: int = 0
    generation: int = 4
    slot: int = 5
    lanes: int = 16
    capability: str = "8.9"
    numa: int | None = None  # the node that its memory is
    code: str = "0x030000"


@dataclass(frozen=True)
class Box:
    """`nodes`: NUMA nodes a socket. `l3`: (size, cores that share one; 0: the socket's). `numbering`: which CPUs are
    the threads of a core: "split" (0 and cores, 1 and cores + 1) or "beside" (0 and 1). `extra_nodes`: node -> GiB of
    memory without CPUs. `drop`: files that this machine does not have, by how their paths begin."""

    cpu: Cpu
    cores: int
    sockets: int = 1
    threads: int = 2
    nodes: int = 1
    gib: float = 64
    free: float = 0  # GiB; 0: nine tenths
    l3: tuple[str, int] = ("32768K", 0)
    numbering: str = "split"
    distances: tuple[int, int] = (12, 21)  # within the socket, to another
    fast: int = 0  # of the cores, the first ones that are of the performance type and have `threads`
    extra_nodes: dict[int, float] = field(default_factory=dict)
    cards: tuple[Card, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    drop: tuple[str, ...] = ()


def build(root: Path, box: Box) -> Path:
    """Writes the machine's files below root, which is returned."""
    groups = _cores(box)
    cpus = sum(map(len, groups))
    files = {"proc/cpuinfo": box.cpu.blocks(cpus)}
    gib = box.gib + sum(box.extra_nodes.values())
    files["proc/meminfo"] = trees.meminfo(gib, box.free or gib * 0.9) + "SwapTotal: 0 kB\n"
    files |= trees.cores(groups) | _topology(box, groups) | _nodes(box, groups)
    if box.fast:
        fast = sorted(cpu for group in groups[: box.fast] for cpu in group)
        slow = sorted(cpu for group in groups[box.fast :] for cpu in group)
        files["sys/devices/cpu_core/cpus"], files["sys/devices/cpu_atom/cpus"] = _listed(fast), _listed(slow)
    for card in box.cards:
        files |= _card(card)
    nvidia = [card for card in box.cards if card.vendor == "0x10de" and card.gib]
    if nvidia:
        files["nvidia-smi.csv"] = "\n".join(_queried(card) for card in nvidia)
        files["proc/driver/nvidia/version"] = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  x\n"
    files |= box.files
    trees.write(root, {path: text for path, text in files.items() if not path.startswith(box.drop or ("\0",))})
    for card in box.cards:
        link = root / "sys/bus/pci/devices" / card.address
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(Path("../../../..", _port(card), card.address))
    return root


def _cores(box: Box) -> list[list[int]]:
    """Groups of CPUs that share a core, socket by socket."""
    total = box.cores * box.sockets
    threads = [box.threads if not box.fast or core < box.fast else 1 for core in range(total)]
    if box.numbering == "beside":
        starts = [sum(threads[:core]) for core in range(total)]
        return [list(range(start, start + count)) for start, count in zip(starts, threads, strict=True)]
    return [[core + total * thread for thread in range(threads[core])] for core in range(total)]


def _topology(box: Box, groups: list[list[int]]) -> dict[str, str]:
    files = {"sys/devices/system/cpu/smt/control": "on\n" if box.threads > 1 else "notsupported\n"}
    size, sharing = box.l3
    sharing = sharing or box.cores
    for core, group in enumerate(groups):
        first = core // box.cores * box.cores + core % box.cores // sharing * sharing
        shared = sorted(cpu for one in groups[first : min(first + sharing, len(groups))] for cpu in one)
        for cpu in group:
            folder = f"sys/devices/system/cpu/cpu{cpu}"
            files[f"{folder}/topology/physical_package_id"] = f"{core // box.cores}\n"
            if size:
                files |= trees.cache(cpu, 3, 3, size, _listed(shared))
    return files


def _nodes(box: Box, groups: list[list[int]]) -> dict[str, str]:
    count = box.sockets * box.nodes
    each = len(groups) // count
    numbers = [*range(count), *box.extra_nodes]
    files = {"sys/devices/system/node/online": _listed(numbers)}
    for node in numbers:
        folder = f"sys/devices/system/node/node{node}"
        mine = sorted(cpu for group in groups[each * node : each * (node + 1)] for cpu in group) if node < count else []
        files[f"{folder}/cpulist"] = _listed(mine)
        gib = box.extra_nodes.get(node, box.gib / count)
        lines = (("MemTotal", gib), ("MemFree", gib * 0.5), ("Active(file)", gib * 0.1), ("Inactive(file)", gib * 0.2))
        files[f"{folder}/meminfo"] = "".join(f"Node {node} {name}: {int(size * 2**20)} kB\n" for name, size in lines)
        near, far = box.distances
        row = [10 if other == node else near if other // box.nodes == node // box.nodes else far for other in numbers]
        files[f"{folder}/distance"] = " ".join(map(str, row)) + "\n"
    return files


_SPEEDS = {3: "8.0", 4: "16.0", 5: "32.0"}


def _port(card: Card) -> str:
    return f"sys/devices/pci{card.address[:7]}/{card.address[:5]}{card.address[5:7]}:1f.0"


def _card(card: Card) -> dict[str, str]:
    folder = f"{_port(card)}/{card.address}"
    files = {
        f"{folder}/vendor": card.vendor,
        f"{folder}/device": "0x2684",
        f"{folder}/class": card.code,
        f"{folder}/numa_node": str(card.node),
        f"{folder}/max_link_speed": f"{_SPEEDS[card.generation]} GT/s PCIe",
        f"{folder}/current_link_speed": "2.5 GT/s PCIe",  # it sleeps
        f"{folder}/current_link_width": str(card.lanes),
        f"{_port(card)}/max_link_speed": f"{_SPEEDS[card.slot]} GT/s PCIe",
    }
    if card.vendor == "0x1002":
        files[f"{folder}/mem_info_vram_total"] = str(int(card.gib * GIB))
        files[f"{folder}/mem_info_vram_used"] = str(GIB)
    if card.vendor == "0x10de":
        folder = f"proc/driver/nvidia/gpus/{card.address}"
        files[f"{folder}/information"] = f"Model: \t\t {card.name}\nIRQ:   \t\t 99\n"
        if card.numa is not None:
            files[f"{folder}/numa_status"] = f"Node:      {card.numa}\nStatus:    online\n"
    return files


def _queried(card: Card) -> str:
    """The line of nvidia-smi's table, with an address as it writes them."""
    mib = int(card.gib * 1024)
    address = f"0000{card.address[:4]}:{card.address[5:].upper()}"
    row = (card.name, mib, mib - 500, "570.86.10", card.capability, address, "GPU-1234", card.generation, card.lanes)
    return ", ".join(map(str, row))


def _listed(numbers: list[int]) -> str:
    """As the kernel writes lists, with ranges."""
    text, start = [], 0
    for i, number in enumerate(numbers):
        if i + 1 == len(numbers) or numbers[i + 1] != number + 1:
            text.append(f"{numbers[start]}-{number}" if start < i else f"{number}")
            start = i + 1
    return ",".join(text) + "\n"
