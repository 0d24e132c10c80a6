"""Experts of all layers that are brought to a device for each pass: there and back through the layers, each time the next one
comes while one computes."""

import weakref
from typing import Any

import torch

from kt_core.device import Device
from kt_core.kernels import Experts
from kt_core.operators.packed import Form, memory
from kt_core.operators.streamed import merged

BUFFERS = 2


class Streams:
    """Layers in their order. One is decoded at a time, and stays until another is asked for."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._layers: list[Layer] = []
        self._arrived: dict[int, Any] = {}  # by layer: when its bytes are in its buffer
        self._holds: list[int | None] = [None] * BUFFERS
        self._now: int | None = None  # whose weights are decoded
        self._step = 1

    def add(self, layer: "Layer") -> None:
        layer.number = len(self._layers)
        self._layers.append(layer)

    def prepare(self) -> None:
        """Memory on the device, and the host's made known to it, once all layers are there. Raises RuntimeError, OSError."""
        pieces = [place for layer in self._layers for place in layer.memory]
        weakref.finalize(self, self.device.register(merged(pieces)))
        most = max(layer.bytes for layer in self._layers)
        self._raw = [torch.empty(most, dtype=torch.uint8, device=self.device.torch) for _ in range(BUFFERS)]
        first, down = (max(layer.sizes[part] for layer in self._layers) for part in (0, 1))
        make = {"dtype": self.device.dtype, "device": self.device.torch}
        self._first, self._down = torch.empty(first, **make), torch.empty(down, **make)
        self._stream = self.device.stream()

    def weights(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Layer `number`'s experts, decoded, for what the current stream does next; the layer that will be asked for next begins
        to come."""
        layer = self._layers[number]
        if self._now != number:
            if self._now is not None:
                self._step = 1 if number > self._now else -1
            self._bring(number)
            self.device.after(self._arrived.pop(number))
            slot = self._holds.index(number)
            self._have = layer.decoded(self._raw[slot], self._first, self._down)
            self._holds[slot] = None
            self._now = number
            last = len(self._layers) - 1
            for _ in range(BUFFERS):  # it turns round at either end
                self._step = -1 if number == last else 1 if number == 0 else self._step
                number += self._step
                if 0 <= number <= last:
                    self._bring(number)
        return self._have

    def _bring(self, number: int) -> None:
        """Copies the layer behind what the current stream has been given: it has read what the buffer held before."""
        if number in self._holds:
            return
        slot = self._holds.index(None) if None in self._holds else 0
        if (old := self._holds[slot]) is not None:
            self._arrived.pop(old)
        self._holds[slot] = number
        raw, at = self._raw[slot], 0
        with self.device.beside(self._stream):
            for source in self._layers[number].sources:
                raw[at : at + source.numel()].copy_(source, non_blocking=True)
                at += source.numel()
            self._arrived[number] = self.device.mark()


class Layer:
    """One layer's experts `numbers` as `kernel` holds them, all in the same form."""

    number = 0

    def __init__(self, form: Form, kernel: Experts, numbers: range) -> None:
        places = [place for number in numbers for place in kernel.places(number)]
        self.memory = [(place.address, place.nbytes) for place in places]
        self.sources = [memory(place) for place in places]
        self.bytes = len(numbers) * form.bytes
        self.sizes = form.sizes(len(numbers))
        self._count, self._form = len(numbers), form

    def decoded(self, raw: torch.Tensor, first: torch.Tensor, down: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        each = raw[: self.bytes].view(self._count, -1)
        return self._form.first(each, first), self._form.down(each, down)
