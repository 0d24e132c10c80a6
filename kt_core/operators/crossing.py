"""Rows on their way from a device to the CPU's experts and back, over pinned memory that all layers share."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from kt_core.device import Device
from kt_core.kernels import Experts
from kt_core.kernels.relay import WORDS, Relay, answer_from_host

log = logging.getLogger(__name__)

Question = tuple[int, int, int]  # the addresses of its two words and its own, as Relay.add has them


@dataclass
class Asked:
    """What the CPU computes of a layer for the next one: `out` = experts(x, ids, weights), in host memory."""

    experts: Experts
    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    out: torch.Tensor
    question: Question | None = None  # of a step that is captured
    done: bool = False

    def compute(self) -> None:
        if self.question is None and not self.done:
            self.experts(self.x, self.ids, self.weights, self.out)
        self.done = True


@dataclass
class Left:
    """What a layer has left to the next one: float32 or x's dtype [T, hidden] that the device has, and what the CPU is asked for."""

    there: list[torch.Tensor] = field(default_factory=list)
    asked: Asked | None = None


class Crossing:
    """One for each device. A layer sends its rows, gives the device work of its own, and asks for the CPU's part.

    Layers follow each other in the order of the device's stream, so one set of buffers serves all: a layer sends only after
    the answer of the one before has left them. Where layers leave work to the next one there are two sets, which take turns.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.relay: Relay | None = None  # while a step is captured: what the CPU will do when it is replayed
        self.by_words = True  # how a captured step asks: by words in memory, else by functions that the driver calls
        self.two_sets = False  # of buffers: one may hold what a layer has left, while the next one sends
        self._asked: Asked | None = None  # by the layer that has sent last
        self._left = Left()  # by the layer that was computed last
        self._host: dict[tuple[str, bool], torch.Tensor] = {}
        self._turn = False
        self._arrived: Callable[[], None] = lambda: None
        self._kernels = tried(device)

    def send(
        self,
        experts: Experts,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        later: torch.Tensor | None = None,
    ) -> None:
        """What `experts` are asked for: x [T, hidden] float32 or bfloat16, ids and weights [T, K], all on the device; `later`:
        ids that the next layer's answer is early enough for. What is negative in either is nobody. In a replayed step the CPU
        begins now, whatever the device is given between this and the answer."""
        self._turn = self.two_sets and not self._turn
        rows, chosen, part = self._sent(x, ids, weights)
        self._asked = Asked(experts, rows, chosen, part, self._buffer("out", x))
        self._left.asked = None
        if later is not None:
            then = self._buffer("later", later.long()).copy_(later, non_blocking=True)
            self._left.asked = Asked(experts, rows, then, part, self._buffer("left", x))
        if self.relay is None:
            self._arrived = self.device.reached()
            return
        asked = [one for one in (self._asked, self._left.asked) if one]
        for one in asked:
            one.question = self.relay.add(experts, one.x, one.ids, one.weights, one.out, self._words())
        self._ask([one.question for one in asked if one.question])

    def answer(self, before: Left, there: torch.Tensor | None = None) -> torch.Tensor:
        """[T, hidden] on the device: what the CPU makes of what was sent, experts elsewhere left out, on top of what is `there`
        in float32; in x's dtype without that, or where it was rounded already. What the layer before has left is computed
        first, while the device is on its way here."""
        asked = self._asked
        assert asked is not None
        if asked.question:
            self._wait(asked.question)
        else:
            if before.asked:
                before.asked.compute()
            self._arrived()
            asked.compute()
        if self._kernels is not None and len(asked.out):
            return self._kernels.collect(there, asked.out, self.device.torch)
        own = asked.out.to(self.device.torch, non_blocking=True, copy=True)
        return own if there is None else there + own

    def taken(self) -> Left:
        """What the layer before has left, once."""
        left, self._left = self._left, Left()
        return left

    def leave(self, parts: list[torch.Tensor]) -> None:
        """For the next layer, of what the device has computed."""
        self._left.there = parts

    def collected(self, left: Left) -> list[torch.Tensor]:
        """What a layer has left to this one, on the device."""
        asked = left.asked
        if asked is None:
            return left.there
        asked.compute()
        if asked.question:
            self._wait(asked.question)
        return [*left.there, asked.out.to(self.device.torch, non_blocking=True, copy=True)]

    def _words(self) -> torch.Tensor:
        return self.device.pinned(WORDS).zero_()

    def _ask(self, questions: list[Question]) -> None:
        """By words: the word `done` is taken back before the question, since a replayed graph writes the same each time. All are
        asked at once, so that the CPU goes on from one to the next."""
        if self.by_words:
            for _, done, _ in questions:
                self.device.write(done, 0)
            for asked, _, _ in questions:
                self.device.write(asked, 1)

    def _wait(self, question: Question) -> None:
        _, done, number = question
        if self.by_words:
            self.device.wait(done, 1)
        else:
            self.device.call(answer_from_host(), number)

    def _sent(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Where they are in host memory, once the stream is there."""
        if self._kernels is not None and len(x) and all(part.is_contiguous() for part in (x, ids, weights)):
            to = self._buffer("x", x), self._buffer("ids", ids, torch.int64), self._buffer("weights", weights, torch.float32)  # fmt: skip
            self._kernels.send((x, ids, weights), to)
            return to
        parts = {"x": x, "ids": ids.long(), "weights": weights.float()}
        rows, chosen, part = (self._buffer(name, one).copy_(one, non_blocking=True) for name, one in parts.items())
        return rows, chosen, part

    def _buffer(self, name: str, like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Host memory of like's shape and dtype, contiguous; the same as before where that is large enough."""
        dtype = dtype or like.dtype
        size, key = like.numel() * dtype.itemsize, (name, self._turn)
        if key not in self._host or self._host[key].numel() < size:
            self._host[key] = self.device.pinned(max(size, 1))
        return self._host[key][:size].view(dtype).view(like.shape)


def tried(device: Device) -> Any:
    """device.crossed, where kernels reach host memory as it must be; else None."""
    if device.kind != "cuda" or not find_spec("triton"):
        return None
    try:
        kernels = import_module("kt_core.device.crossed")
        x = torch.arange(6.0, device=device.torch).view(2, 3)
        parts = x, x[:, :2].long().contiguous(), x[:, :2].contiguous()
        to = tuple(device.pinned(part.nbytes).view(part.dtype).view(part.shape) for part in parts)
        kernels.send(parts, to)
        device.reached()()
        both = kernels.collect(x, to[0], device.torch).cpu()
    except Exception as e:  # whatever a compiler or a driver says
        log.info("rows are copied to the CPU: %s", str(e).splitlines()[:1])
        return None
    same = all(torch.equal(one, part.cpu()) for one, part in zip(to, parts, strict=True))
    return kernels if same and torch.equal(both, 2 * x.cpu()) else None
