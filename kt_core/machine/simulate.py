"""A machine that is not here, from a text such as "cpu=xeon-6454s:2,ram=64GiB,gpu=rtx-4090:1,disk=2TiB"."""

from dataclasses import dataclass, replace

from kt_core.errors import UsageError
from kt_core.machine import AFFINITY, CORES, FAST_CORES, ONLINE, hardware
from kt_core.machine.hardware import Cpu
from kt_core.machine.sizes import parse_size
from kt_core.types import Machine, MachineProfile, Node

KEYS = ("cpu", "ram", "gpu", "disk")
MOST_GPUS = 64
# The system and the programs beside a model keep a part of the memory, and a GiB at least
KEPT_SHARE, KEPT_LEAST = 0.03, 1 << 30


@dataclass(frozen=True)
class Simulated:
    """`profile` is None where the CPU is this machine's own; `disk` are free bytes, None where it is this machine's."""

    machine: Machine
    profile: MachineProfile | None = None
    disk: int | None = None


def simulate(text: str, here: Machine) -> Simulated:
    """The machine that `text` describes; what it does not name is as `here`. A count after a CPU is its sockets.

    Raises UsageError for a text that does not read so, and, with near names, for hardware that kt does not know.
    """
    wanted = _parse(text)
    machine, profile = replace(here, gpus=()), None
    if "ram" in wanted:
        machine = _with_memory(machine, _size("ram", wanted["ram"]))
    if "cpu" in wanted:
        name, sockets = _counted("cpu", wanted["cpu"])
        cpu = hardware.cpu(name)
        if sockets > cpu.sockets:
            raise UsageError("machine.simulated_sockets", name=cpu.name, sockets=sockets, most=cpu.sockets)
        machine = _with_cpu(machine, cpu, sockets)
        profile = hardware.rates(cpu, machine)
    if "gpu" in wanted:
        name, count = _counted("gpu", wanted["gpu"])
        if count > MOST_GPUS:
            raise UsageError("machine.simulated_gpus", count=count, most=MOST_GPUS)
        machine = replace(machine, gpus=(hardware.gpu(name),) * count)
    disk = _size("disk", wanted["disk"]) if "disk" in wanted else None
    return Simulated(machine, profile, disk)


def _parse(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        key = key.casefold()
        if not equals or not value or key not in KEYS or key in found:
            raise UsageError("machine.simulated_part", part=part, keys=", ".join(KEYS))
        found[key] = value
    return found


def _counted(key: str, text: str) -> tuple[str, int]:
    name, colon, count = text.partition(":")
    if colon and not (count.isascii() and count.isdecimal() and int(count[:9]) > 0):
        raise UsageError("machine.simulated_count", part=f"{key}={text}")
    return name, int(count[:9]) if colon else 1


def _size(key: str, text: str) -> int:
    size = parse_size(text)
    if size is None:
        raise UsageError("machine.simulated_size", part=f"{key}={text}")
    return size


def available(memory: int) -> int:
    """Of so many bytes, what a model may take."""
    return max(0, memory - max(int(memory * KEPT_SHARE), KEPT_LEAST))


def _with_memory(machine: Machine, memory: int) -> Machine:
    """The nodes share it, as on a machine whose slots are filled alike."""
    ours = [number for number, node in machine.numa_nodes.items() if node.kind == "cpu"]
    each = memory // max(1, len(ours))
    nodes = {number: replace(machine.numa_nodes[number], memory=each, available=available(each)) for number in ours}
    return replace(
        machine,
        numa_nodes=nodes,
        memory_limits={"ram": memory},
        memory_total=memory,
        memory_available=available(memory),
    )


def _with_cpu(machine: Machine, cpu: Cpu, sockets: int) -> Machine:
    """All CPUs of so many sockets. As Linux counts them: a thread of each core first, then the second threads."""
    cores = cpu.cores * sockets
    doubled = cpu.threads - cpu.cores  # cores of a socket with two threads; the fast ones come first
    ids: list[tuple[int, ...]] = []
    for core in range(cores):
        socket, place = divmod(core, cpu.cores)
        second = (cores + socket * doubled + place,) if place < doubled else ()
        ids.append((core, *second))
    fast = tuple(core for number, core in enumerate(ids) if number % cpu.cores < (cpu.fast or cpu.cores))
    online = tuple(range(cpu.threads * sockets))
    limits = {ONLINE: len(online), AFFINITY: len(online), CORES: cores} | ({FAST_CORES: len(fast)} if cpu.fast else {})
    count = cpu.nodes * sockets
    parts = [ids[cores * n // count : cores * (n + 1) // count] for n in range(count)]
    share = machine.memory_total // count
    return replace(
        machine,
        cpu_model=cpu.name,
        architecture="aarch64" if cpu.is_arm else "x86_64",
        features=cpu.features,
        generation=cpu.design,
        logical_cpus=len(online),
        physical_cores=cores,
        allowed_cpus=online,
        numa_nodes={
            n: Node(tuple(sorted(i for core in part for i in core)), share, available(share))
            for n, part in enumerate(parts)
        },
        limits={name: float(limit) for name, limit in limits.items()},
        sockets=sockets,
        cores=tuple(ids),
        fast_cores=fast,
        smt="on" if doubled else "none",
        memory_policy="default",
        last_level_cache=0,
        caches=(),
        surroundings=(),
        notes=(),
    )
