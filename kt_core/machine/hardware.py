"""CPUs and GPUs that kt knows the figures of, so that a plan can be made for a machine that is not here.

hardware.json holds them as their makers state them. `cpus`: cores and threads of a socket, `fast` cores of the performance
type where there are two types, the most `sockets`, NUMA `nodes` of a socket in the usual BIOS setting, `peak` GB/s of a
socket's memory with every channel filled, the part of it that plain `reads` reach on such machines, and a `clock` in GHz
that heavy vector code holds. `classes`: CPU flags beside those of the class that it is `like`, and operations a core does in
a cycle by arithmetic unit. `gpus`: GiB of memory and its GB/s, dense TFLOPS in bfloat16 (float16 where it has none), PCIe
generation and lanes, compute capability or the torch backend.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from kt_core.errors import UsageError
from kt_core.machine import profile
from kt_core.types import Gpu, Machine, MachineProfile

_FILE = Path(__file__).with_name("hardware.json")
# What each further socket adds to the read rate of one, its weights in its own memory: links take a fifth
SOCKET_GAIN = 0.8
# What copies from pinned memory reach on 16 lanes, in bytes a second, by PCIe generation
LINKS = {3: 12e9, 4: 25e9, 5: 53e9}


@dataclass(frozen=True)
class Cpu:
    """One kind of CPU; the figures are of a socket. `rates` are operations a cycle and core by arithmetic unit."""

    name: str
    design: str
    features: tuple[str, ...]
    rates: Mapping[str, float]
    cores: int
    threads: int
    sockets: int
    nodes: int
    peak: float
    reads: float
    fast: int = 0
    clock: float = 0.0  # 0: not known

    @property
    def is_arm(self) -> bool:
        return "asimd" in self.features


@dataclass(frozen=True)
class GpuRates:
    """Bytes a second from its memory, operations a second in bfloat16, bytes a second from the CPU's pinned memory."""

    reads: float
    operations: float
    link: float


@cache
def _data() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return found


def cpu_names() -> list[str]:
    return list(_data()["cpus"])


def gpu_names() -> list[str]:
    return list(_data()["gpus"])


def cpu(name: str) -> Cpu:
    """The CPU with this name or a part of it, as "6454s". Raises UsageError, with near names, where none or several have it."""
    return _cpu(_named(name, cpu_names(), "cpu"))


def gpu(name: str) -> Gpu:
    """A GPU by its name, as cpu() finds CPUs."""
    found = _named(name, gpu_names(), "gpu")
    fields = _data()["gpus"][found]
    memory = int(fields["memory"]) << 30
    generation, lanes = fields["pcie"]
    kind, capability = fields.get("kind", "cuda"), fields.get("capability", "")
    return Gpu(found, memory, memory, kind=kind, capability=capability, pcie_generation=generation, pcie_lanes=lanes)


def gpu_rates(gpu: Gpu) -> GpuRates | None:
    """A GPU's rates by its model's name; None for one that kt has no figures of, as those of laptops, which are slower than
    cards of the same name."""
    words = set(_words(gpu.name))
    fits = [name for name in gpu_names() if set(_words(name)) <= words]
    if not fits or "laptop" in words:
        return None
    fields = _data()["gpus"][max(fits, key=_length)]
    generation, lanes = gpu.pcie_generation or fields["pcie"][0], gpu.pcie_lanes or fields["pcie"][1]
    link = LINKS[min(max(generation, min(LINKS)), max(LINKS))] * min(lanes, 16) / 16
    return GpuRates(1e9 * fields["peak"], 1e12 * fields["bf16"], link)


def _cpu(name: str) -> Cpu:
    fields = dict(_data()["cpus"][name])
    kind = fields.pop("class")
    return Cpu(name, features=tuple(sorted(_features(kind))), rates=_data()["classes"][kind]["rates"], **fields)


def _features(kind: str) -> set[str]:
    fields = _data()["classes"][kind]
    return set(fields["features"].split()) | (_features(fields["like"]) if "like" in fields else set())


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9+]+", re.sub(r"\((r|tm)\)", " ", text.casefold()))


def _named(name: str, known: list[str], kind: str) -> str:
    """The one name that has all words of `name` and the fewest others."""
    words = set(_words(name))
    fits = sorted((known_name for known_name in known if words and words <= set(_words(known_name))), key=_length)
    if fits and (len(fits) == 1 or _length(fits[0]) < _length(fits[1])):
        return fits[0]
    if fits:
        raise UsageError("machine.several_named", name=name, names=_some(fits))
    near = get_close_matches(name.casefold(), known, n=3, cutoff=0.5)
    key = f"machine.unknown_{kind}_near" if near else f"machine.unknown_{kind}"
    raise UsageError(key, name=name, names=_some(near or known))


def _length(name: str) -> int:
    return len(_words(name))


def _some(names: Iterable[str], most: int = 8) -> str:
    shown = list(names)
    return ", ".join(shown[:most]) + (", ..." if len(shown) > most else "")


def expected(machine: Machine) -> MachineProfile | None:
    """The machine's measured profile, else what its CPU should reach; None where kt does not know the CPU either."""
    found = of(machine)
    return profile.of(machine) or (rates(found, machine) if found else None)


def of(machine: Machine) -> Cpu | None:
    """The CPU of a machine by its model's name, if all its cores are there: a guest with a part of them reads at a rate that
    nobody knows."""
    words = set(_words(machine.cpu_model))
    fits = [name for name in cpu_names() if set(_words(name)) <= words]
    found = _cpu(max(fits, key=_length)) if fits else None
    return found if found and found.cores * machine.sockets == machine.physical_cores else None


def rates(found: Cpu, machine: Machine) -> MachineProfile:
    """What the machine's memory and units should reach by these figures, as a profile that was never measured."""
    cores = (found.fast or found.cores) * machine.sockets
    read = 1e9 * found.peak * found.reads * (1 + SOCKET_GAIN * (machine.sockets - 1))
    units = {unit: {cores: rate * found.clock * 1e9 * cores} for unit, rate in found.rates.items() if found.clock}
    return MachineProfile(profile.fingerprint(machine), 0.0, {cores: read}, units, {})
