"""Accelerators: what the PCI bus shows, and for NVIDIA what its library or nvidia-smi adds."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from kt_core.machine import nvml
from kt_core.machine.sysfiles import Tree, whole
from kt_core.types import Gpu

TIMEOUT_SECONDS = 5.0  # a wedged driver makes both the library and nvidia-smi hang
CAPTURED = "/nvidia-smi.csv"  # in a copy of a machine's files: what nvidia-smi printed there for this query
_FIELDS = (
    "name,memory.total,memory.free,driver_version,compute_cap,pci.bus_id,uuid,pcie.link.gen.max,pcie.link.width.current"
)
_OLD_FIELDS = "name,memory.total,memory.free,driver_version"  # drivers before 510 refuse a query with compute_cap
_DEVICES = "/sys/bus/pci/devices"
_NVIDIA = "0x10de"
_VENDORS = {
    _NVIDIA: ("cuda", "NVIDIA"),
    "0x1002": ("rocm", "AMD"),
    "0x8086": ("xpu", "Intel"),
    "0x19e5": ("npu", "Ascend"),
}
_SPEEDS = {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}  # GT/s of a PCIe generation
_LEAST_AMD = 1 << 31  # bytes: graphics units inside CPUs set less than 2 GiB aside


def read_gpus(tree: Tree) -> tuple[Gpu, ...]:
    """The accelerators, NVIDIA's first, each with its place on the PCI bus.

    On the running system NVIDIA's driver is asked where there is one; when it fails, a note says so and the GPUs,
    which cannot be used then, are left out.
    """
    found = _on_bus(tree)
    others = [gpu for gpu in found if gpu.kind != "cuda"]
    if tree.live:
        nvidia = _ask_driver(tree)
        if not nvidia and len(others) < len(found):
            tree.note("machine.no_gpu_driver", count=len(found) - len(others))
    else:
        nvidia = parse_gpus(tree.text(CAPTURED) or "") or tuple(gpu for gpu in found if gpu.kind == "cuda")
    places = {gpu.address: gpu for gpu in found}
    return (*(_placed(gpu, places.get(_address(gpu.address))) for gpu in nvidia), *others)


def _placed(gpu: Gpu, place: Gpu | None) -> Gpu:
    """The GPU with what the bus adds: its node, and a slot that is slower than the card."""
    if place is None:
        return replace(gpu, address=_address(gpu.address))
    known = [generation for generation in (gpu.pcie_generation, place.pcie_generation) if generation]
    return replace(
        gpu,
        address=place.address,
        node=place.node,
        pcie_generation=min(known, default=0),
        pcie_lanes=gpu.pcie_lanes or place.pcie_lanes,
    )


def _address(text: str) -> str:
    """A PCI address as sysfs writes it; the driver has eight digits of domain and capitals."""
    match = re.fullmatch(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", text.lower())
    return f"{match[1][-4:] if match[1] else '0000'}:{match[2]}" if match else text


# ---- the PCI bus


def _on_bus(tree: Tree) -> list[Gpu]:
    """Display controllers and accelerators of the four vendors, in the order of their addresses."""
    found = []
    for address in tree.names(_DEVICES):
        folder = f"{_DEVICES}/{address}"
        kind, vendor = _VENDORS.get(tree.text(f"{folder}/vendor", 64) or "", ("", ""))
        if not kind or not _computes(tree.text(f"{folder}/class", 64) or "", kind):
            continue
        memory = _vram(tree, folder) if kind == "rocm" else (0, 0)
        if (kind == "rocm" and memory[0] < _LEAST_AMD) or (kind == "xpu" and not _is_card(tree, folder)):
            continue
        node = tree.number(f"{folder}/numa_node")
        name = _model(tree, address, kind) or f"{vendor} {tree.text(f'{folder}/device', 64) or ''}".strip()
        driver = _nvidia_version(tree) if kind == "cuda" else ""
        found.append(
            Gpu(
                name,
                *memory,
                driver,
                kind,
                address=address,
                node=node if node is not None and node >= 0 else None,
                pcie_generation=_generation(tree, folder),
                pcie_lanes=_lanes(tree.number(f"{folder}/current_link_width")),
            )
        )
    return sorted(found, key=lambda gpu: gpu.kind != "cuda")


def _computes(code: str, kind: str) -> bool:
    """By the class: 03 display, 12 accelerator (Ascend is only that)."""
    return code.startswith("0x12" if kind == "npu" else ("0x03", "0x12"))


def _vram(tree: Tree, folder: str) -> tuple[int, int]:
    """(total, free) bytes by AMD's driver."""
    total, used = (tree.number(f"{folder}/mem_info_vram_{name}") or 0 for name in ("total", "used"))
    return max(0, total), max(0, total - used)


def _is_card(tree: Tree, folder: str) -> bool:
    """Whether an Intel GPU is a card and not a part of the CPU, which sits on the bus itself as device 2."""
    return bool(_lanes(tree.number(f"{folder}/current_link_width")))


def _model(tree: Tree, address: str, kind: str) -> str:
    """The name that a driver gives; empty without one."""
    if kind == "cuda":
        text = tree.text(f"/proc/driver/nvidia/gpus/{address}/information", 4096) or ""
        match = re.search(r"(?m)^Model:\s*(\S.*)$", text)
        return match[1].strip() if match else ""
    return tree.text(f"{_DEVICES}/{address}/product_name", 256) or ""


def _nvidia_version(tree: Tree) -> str:
    match = re.search(r"Kernel Module\s+(?:for \S+\s+)?([0-9.]+)", tree.text("/proc/driver/nvidia/version", 4096) or "")
    return match[1] if match else ""


def _generation(tree: Tree, folder: str) -> int:
    """The lower of the card's and its slot's highest generation; 0 where neither is said."""
    paths = [folder, tree.above(folder)]
    speeds = [(tree.text(f"{path}/max_link_speed", 64) or "").split(" ")[0] for path in paths if path]
    return min((_SPEEDS[speed] for speed in speeds if speed in _SPEEDS), default=0)


def _lanes(width: int | None) -> int:
    return width if width in (1, 2, 4, 8, 12, 16, 32) else 0


# ---- NVIDIA's driver


def _ask_driver(tree: Tree) -> tuple[Gpu, ...]:
    """By the library; where it is missing or fails, by nvidia-smi. None, with a note, when that fails as well."""
    program = shutil.which("nvidia-smi")
    if program is None and not tree.has("/dev/nvidiactl") and not tree.has(nvml.NAMES[-1]):
        return ()
    done = _output([sys.executable, "-I", "-S", str(Path(nvml.__file__))])
    if isinstance(done, str):
        try:
            return tuple(_from_library(entry) for entry in json.loads(done))
        except (ValueError, TypeError, KeyError):
            pass
    if program is None:
        tree.note("machine.no_gpu_query", reason=done)
        return ()
    for fields in (_FIELDS, _OLD_FIELDS):
        done = _output([program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"])
        if isinstance(done, str):
            return parse_gpus(done)
        if isinstance(done, subprocess.TimeoutExpired):
            break
    tree.note("machine.no_gpu_query", reason=done)
    return ()


def _output(command: list[str]) -> str | Exception:
    """What the command prints; what it failed with."""
    try:
        run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return error
    output = run.stdout.decode(errors="replace").strip()
    if run.returncode == 0:
        return output
    lines = (output or run.stderr.decode(errors="replace").strip() or str(run.returncode)).splitlines()
    return OSError(lines[-1][:300])


def _from_library(entry: dict[str, Any]) -> Gpu:
    texts = {name: str(entry[name]) for name in ("name", "driver", "capability", "address", "uuid")}
    sizes = {name: int(entry[name]) for name in ("memory", "free", "pcie_generation", "pcie_lanes")}
    return Gpu(**texts, **sizes)  # type: ignore[arg-type]


def parse_gpus(output: str) -> tuple[Gpu, ...]:
    """GPUs from nvidia-smi's CSV, of the new or the old query; what it does not know ("[N/A]") is 0 or empty."""
    found = []
    for line in output.splitlines():
        for count in (8, 3):  # fields after the name, which may hold commas
            row = [field.strip() for field in line.rsplit(",", count)]
            if len(row) == count + 1 and (count == 3 or re.fullmatch(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+", row[5])):
                found.append(_from_row(row))
                break
    return tuple(found)


def _from_row(row: list[str]) -> Gpu:
    name, total, free, driver, *more = row
    memory, left = (max(0, whole(text) or 0) << 20 for text in (total, free))
    gpu = Gpu(name, memory, left, driver)
    if not more:
        return gpu
    capability, address, uuid, generation, lanes = more
    return replace(
        gpu,
        capability=capability if re.fullmatch(r"[0-9]{1,2}\.[0-9]", capability) else "",
        address=_address(address),
        uuid=uuid,
        pcie_generation=min(9, max(0, whole(generation) or 0)),
        pcie_lanes=_lanes(whole(lanes)),
    )
