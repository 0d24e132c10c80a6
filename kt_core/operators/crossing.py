"""Rows on their way from a device to the CPU's experts and back, over pinned memory that all layers share."""

from collections.abc import Callable

import torch

from kt_core.device import Device
from kt_core.kernels import Experts
from kt_core.kernels.relay import WORDS, Relay, answer_from_host


class Crossing:
    """One for each device. A layer sends its rows, gives the device work of its own, and asks for the CPU's part.

    Layers follow each other in the order of the device's stream, so one set of buffers serves all: a layer sends only after
    the answer of the one before has left them.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.relay: Relay | None = None  # while a step is captured: what the CPU will do when it is replayed
        self.by_words = True  # how a captured step asks: by words in memory, else by functions that the driver calls
        self._host: dict[str, torch.Tensor] = {}
        self._arrived: Callable[[], None] = lambda: None

    def send(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
        """x [T, hidden] float32 or bfloat16, ids and weights [T, K], all on the device."""
        parts = {"x": x, "ids": ids.to(torch.int64), "weights": weights.to(torch.float32)}
        self._sent = {name: self._buffer(name, part).copy_(part, non_blocking=True) for name, part in parts.items()}
        if self.relay is None:
            self._arrived = self.device.reached()

    def answer(self, experts: Experts) -> torch.Tensor:
        """[T, hidden] on the device, in x's dtype: what `experts` make of what was sent, theirs elsewhere left out."""
        x, ids, weights = self._sent["x"], self._sent["ids"], self._sent["weights"]
        out = self._buffer("out", x)
        if self.relay is None:
            self._arrived()
            experts(x, ids, weights, out)
        else:
            words = self.device.pinned(WORDS).zero_()
            self._ask(*self.relay.add(experts, x, ids, weights, out, words))
        return out.to(self.device.torch, non_blocking=True, copy=True)

    def _ask(self, asked: int, done: int, question: int) -> None:
        """By words: the word `done` is taken back before the question, since a replayed graph writes the same each time."""
        device = self.device
        if self.by_words:
            device.write(done, 0)
            device.write(asked, 1)
            device.wait(done, 1)
        else:
            device.call(answer_from_host(), question)

    def _buffer(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """Host memory of like's shape and dtype, contiguous; the same as before where that is large enough."""
        size = like.numel() * like.element_size()
        if name not in self._host or self._host[name].numel() < size:
            self._host[name] = self.device.pinned(max(size, 1))
        return self._host[name][:size].view(like.dtype).view(like.shape)
