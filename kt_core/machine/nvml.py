"""NVIDIA's management library, asked in a process of its own: a driver that hangs or crashes takes only that with it.

`python -I -S nvml.py` writes one JSON list of GPUs, with the fields of `kt_core.types.Gpu` that the library knows.
It imports the standard library alone, so that it starts within 30 ms.
"""

import ctypes
import json
import sys
from typing import Any

NAMES = ("libnvidia-ml.so.1", "libnvidia-ml.so", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
_TEXT = 96  # bytes that names and ids take at most, by the library's own constants


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Pci(ctypes.Structure):
    _fields_ = [
        ("legacy", ctypes.c_char * 16),
        ("numbers", ctypes.c_uint * 5),
        ("address", ctypes.c_char * 32),
    ]


def gpus() -> list[dict[str, Any]]:
    """Raises OSError where the library is missing or refuses."""
    library = _library()
    if error := library.nvmlInit_v2():
        raise OSError(f"nvmlInit: {error}")
    driver = _text(library.nvmlSystemGetDriverVersion)
    count = ctypes.c_uint(0)
    if error := library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        raise OSError(f"nvmlDeviceGetCount: {error}")
    return [_gpu(library, index, driver) for index in range(count.value)]


def _library() -> Any:
    for name in NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError("no library")


def _gpu(library: Any, index: int, driver: str) -> dict[str, Any]:
    handle = ctypes.c_void_p()
    if error := library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
        raise OSError(f"GPU {index}: {error}")
    memory, pci = _Memory(), _Pci()
    library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))  # zeros where memory is shared with the CPU
    library.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci))
    major, minor = ctypes.c_int(0), ctypes.c_int(0)
    library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    return {
        "name": _text(library.nvmlDeviceGetName, handle),
        "memory": memory.total,
        "free": memory.free,
        "driver": driver,
        "capability": f"{major.value}.{minor.value}" if major.value else "",
        "address": pci.address.decode(errors="replace"),
        "uuid": _text(library.nvmlDeviceGetUUID, handle),
        "pcie_generation": _number(library.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        "pcie_lanes": _number(library.nvmlDeviceGetCurrPcieLinkWidth, handle),
    }


def _text(ask: Any, *handle: Any) -> str:
    buffer = ctypes.create_string_buffer(_TEXT)
    return "" if ask(*handle, buffer, _TEXT) else buffer.value.decode(errors="replace")


def _number(ask: Any, handle: Any) -> int:
    value = ctypes.c_uint(0)
    return 0 if ask(handle, ctypes.byref(value)) else value.value


if __name__ == "__main__":
    sys.stdout.write(json.dumps(gpus()))
