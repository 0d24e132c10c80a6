"""Ascend NPUs, through the package torch_npu. Nobody has run this yet; no graphs."""

import importlib
from contextlib import suppress

from kt_core.device.base import Device


class Own(Device):
    kind = "npu"

    @classmethod
    def missing(cls, index: int) -> str:
        with suppress(Exception):  # whatever a broken package raises: torch then has no such module
            importlib.import_module("torch_npu")
        return super().missing(index)
