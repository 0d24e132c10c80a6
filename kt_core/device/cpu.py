"""The CPU as a device: nothing is asynchronous, and numbers stay float32."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import psutil
import torch

from kt_core.device.base import Device
from kt_core.messages import t


class Own(Device):
    kind = "cpu"
    dtype = torch.float32

    def __init__(self, index: int) -> None:
        self.torch = torch.device("cpu")

    @classmethod
    def missing(cls, index: int) -> str:
        return t("device.no_number", kind="cpu", count=1) if index else ""

    def memory(self) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def pinned(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.uint8)

    def reached(self) -> Callable[[], None]:
        return lambda: None

    @contextmanager
    def beside(self, stream: Any) -> Iterator[None]:
        yield

    def use(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def stream(self) -> Any:
        return None

    def mark(self) -> Any:
        return None

    def after(self, mark: Any) -> None:
        """Everything that was given is done."""

    def register(self, pieces: list[tuple[int, int]]) -> Callable[[], None]:
        return lambda: None  # it reaches all memory

    def no_graphs(self) -> str:
        return t("device.cpu_graphs")
