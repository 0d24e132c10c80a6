"""Decoding steps as graphs of a device: what Python says once is replayed, the CPU's experts included."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional as F

from kt_core.device import Device
from kt_core.device.pages import Sequences
from kt_core.engine.step import Step
from kt_core.kernels.relay import Relay
from kt_core.operators.crossing import Crossing

log = logging.getLogger(__name__)

LEAST_PAGES = 4  # of a sequence that a graph has room for; others have twice as many, and so on


@dataclass(frozen=True)
class Placed:
    """A step on a device. `parts`: of each sequence its first token, the one behind its last, and its keys, known on the CPU;
    None where each has one token."""

    tokens: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int64 [T]
    slots: torch.Tensor  # int64 [T]
    lengths: torch.Tensor  # int64 [B]
    tables: torch.Tensor  # int64 [B, P]
    outputs: torch.Tensor  # int64 [R]
    parts: list[tuple[int, int, int]] | None
    elsewhere: "dict[torch.device, Placed]" = field(default_factory=dict)  # the same on further devices

    def on(self, device: torch.device) -> "Placed":
        """The same there, copied once."""
        if device == self.tokens.device:
            return self
        if device not in self.elsewhere:
            names = ("tokens", "positions", "slots", "lengths", "tables", "outputs")
            copies = {name: getattr(self, name).to(device) for name in names}
            self.elsewhere[device] = replace(self, **copies, elsewhere={})
        return self.elsewhere[device]

    @cached_property
    def sequences(self) -> Sequences:
        return Sequences(self.tables, self.lengths)

    @classmethod
    def of(cls, step: Step, device: torch.device) -> "Placed":
        """The step, copied to the device."""
        batch, parts = step.batch, None
        if len(step.tokens) > len(step.sequences):
            starts = pairwise(batch.starts.tolist())
            parts = [(begin, end, keys) for (begin, end), keys in zip(starts, batch.lengths.tolist(), strict=True)]

        def there(part: torch.Tensor) -> torch.Tensor:
            return part.to(device, torch.int64)

        tables = there(batch.tables.clamp(min=0))
        tokens, positions, slots = there(step.tokens), there(step.positions), there(step.slots)
        return cls(tokens, positions, slots, there(batch.lengths), tables, there(step.outputs), parts)


@dataclass(frozen=True)
class Captured:
    """A graph, the host memory that it reads the step from, and what it asks of the CPU. `kept` was made before the capture and
    is not the graph's own, so the allocator would give it to others while replays go on with it."""

    inputs: torch.Tensor
    kept: tuple[torch.Tensor, ...]
    graph: Any
    result: torch.Tensor
    relay: Relay


class Graphs:
    """Captures `compute` (a step on the device to its logits there) for `sizes` sequences and powers of two of pages.

    The first step of each kind is computed plainly and captured then. A step of another number of sequences is filled up
    with its last one, which costs no weights that were not read anyway. Where something cannot be captured, one line in
    the log says why and steps go on without.
    """

    def __init__(self, crossing: Crossing, sizes: tuple[int, ...], compute: Callable[[Placed], torch.Tensor]) -> None:
        self._crossing = crossing
        self._sizes = sorted(sizes)
        self._compute = compute
        self._captured: dict[tuple[int, int], Captured] = {}
        self._off = False
        # A graph of thousands of operations does not fit into the device's queue at once: its launch waits for room there, and so
        # for the answers to what it has asked
        self._launcher = ThreadPoolExecutor(1, "kt-launch")
        if sizes:
            self._set_up(crossing.device)

    def _set_up(self, device: Device) -> None:
        if reason := device.no_graphs():
            self._give_up(reason)
        elif reason := device.words_unusable():
            self._crossing.by_words = False
            log.info("graphs ask for the CPU's experts by the driver's threads: %s", reason)

    def _give_up(self, reason: object) -> None:
        self._off = True
        log.info("steps are not captured as graphs: %s", reason)

    def forget(self) -> None:
        """What was captured has gone out of date."""
        self._captured.clear()

    def takes(self, step: Step) -> bool:
        """Whether the step has one token of each of few sequences, all of whose logits are wanted."""
        count = len(step.tokens)
        few = bool(self._sizes) and count <= self._sizes[-1]
        return not self._off and few and count == len(step.sequences) == len(step.outputs)

    def forward(self, step: Step) -> torch.Tensor:
        """float32 [R, vocab] on the CPU."""
        count, device = len(step.tokens), self._crossing.device
        size = next(size for size in self._sizes if size >= count)
        pages = LEAST_PAGES
        while pages < step.batch.tables.shape[1]:
            pages *= 2
        found = self._captured.get((size, pages))
        if found is None:
            result = self._compute(Placed.of(step, device.torch)).cpu()
            self._capture(step, size, pages)
            return result
        found.inputs.copy_(_row(step, size, pages))
        launched = self._launcher.submit(self._launch, found.graph)
        try:
            if self._crossing.by_words:
                found.relay.serve()
        except RuntimeError:
            if launched.done():  # it has failed as well, and is the cause
                launched.result()
            raise
        launched.result()
        result = found.result[:count].cpu()
        found.relay.check()
        return result

    def _launch(self, graph: Any) -> None:
        with self._crossing.device.use():
            graph.replay()

    def _capture(self, step: Step, size: int, pages: int) -> None:
        device, crossing = self._crossing.device, self._crossing
        row = _row(step, size, pages)
        inputs = device.pinned(row.nbytes).view(torch.int64).copy_(row)
        there = torch.empty_like(row, device=device.torch)
        outputs = torch.arange(size, device=device.torch)
        self._compute(_placed(row.to(device.torch), size, outputs))  # libraries make their plans for this size now
        crossing.relay = relay = Relay()

        def work() -> torch.Tensor:
            there.copy_(inputs, non_blocking=True)
            return self._compute(_placed(there, size, outputs))

        try:
            beside = next((captured.graph for captured in self._captured.values()), None)
            graph, result = device.capture(work, beside)
        except RuntimeError as e:
            self._give_up(str(e).splitlines()[0])
            return
        finally:
            crossing.relay = None
        self._captured[size, pages] = Captured(inputs, (there, outputs), graph, result, relay)
        log.info(
            "captured a step of %d sequences of up to %d pages, which asks the CPU %d times", size, pages, len(relay)
        )


def _row(step: Step, size: int, pages: int) -> torch.Tensor:
    """The step's numbers as one row of int64, filled up with its last sequence and pages that are not looked at."""
    batch = step.batch
    tables = F.pad(batch.tables.clamp(min=0), (0, pages - batch.tables.shape[1]))
    columns = [step.tokens, step.positions, step.slots, batch.lengths, *tables.T]
    whole = torch.stack([column.long() for column in columns])  # [4 + pages, B]
    last = whole[:, -1:].expand(-1, size - whole.shape[1])
    return torch.cat((whole, last), 1).flatten()


def _placed(row: torch.Tensor, size: int, outputs: torch.Tensor) -> Placed:
    columns = row.view(-1, size)
    tokens, positions, slots, lengths = columns[:4]
    return Placed(tokens, positions, slots, lengths, columns[4:].T, outputs, None)
