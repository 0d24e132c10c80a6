"""The CPU's experts, copied to the device for a prompt that is long enough: each layer while the one before computes, and the
longer the prompt, the more of a layer's experts; the CPU computes the others meanwhile."""

import logging
import math
import time
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from kt_core import kernels
from kt_core.device import Device
from kt_core.operators.grouped import Dense, Grouped
from kt_core.operators.packed import Form, bytes_at

log = logging.getLogger(__name__)

BUFFERS = 2  # layers that are on their way or being taken apart
WHOLE = 0.9  # of a layer's experts; where more are copied, all are
WAY = 3.4e-3  # seconds of a layer in which the CPU waits for rows, or its results are awaited, where both sides compute
PIECE = 1 << 25  # bytes of a copy
FAR = 1 << 62  # tokens of a step for which everything is copied, and a threshold that none reaches
GAP = 1 << 21  # bytes between two pieces of memory that are registered as one


class Streamer:
    """The layers of one device, in their order. A layer's packed weights are copied as they lie, by the link alone, and taken
    apart on the device; memory for two layers packed and one decoded is kept there.
    """

    def __init__(self, device: Device, threshold: int) -> None:
        self.device = device
        self.threshold = (
            threshold  # tokens of a step from which on layers are streamed; copies then take as long as the CPU would
        )
        self._layers: list[Streamed] = []
        self._stream: Any = None
        self._arrived: dict[int, Any] = {}
        self._idle = 0.0  # of the time that a layer's copies take, the part in which the CPU cannot compute

    def add(self, layer: "Streamed") -> int:
        """The layer's number."""
        self._layers.append(layer)
        return len(self._layers) - 1

    def prepare(self) -> None:
        """Once all layers are loaded: memory on the device, and the CPU's made known to it. Where that fails, no step is
        streamed, and the log says why."""
        if not self._layers:
            return
        most = max(layer.bytes for layer in self._layers)
        try:
            undo = self.device.register(merged([place for layer in self._layers for place in layer.memory]))
            weakref.finalize(self, undo)  # the layers, and with them the memory, live as long as this
            self._raw = [torch.empty(most, dtype=torch.uint8, device=self.device.torch) for _ in range(BUFFERS)]
            first, down = (max(layer.sizes[part] for layer in self._layers) for part in (0, 1))
            make = {"dtype": self.device.dtype, "device": self.device.torch}
            self._first, self._down = torch.empty(first, **make), torch.empty(down, **make)
        except (RuntimeError, OSError) as e:
            self.threshold = FAR
            log.warning("experts are not streamed: %s", str(e).splitlines()[0])
            return
        self._stream = self.device.stream()
        if self.device.torch.type != "cpu":
            self._idle = min(1.0, WAY / self._copied())

    def _copied(self) -> float:
        """Seconds that a layer's copies take, the second time."""
        with self.device.use():
            for _ in range(2):
                begin = time.perf_counter()
                self._start(0, FAR)
                self.device.after(self._arrived.pop(0))
                self.device.reached()()
            return time.perf_counter() - begin

    def part(self, tokens: int) -> float:
        """Of a layer's experts, those that are copied for a step of so many tokens: both sides are then done at once, the CPU's
        time for all of them being `tokens` / `threshold` of the copies', and of that `_idle` more whatever it computes."""
        part = 1 - (1 - self._idle) / (1 + tokens / self.threshold)
        return 1.0 if part > WHOLE else part

    def weights(self, number: int, tokens: int) -> Dense:
        """Layer `number`'s experts that are copied, decoded, for what the current stream does next; the next layer but one begins
        to come. The same tokens for all layers of a step."""
        if number == 0:
            self._arrived.clear()
        for wanted in range(number, min(number + BUFFERS, len(self._layers))):
            if wanted not in self._arrived:
                self._start(wanted, tokens)
        self.device.after(self._arrived.pop(number))
        layer, raw = self._layers[number], self._raw[number % BUFFERS]
        have = layer.decoded(raw, layer.copied(tokens), self._first, self._down)
        if number + BUFFERS < len(self._layers):
            self._start(number + BUFFERS, tokens)
        return have

    def _start(self, number: int, tokens: int) -> None:
        """Copies the layer behind what the current stream has been given: it has read what the buffer held before."""
        layer, raw = self._layers[number], self._raw[number % BUFFERS]
        with self.device.beside(self._stream):
            at = 0
            for source in layer.sources(tokens):
                raw[at : at + source.numel()].copy_(source, non_blocking=True)
                at += source.numel()
            self._arrived[number] = self.device.mark()


class Streamed:
    """One layer's experts `numbers` as `kernel` holds them, all in the same form."""

    def __init__(
        self,
        module: Any,
        form: Form,
        kernel: kernels.Experts,
        numbers: list[int],
        streamer: Streamer,
        biases: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        places = [place for number in numbers for place in kernel.places(number)]
        self.memory = [(place.address, place.nbytes) for place in places]
        self._places = places
        self.bytes = len(numbers) * form.bytes
        self.sizes = form.sizes(len(numbers))
        self.numbers, self._form = numbers, form
        self._make = partial(Grouped, module, device=streamer.device, biases=biases)
        self._grouped: dict[int, Grouped] = {}  # by how many are copied
        self._sources: dict[int, list[torch.Tensor]] = {}  # likewise
        self._kernel, self._streamer = kernel, streamer
        self._number = streamer.add(self)

    def takes(self, tokens: int) -> bool:
        """Whether a step of so many tokens is worth the copies."""
        return tokens >= self._streamer.threshold

    def copied(self, tokens: int) -> int:
        """How many experts, the first of `numbers`, are copied for a step of so many tokens."""
        return math.ceil(self._streamer.part(tokens) * len(self.numbers))

    def sources(self, tokens: int) -> list[torch.Tensor]:
        """What is copied for a step of so many tokens, one behind the other. Experts that follow each other in memory are one
        copy, up to PIECE bytes: one each would be thousands of calls a step."""
        count = self.copied(tokens)
        if count not in self._sources:
            runs: list[list[int]] = []
            for place in self._places[: count * (len(self._places) // len(self.numbers))]:
                if runs and sum(runs[-1]) == place.address and runs[-1][1] < PIECE:
                    runs[-1][1] += place.nbytes
                else:
                    runs.append([place.address, place.nbytes])
            self._sources[count] = [bytes_at(*run) for run in runs]
        return self._sources[count]

    def grouped(self, tokens: int) -> Grouped:
        """Where those are."""
        count = self.copied(tokens)
        if count not in self._grouped:
            self._grouped[count] = self._make(self.numbers[:count])
        return self._grouped[count]

    def others(self, ids: torch.Tensor) -> torch.Tensor:
        """`ids` [T, K] with -1 for the experts that are copied for T tokens."""
        grouped = self.grouped(len(ids))
        return ids.masked_fill(grouped.place[ids] < grouped.count, -1)

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """As Grouped: float32 [..., T, hidden], the sums over the experts that are copied for so many tokens."""
        return self.grouped(len(x))(self._streamer.weights(self._number, len(x)), x, ids, weights)

    def decoded(self, raw: torch.Tensor, count: int, first: torch.Tensor, down: torch.Tensor) -> Dense:
        """From the packed bytes of the first `count` experts, with memory for the results."""
        each = raw[: count * self._form.bytes].view(count, -1)
        return Dense(self._form.first(each, first), self._form.down(each, down), self._streamer.device)


def merged(pieces: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pieces of memory that are near each other as one: a page cannot be registered twice."""
    found: list[tuple[int, int]] = []
    for address, count in sorted(pieces):
        if found and address - sum(found[-1]) < GAP:
            found[-1] = (found[-1][0], max(sum(found[-1]), address + count) - found[-1][0])
        else:
            found.append((address, count))
    return found
