"""The device that computes what is not left to the CPU: memory, streams and graphs behind one small layer.

One file for each kind of torch device; `cpu` is one too, so that everything above runs, and is tested, without a GPU.
"""

import importlib
from collections.abc import Iterator

from kt_core.device.base import Device
from kt_core.errors import EnvironmentProblem, UsageError
from kt_core.flags import whole

__all__ = ["KINDS", "Device", "found", "open_device"]

# torch's names; each has a file here whose class is called Own.
KINDS = ("cuda", "xpu", "npu", "cpu")


def open_device(name: str) -> Device:
    """The device "cuda", "cuda:1", "cpu", ... Raises UsageError for no such name, EnvironmentProblem when torch cannot use it."""
    kind, _, number = name.partition(":")
    if kind not in KINDS or (number and whole(number) is None):
        raise UsageError("device.unknown", device=name, known=", ".join(KINDS))
    own: type[Device] = importlib.import_module(f"kt_core.device.{kind}").Own
    index = int(number or 0)
    if reason := own.missing(index):
        raise EnvironmentProblem("device.missing", device=name, reason=reason)
    return own(index)


def found() -> Iterator[str]:
    """The names of the accelerators that torch can use here."""
    for kind in KINDS[:-1]:
        own: type[Device] = importlib.import_module(f"kt_core.device.{kind}").Own
        index = 0
        while not own.missing(index):
            yield f"{kind}:{index}"
            index += 1
