"""GPUs on the running system: NVIDIA's library in a process of its own, nvidia-smi behind it."""

import ctypes
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kt_core.machine import gpu, nvml
from kt_core.machine.gpu import parse_gpus, read_gpus
from kt_core.machine.sysfiles import Tree
from kt_core.types import Gpu

ENTRY = {
    "name": "NVIDIA X",
    "memory": 24 << 30,
    "free": 23 << 30,
    "driver": "570.86.10",
    "capability": "8.9",
    "address": "00000000:41:00.0",
    "uuid": "GPU-1",
    "pcie_generation": 4,
    "pcie_lanes": 16,
}


class Library:
    """As libnvidia-ml: results through pointers, 0 for success."""

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlSystemGetDriverVersion(self, buffer: Any, size: int) -> int:
        buffer.value = b"570.86.10"
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 1
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.total, memory._obj.free = 24 << 30, 23 << 30
        return 0

    def nvmlDeviceGetPciInfo_v3(self, handle: Any, pci: Any) -> int:
        assert ctypes.sizeof(pci._obj) == 68  # the library writes that much
        pci._obj.address = b"00000000:41:00.0"
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 8, 9
        return 0

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, size: int) -> int:
        buffer.value = b"NVIDIA X"
        return 0

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, size: int) -> int:
        buffer.value = b"GPU-1"
        return 0

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any, value: Any) -> int:
        value._obj.value = 4
        return 0

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Any, value: Any) -> int:
        value._obj.value = 16
        return 0


def test_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_library", Library)
    assert nvml.gpus() == [ENTRY]
    monkeypatch.setattr(Library, "nvmlInit_v2", lambda self: 9)  # the driver is not loaded
    with pytest.raises(OSError, match="9"):
        nvml.gpus()


def answers(monkeypatch: pytest.MonkeyPatch, library: object, *smi: object) -> list[list[str]]:
    """What the two programs print, or raise; returns the commands that were run."""
    given, commands = [library, *smi], []

    def output(command: list[str]) -> object:
        commands.append(command)
        return given[len(commands) - 1]

    monkeypatch.setattr(gpu, "_output", output)
    monkeypatch.setattr(gpu.shutil, "which", lambda name: "/bin/nvidia-smi")
    return commands


def test_the_library_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = answers(monkeypatch, json.dumps([ENTRY]))
    (found,) = read_gpus(Tree(Path("/")))
    assert found.name == "NVIDIA X" and found.address == "0000:41:00.0" and found.memory == 24 << 30
    assert len(commands) == 1 and commands[0][1:3] == ["-I", "-S"]


@pytest.mark.parametrize("broken", [OSError("no library"), "not JSON", "[1]", '[{"name": "X"}]'])
def test_nvidia_smi_where_the_library_fails(monkeypatch: pytest.MonkeyPatch, broken: object) -> None:
    line = "X, Special, 1000, 900, 570.1, 12.0, 00000000:C1:00.0, GPU-2, 5, 8"
    answers(monkeypatch, broken, line)
    (found,) = read_gpus(Tree(Path("/")))
    assert (found.name, found.memory, found.capability) == ("X, Special", 1000 << 20, "12.0")
    assert (found.address, found.pcie_generation, found.pcie_lanes) == ("0000:c1:00.0", 5, 8)


def test_a_driver_that_knows_fewer_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = OSError('Field "compute_cap" is not a valid field to query.')
    commands = answers(monkeypatch, OSError("x"), refused, "Tesla P40, 22919, 22000, 450.80")
    (found,) = read_gpus(Tree(Path("/")))
    assert found.name == "Tesla P40" and found.capability == "" and len(commands) == 3


def test_a_driver_that_hangs_is_asked_no_third_time(monkeypatch: pytest.MonkeyPatch) -> None:
    hung = subprocess.TimeoutExpired("x", 5)
    commands = answers(monkeypatch, hung, hung)
    tree = Tree(Path("/"))
    assert read_gpus(tree) == () and len(commands) == 2
    assert any("nvidia-smi" in note for note in tree.notes)


def test_a_card_that_no_driver_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the bus, as the host's cards are in a container that was started without them."""
    card = Gpu("NVIDIA 0x2684", 0, 0, address="0000:01:00.0")
    monkeypatch.setattr(gpu, "_on_bus", lambda tree: [card])
    monkeypatch.setattr(gpu.shutil, "which", lambda name: None)
    monkeypatch.setattr(Tree, "has", lambda self, path: False)
    tree = Tree(Path("/"))
    assert read_gpus(tree) == () and len(tree.notes) == 1 and "1" in tree.notes[0]


def test_tables() -> None:
    gpus = parse_gpus("NVIDIA X, Special, 1000, 900, 570.1\nGB10, [N/A], [N/A], 580\nnonsense")
    assert [(g.name, g.memory, g.free) for g in gpus] == [("NVIDIA X, Special", 1000 << 20, 900 << 20), ("GB10", 0, 0)]
    (found,) = parse_gpus("GB10, [N/A], [N/A], 580, 12.1, 0000000F:01:00.0, GPU-3, [N/A], [N/A]")
    assert (found.capability, found.address, found.pcie_lanes) == ("12.1", "000f:01:00.0", 0)
