"""The CPU's experts, copied to the device for a prompt that is long enough: each layer while the one before computes."""

import ctypes
import logging
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from kt_core import kernels
from kt_core.device import Device, panels
from kt_core.operators.grouped import Grouped, Weights

log = logging.getLogger(__name__)

BUFFERS = 2  # layers that are on their way or being taken apart
GAP = 1 << 21  # bytes between two pieces of memory that are registered as one


class Streamer:
    """The layers of one device, in their order. A layer's packed weights are copied as they lie, by the link alone, and taken
    apart on the device; memory for two layers packed and one decoded is kept there.
    """

    def __init__(self, device: Device, threshold: int) -> None:
        self.device = device
        self.threshold = threshold  # tokens of a step from which on layers are streamed
        self._layers: list[Streamed] = []
        self._stream: Any = None
        self._arrived: dict[int, Any] = {}

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
            undo = self.device.register(_merged([place for layer in self._layers for place in layer.memory]))
            weakref.finalize(self, undo)  # the layers, and with them the memory, live as long as this
            self._raw = [torch.empty(most, dtype=torch.uint8, device=self.device.torch) for _ in range(BUFFERS)]
            first, down = (max(layer.sizes[part] for layer in self._layers) for part in (0, 1))
            make = {"dtype": self.device.dtype, "device": self.device.torch}
            self._first, self._down = torch.empty(first, **make), torch.empty(down, **make)
        except (RuntimeError, OSError) as e:
            self.threshold = 1 << 62
            log.warning("experts are not streamed: %s", str(e).splitlines()[0])
            return
        self._stream = self.device.stream()

    def weights(self, number: int) -> Weights:
        """Layer `number`, decoded, for what the current stream does next; the next but one begins to come."""
        if number == 0:
            self._arrived.clear()
        for wanted in range(number, min(number + BUFFERS, len(self._layers))):
            if wanted not in self._arrived:
                self._start(wanted)
        self.device.after(self._arrived.pop(number))
        layer, raw = self._layers[number], self._raw[number % BUFFERS]
        have = layer.decoded(raw, self._first, self._down)
        if number + BUFFERS < len(self._layers):
            self._start(number + BUFFERS)
        return have

    def _start(self, number: int) -> None:
        """Copies the layer behind what the current stream has been given: it has read what the buffer held before."""
        layer, raw = self._layers[number], self._raw[number % BUFFERS]
        with self.device.beside(self._stream):
            at = 0
            for source in layer.sources:
                raw[at : at + source.numel()].copy_(source, non_blocking=True)
                at += source.numel()
            self._arrived[number] = self.device.mark()


class Streamed:
    """One layer's experts `numbers` as `kernel` holds them. Raises Unfit where they cannot be copied as they are."""

    def __init__(self, module: Any, kernel: kernels.Experts, numbers: list[int], streamer: Streamer) -> None:
        parts = [kernel.places(number) for number in numbers]
        self._form = parts[0]
        for form in parts:
            if [place.form for place in form] != [place.form for place in self._form]:
                raise Unfit("its experts are stored in several ways")
        for place in self._form:
            if place.biased:
                raise Unfit("its experts have biases")
            for matrix in (place.gate, place.up, place.down):
                if matrix.format not in panels.DECODERS:
                    raise Unfit(f"no device takes {matrix.format} apart yet")
        self.memory = [(place.address, place.nbytes) for expert in parts for place in expert]
        self.sources = [_bytes(address, count) for address, count in self.memory]
        self.bytes = sum(count for _, count in self.memory)
        self._count, self._module, self._hidden = len(numbers), module, kernel.hidden
        self._inner = kernel.intermediate
        both = self._inner * (2 if module.has_gate else 1)
        self.sizes = (self._count * both * self._hidden, self._count * self._hidden * self._inner)
        self._grouped = Grouped(module, numbers, streamer.device)
        self._kernel, self._streamer = kernel, streamer
        self._number = streamer.add(self)

    def takes(self, tokens: int) -> bool:
        """Whether a step of so many tokens is worth the copies."""
        return tokens >= self._streamer.threshold

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """As Grouped: float32 [T, hidden], the sum over these experts."""
        return self._grouped(self._streamer.weights(self._number), x, ids, weights)

    def decoded(self, raw: torch.Tensor, first: torch.Tensor, down: torch.Tensor) -> Weights:
        """From the packed bytes of all experts, with memory for the results."""
        each = raw[: self.bytes].view(self._count, -1)
        hidden, inner, gate = self._hidden, self._inner, self._module.has_gate
        down = down[: self.sizes[1]].view(self._count, hidden, inner)
        shape = (2, inner) if gate and self._module.is_concatenated else (inner, 2) if gate else (1, inner)
        both = first[: self.sizes[0]].view(self._count, *shape, hidden)
        two = (
            both if not gate or self._module.is_concatenated else both.transpose(1, 2)
        )  # [experts, gate and up, rows, K]
        at = row = out = 0
        for place in self._form:
            part = each[:, at : at + place.nbytes]
            for index, matrix in enumerate((place.gate, place.up) if gate else (place.up,)):
                two[:, index, row : row + matrix.rows] = _rows(part, matrix, first.dtype)
            down[:, out : out + place.down.rows] = _rows(part, place.down, down.dtype)
            at, row, out = at + place.nbytes, row + place.up.rows, out + place.down.rows
        return Weights(both.flatten(1, 2), down)


class Unfit(Exception):
    """A layer's experts stay on the CPU however long the prompt; the text says why."""


def _rows(part: torch.Tensor, matrix: Any, dtype: torch.dtype) -> torch.Tensor:
    """One matrix [experts, rows, cols] of the packed bytes of each expert."""
    count = -(-matrix.rows // panels.ROWS)
    shape = (part.shape[0], count, matrix.panel_bytes)
    packed = part[:, matrix.offset :].as_strided(
        shape, (part.stride(0), matrix.stride, 1), part.storage_offset() + matrix.offset
    )
    return panels.decode(matrix.format, packed.contiguous(), matrix.cols, dtype).flatten(1, 2)[:, : matrix.rows]


def _bytes(address: int, count: int) -> torch.Tensor:
    """Memory of the kernels as a tensor; whoever has it keeps the kernel."""
    return torch.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype=torch.uint8)


def _merged(pieces: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pieces of memory that are near each other as one: a page cannot be registered twice."""
    found: list[tuple[int, int]] = []
    for address, count in sorted(pieces):
        if found and address - sum(found[-1]) < GAP:
            found[-1] = (found[-1][0], max(sum(found[-1]), address + count) - found[-1][0])
        else:
            found.append((address, count))
    return found
