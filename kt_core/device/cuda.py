"""NVIDIA GPUs, and AMD's through the same interface of torch (which nobody has run yet, and without graphs).

Inside a graph the GPU and the CPU wait for each other by words in host memory that the GPU's front end writes and compares.
torch has no name for that, so the driver that it has loaded is asked; nothing of CUDA's toolkit is needed.
"""

import ctypes
import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kt_core.device.base import Device
from kt_core.messages import t

PROBE_SECONDS = 2.0
# Memory that torch reserves and nothing uses: 7 % of it without, 1.6 % with segments that grow (docs/benchmarks.md).
SEGMENTS = "expandable_segments:True"
PAGE = 4096  # bytes of host memory that is registered whole


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Whatever Python would throw away within this block is thrown away before it, or after: giving back what an old model has
    of the driver ends a capture."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class Own(Device):
    kind = "cuda"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._hip = torch.version.hip is not None
        if not self._hip and "PYTORCH_ALLOC_CONF" not in os.environ:  # torch reads it at its first use, which is below
            os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", SEGMENTS)
        # torch's grouped product has kernels for these; elsewhere it copies the sizes to the CPU
        self.groups = not self._hip and torch.cuda.get_device_capability(index)[0] in (9, 10)
        self._driver: Any = None

    def register(self, pieces: list[tuple[int, int]]) -> Callable[[], None]:
        driver = ctypes.CDLL("libcuda.so.1")  # torch's own call leaves an error behind that the next operation reports
        done: list[int] = []

        def undo() -> None:
            while done:
                driver.cuMemHostUnregister(ctypes.c_void_p(done.pop()))

        for address, count in pieces:
            begin, end = address // PAGE * PAGE, -(-(address + count) // PAGE) * PAGE
            if code := driver.cuMemHostRegister_v2(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), 0):
                undo()
                raise RuntimeError(t("device.not_registered", size=f"{count / 2**30:.2f} GiB", code=code))
            done.append(begin)
        return undo

    def no_graphs(self) -> str:
        if self._hip:
            return t("device.untested_graphs", kind="hip")
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
        except OSError as e:
            return t("device.no_driver", reason=e)
        return ""

    def capture(self, function: Callable[[], torch.Tensor], beside: Any = None) -> tuple[Any, torch.Tensor]:
        graph = torch.cuda.CUDAGraph()
        with _no_garbage(), torch.cuda.graph(graph, pool=beside and beside.pool(), capture_error_mode="thread_local"):
            result = function()
        return graph, result

    def write(self, word: int, value: int) -> None:
        self._call("cuStreamWriteValue32_v2", ctypes.c_uint64(word), ctypes.c_uint32(value), 0)

    def wait(self, word: int, value: int) -> None:
        self._call("cuStreamWaitValue32_v2", ctypes.c_uint64(word), ctypes.c_uint32(value), 0)

    def call(self, function: int, argument: int) -> None:
        self._call("cuLaunchHostFunc", ctypes.c_void_p(function), ctypes.c_void_p(argument))

    def _call(self, name: str, *arguments: Any) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream(self.torch).cuda_stream)
        code = getattr(self._driver, name)(stream, *arguments)
        if code:
            raise RuntimeError(f"{name} returned {code}")

    def words_unusable(self) -> str:
        """It is tried, with a graph of its own."""
        words = self.pinned(8).view(torch.int32).zero_()

        def ask() -> torch.Tensor:
            self.write(words[0].data_ptr(), 1)
            self.wait(words[1].data_ptr(), 1)
            return words

        try:
            graph, _ = self.capture(ask)
        except (AttributeError, RuntimeError) as e:
            return str(e).splitlines()[0]
        graph.replay()
        end = time.monotonic() + PROBE_SECONDS
        while not words[0].item() and time.monotonic() < end:
            pass
        asked = bool(words[0].item())
        words[1] = 1
        torch.cuda.synchronize(self.torch)
        return "" if asked else t("device.words_silent", seconds=PROBE_SECONDS)
