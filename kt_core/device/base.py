"""What every device offers. torch's modules for accelerators have the same names, so most of it is written once."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import torch

from kt_core.messages import t


class Device:
    """One device of torch. `dtype` is what its modules compute in; `groups`: whether it has products of many groups of rows
    that do not ask the CPU for the groups' sizes.
    """

    kind: ClassVar[str]
    dtype: torch.dtype = torch.bfloat16
    groups: bool = False

    def __init__(self, index: int) -> None:
        self.torch = torch.device(self.kind, index)
        self._api: Any = getattr(torch, self.kind)

    @classmethod
    def missing(cls, index: int) -> str:
        """Why torch cannot use the device of that number here; "" when it can."""
        api = getattr(torch, cls.kind, None)
        if api is None or not api.is_available():
            return t("device.no_backend", kind=cls.kind, version=torch.__version__)
        count = int(api.device_count())
        return t("device.no_number", kind=cls.kind, count=count) if index >= count else ""

    @property
    def name(self) -> str:
        return str(self.torch)

    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and all."""
        free, total = self._api.mem_get_info(self.torch)
        return int(free), int(total)

    def pinned(self, count: int) -> torch.Tensor:
        """`count` bytes of host memory, uint8, that copies of the device reach without the CPU."""
        return torch.empty(count, dtype=torch.uint8, pin_memory=True)

    def reached(self) -> Callable[[], None]:
        """Waits, when called, until what the current stream has been given up to now is done."""
        event = self._api.Event()
        event.record()
        wait: Callable[[], None] = event.synchronize
        return wait

    @contextmanager
    def beside(self, stream: Any) -> Iterator[None]:
        """Within this block, work goes to `stream`, which waits for what the current one has been given; the current one
        does not wait for it."""
        stream.wait_stream(self._api.current_stream(self.torch))
        with self._api.stream(stream):
            yield

    def use(self) -> AbstractContextManager[Any]:
        """Within this block, in this thread, the device is the one that work goes to."""
        return self._api.device(self.torch)  # type: ignore[no-any-return]

    def stream(self) -> Any:
        """A stream of its own."""
        return self._api.Stream(self.torch)

    def mark(self) -> Any:
        """A point of the current stream, for `after`."""
        event = self._api.Event()
        event.record()
        return event

    def after(self, mark: Any) -> None:
        """What the current stream is given from now on waits for that point."""
        self._api.current_stream(self.torch).wait_event(mark)

    def register(self, pieces: list[tuple[int, int]]) -> Callable[[], None]:
        """Let copies reach these pieces of host memory, (address, bytes), without the CPU, until what this returns is called.
        Raises RuntimeError."""
        raise RuntimeError(t("device.no_register", kind=self.kind))

    def no_graphs(self) -> str:
        """Why steps cannot be captured as graphs here; "" when they can."""
        return t("device.untested_graphs", kind=self.kind)

    def capture(self, function: Callable[[], torch.Tensor], beside: Any = None) -> tuple[Any, torch.Tensor]:
        """A graph whose `replay()` repeats the work that `function` gives the device, and the tensor that then has its result.
        It shares memory with the graph `beside`, which lives and is never replayed at the same time."""
        raise NotImplementedError(self.no_graphs())

    def words_unusable(self) -> str:
        """Why a graph's stream and the CPU cannot wait for each other by words in memory; "" when they can."""
        return self.no_graphs()

    def write(self, word: int, value: int) -> None:
        """The current stream writes to the 32 bits of host memory at that address, after all that it did before."""
        raise NotImplementedError(self.no_graphs())

    def wait(self, word: int, value: int) -> None:
        """The current stream waits until the 32 bits of host memory at that address are at least `value`."""
        raise NotImplementedError(self.no_graphs())

    def call(self, function: int, argument: int) -> None:
        """The current stream calls a C function of one pointer, on a thread of the driver."""
        raise NotImplementedError(self.no_graphs())
