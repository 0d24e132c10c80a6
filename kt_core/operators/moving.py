"""Experts that change places while a model runs: those that tokens ask for now come to the device.

The CPU has all of them, the device copies of some. Between two steps it is settled which ones go and come, and the packed bytes
of those that come begin their way on a stream of their own, layer by layer; in the step, a layer waits for its own, which are
there long before. Graphs go on being right: which experts are where, and what to wait for, they read from memory that stays.

A copy takes memory's time and Python's, so what copies bring is counted: all experts are, wherever they are.
"""

import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kt_core.device import Device
from kt_core.operators.hybrid import HybridExperts
from kt_core.operators.packed import memory
from kt_core.operators.resident import Resident
from kt_core.operators.streamed import merged

log = logging.getLogger(__name__)
Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]
Swaps = tuple[Numbers, Numbers, Numbers]  # layers, the experts that go, and those that come

# The numbers below were found with the traces of tests/device/routing.py: 10 % of 128 experts there, and 8 asked for by a token.
EVERY, SELDOM = 2, 8  # steps between two turns, while copies bring something and while they do not
HALF = 3.0  # steps after which what was asked counts half
FEW = 16  # tokens of a step that is one of single tokens; more are a prompt, which counts like 2 HALF steps of one
RATIO, MARGIN = 1.2, 0.5  # an expert comes when it was asked RATIO times as often as the one that goes, and MARGIN more
AT_ONCE = 4  # of one layer between two steps
BYTES = 1e10  # of copies in a second, a fifth of a link
SAVED = 0.04  # seconds of copies that may be made up for
LIFE = 16  # steps after which it is counted what a copy brought
PAYS = 0.5  # times that it must be asked for more than the expert that went: two are what it costs in time, at most
TRIED = 1 / 32  # of the time for copies, where they do not: they go on being counted
REMEMBERED = 256.0  # copies that this is counted over
APART = 64  # bytes between two words that a device and the CPU look at


class Scores:
    """How much experts were asked for lately: [layers, experts]."""

    def __init__(self, layers: int, experts: int) -> None:
        self.values: Floats = np.zeros((layers, experts))
        self._most = min(AT_ONCE, experts)

    def saw(self, asked: Floats, tokens: float, steps: int) -> None:
        """asked [layers, experts] by `tokens` tokens of the last steps."""
        weight = 1.0
        if tokens > FEW * steps:
            steps, weight = int(2 * HALF), 2 * HALF / tokens
        self.values *= 2 ** (-steps / HALF)
        self.values += asked * weight

    def wanted(self, there: NDArray[np.bool_], most: int) -> Swaps:
        """Those `most` that gain the most."""
        inside = np.where(there, self.values, np.inf)
        outside = np.where(there, np.inf, -self.values)
        go, come = (np.argpartition(part, self._most - 1, 1)[:, : self._most] for part in (inside, outside))
        lows, highs = np.take_along_axis(inside, go, 1), -np.take_along_axis(outside, come, 1)
        ranks = np.argsort(lows, 1), np.argsort(-highs, 1)
        pairs = ((go, ranks[0]), (come, ranks[1]), (lows, ranks[0]), (highs, ranks[1]))
        go, come, lows, highs = (np.take_along_axis(part, rank, 1) for part, rank in pairs)
        layers, at = np.nonzero(highs > RATIO * lows + MARGIN)
        best = np.argsort(lows[layers, at] - highs[layers, at])[:most]
        layers, at = layers[best], at[best]
        return layers, go[layers, at], come[layers, at]


class Gains:
    """What copies have brought: asks of the experts that came, less those of the ones that went, in LIFE steps."""

    def __init__(self) -> None:
        self._made: deque[tuple[int, Swaps, Floats]] = deque()
        self._gained = self._copies = 0.0

    def made(self, step: int, swaps: Swaps, asked: Floats) -> None:
        """`asked` [layers, experts] since the start."""
        self._made.append((step, swaps, _more(swaps, asked)))

    def saw(self, step: int, asked: Floats) -> None:
        while self._made and self._made[0][0] <= step - LIFE:
            _, swaps, before = self._made.popleft()
            kept = 2 ** (-len(before) / REMEMBERED)
            self._gained = self._gained * kept + float((_more(swaps, asked) - before).sum())
            self._copies = self._copies * kept + len(before)

    def forget(self) -> None:
        """A prompt asks for more than single tokens do: what was copied before it is not counted."""
        self._made.clear()

    @property
    def pay(self) -> bool:
        return self._copies < AT_ONCE or self._gained >= PAYS * self._copies


def _more(swaps: Swaps, asked: Floats) -> Floats:
    layers, old, new = swaps
    return asked[layers, new] - asked[layers, old]


class Moves:
    """The layers of a device whose experts move; `turn` is called between two steps, and nothing else may run on it then.

    `allowance` are bytes of copies in a second, `clock` gives seconds.
    """

    def __init__(
        self,
        device: Device,
        layers: Sequence[HybridExperts],
        allowance: float = BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._device, self._layers = device, list(layers)
        self._residents: list[Resident] = [layer.resident for layer in layers if layer.resident]
        self._forms: Numbers = np.array([layer.form.bytes for layer in layers if layer.form])
        self._size = int(self._forms.max())
        # one table for all layers: whatever moves between two steps is one assignment of numbers
        masks = torch.stack([layer.elsewhere for layer in layers])
        for row, layer in zip(masks, layers, strict=True):
            layer.kernel.elsewhere = row
        self._there: NDArray[np.bool_] = masks.numpy()
        self._slots: Numbers = np.full(masks.shape, -1)
        for row, resident in zip(self._slots, self._residents, strict=True):
            row[resident.numbers] = range(len(resident.numbers))
        self._table = torch.stack([resident.grouped.place for resident in self._residents])
        for place, resident in zip(self._table, self._residents, strict=True):
            resident.grouped.place = place
        self._parts: dict[tuple[int, int], list[torch.Tensor]] = {}  # of experts that came once, their packed bytes
        self._asked = self._counts()
        self._scores, self._gains = Scores(*self._asked.shape), Gains()
        self._allowance, self._clock, self._last, self._left = allowance, clock, clock(), 0.0
        self._step = self._turned = 0
        self._stream = device.stream()
        # of each layer a word that is 1 when all that was on its way is there; a device without waits between steps
        self._words: torch.Tensor | None = None
        if not device.no_graphs() and not device.words_unusable():
            self._words = device.pinned(APART * len(self._residents)).view(torch.int32).fill_(1)
            for resident, word in zip(self._residents, self._words.split(APART // 4), strict=True):
                resident.word = word
        self.moved = self.bytes = self.hits = 0

    @staticmethod
    def of(model: Any) -> "list[Moves]":
        """Of the layers of a model whose experts can move, one for each device that has some."""
        layers = [
            module
            for module in model.modules()
            if isinstance(module, HybridExperts)
            and module.moves
            and module.form is not None
            and module.resident is not None
            and len(module.resident.numbers) < module.num_experts
        ]
        devices = {id(layer.crossing.device): layer.crossing.device for layer in layers}
        found = []
        for number, device in devices.items():
            own = [layer for layer in layers if id(layer.crossing.device) == number]
            with device.use():
                found.append(Moves._known(device, [layer for layer in own if layer.num_experts == own[0].num_experts]))
        return found

    @staticmethod
    def _known(device: Device, alike: list[HybridExperts]) -> "Moves":
        """Moves whose layers' memory the driver knows, so that nobody waits for copies."""
        moves = Moves(device, alike)
        if not all(layer.streamed for layer in alike):  # else their memory is known to the driver
            try:
                places = [
                    place for layer in alike for n in range(layer.num_experts) for place in layer.kernel.places(n)
                ]
                weakref.finalize(moves, device.register(merged([(place.address, place.nbytes) for place in places])))
            except (RuntimeError, OSError) as e:
                log.info("experts come through memory of the driver's own: %s", str(e).splitlines()[0])
        return moves

    def turn(self) -> Mapping[str, int]:
        """Experts that are asked for more begin to come, in place of some that are not. How many came since the start, their
        bytes, and how often experts there were asked."""
        self._step += 1
        if self._step - self._turned >= (EVERY if self._gains.pay else SELDOM):
            with self._device.use():
                self._look()
            self._turned = self._step
        return {"experts": self.moved, "bytes": self.bytes, "hits": self.hits}

    def _counts(self) -> Floats:
        """How often every expert was asked for since the start: [layers, experts]."""
        return np.stack([layer.counted for layer in self._layers]).astype(np.float64)

    def _look(self) -> None:
        asked, steps = self._counts(), self._step - self._turned
        new, self._asked = asked - self._asked, asked
        tokens = float(new.sum()) / sum(layer.slots for layer in self._layers)
        now = self._clock()
        if tokens > FEW * steps:
            self._gains.forget()
        self._gains.saw(self._step, asked)
        share = 1.0 if self._gains.pay else TRIED
        most = max(self._allowance * SAVED, float(self._size))
        self._left = min(most, self._left + (now - self._last) * self._allowance * share)
        self._last = now
        if tokens > 0:
            self.hits += int(new[self._there].sum())
            self._scores.saw(new, tokens, steps)
            if self._left >= self._size:
                self._swap(self._scores.wanted(self._there, int(self._left // self._size)))

    def _swap(self, swaps: Swaps) -> None:
        layers, old, new = swaps
        if not len(layers):
            return
        self._left -= len(layers) * self._size
        slots = self._slots[layers, old]
        self._there[layers, old], self._there[layers, new] = False, True
        self._slots[layers, old], self._slots[layers, new] = -1, slots
        self._point(layers, old, new, slots)
        order = np.argsort(layers, kind="stable")
        coming = zip(layers[order].tolist(), slots[order].tolist(), new[order].tolist(), strict=True)
        with self._device.beside(self._stream):
            for layer, some in groupby(coming, lambda one: one[0]):
                self._bring(layer, [(slot, expert) for _, slot, expert in some])
            wait = self._device.reached() if self._words is None else None
        if wait:
            wait()
        self.moved += len(layers)
        self.bytes += sum(self._forms[layers].tolist())
        self._gains.made(self._step, swaps, self._asked)

    def _bring(self, layer: int, coming: list[tuple[int, int]]) -> None:
        """(its place, the expert)"""
        resident = self._residents[layer]
        if resident.word is not None:
            resident.word[0] = 0
        for slot, expert in coming:
            key = layer, expert
            if key not in self._parts:
                self._parts[key] = [memory(place) for place in self._layers[layer].kernel.places(expert)]
            resident.numbers[slot] = expert
            resident.put(slot, self._parts[key])
        if resident.word is not None:
            self._device.write(resident.word.data_ptr(), 1)

    def _point(self, layers: Numbers, old: Numbers, new: Numbers, slots: Numbers) -> None:
        """The device's table follows."""
        there = np.array([len(resident.numbers) for resident in self._residents])[layers]
        places = np.stack([np.tile(layers, 2), np.concatenate((old, new)), np.concatenate((there, slots))])
        rows, experts, values = torch.from_numpy(places).to(self._device.torch)
        self._table[rows, experts] = values
