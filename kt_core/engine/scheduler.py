"""Which sequences the next step computes, how many tokens of each, and who has to wait."""

import time
from bisect import insort
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from kt_core.engine.pages import Pages
from kt_core.engine.sequence import Sequence
from kt_core.engine.stream import Stream

_ORDER = attrgetter("order")


class Part(NamedTuple):
    """The next `size` tokens of a sequence."""

    sequence: Sequence
    size: int


class Scheduler:
    """Everything in order of arrival: steps, pages, and the way back of those that had to give theirs up.

    A sequence runs once it has the pages of all its tokens, so only decoding asks for more. When there are none left
    the youngest gives up its own and is computed again later. The oldest therefore always goes on, and since its
    context fits into the pages, it ends.
    """

    def __init__(
        self,
        pages: Pages,
        max_tokens: int,
        max_running: int,
        release: Callable[[int], None],
        begin: Callable[[Sequence, str], None],
    ) -> None:
        self.pages = pages
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []  # those of requests that have begun: further choices, and preempted ones
        self.preempted = 0  # times, ever
        self._max_tokens = max_tokens
        self.max_running = min(max_running, max_tokens)  # each of them takes part in each step
        self._release = release
        self._begin = begin  # finds more of the sequence's prefix, told why pages have no more, and lets it begin
        self._numbers = 0

    def room_for(self, stream: Stream) -> bool:
        """Whether a new request can begin at once, behind all that have."""
        if self.waiting or len(self.running) >= self.max_running:
            return False
        return self._enough(stream.keys, stream.request.scores_prompt)

    def add(self, sequences: list[Sequence]) -> None:
        """The choices of a request that begins; `plan` lets them run."""
        for sequence in sequences:
            insort(self.waiting, sequence, key=_ORDER)
        self._admit()

    def plan(self, beside: int) -> list[Part]:
        """The next step: a token of all that decode, then prompts, up to `beside` tokens of them if anything decodes."""
        decoding = [s for s in self.running if s.pending == 1 and not s.load]
        parts = [Part(s, 1) for s in decoding if s in self.running and self._grow(s)]
        parts = [part for part in parts if part.sequence in self.running]
        self._admit()
        left = min(beside, self._max_tokens - len(parts)) if parts else self._max_tokens
        planned = {part.sequence for part in parts}
        for sequence in self.running:
            if sequence not in planned and left and not sequence.load:
                parts.append(Part(sequence, min(sequence.pending, left, sequence.most)))
                left -= parts[-1].size
        # Rows of one adapter lie side by side: each adapter's additions are computed once.
        return sorted(parts, key=lambda part: (part.sequence.adapter, part.sequence.order))

    def remove(self, sequence: Sequence) -> None:
        """It has ended, wherever it is."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._drop(sequence)
        else:
            self.waiting.remove(sequence)

    def _admit(self) -> None:
        """Let sequences run in their order, while there is room for the first."""
        while self.admits:
            sequence = self.waiting.pop(0)
            sequence.table, miss = self.pages.match(sequence.keys, sequence.scoring)
            sequence.computed = len(sequence.table.pages) * self.pages.page
            self.pages.grow(sequence.table, self.pages.pages_of(len(sequence.tokens)))
            self._numbers += 1
            sequence.number = self._numbers
            sequence.begun = sequence.begun or time.monotonic()
            self._begin(sequence, miss)
            insort(self.running, sequence, key=_ORDER)

    @property
    def admits(self) -> bool:
        """Whether the first that waits may run."""
        if not self.waiting or len(self.running) >= self.max_running:
            return False
        return self._ready(self.waiting[0]) and self._enough(self.waiting[0].keys, self.waiting[0].scoring)

    def _ready(self, sequence: Sequence) -> bool:
        """Further choices wait until the first has put the prompt's pages where they find them."""
        same = (s for s in self.running if s.stream is sequence.stream)
        return not (self.pages.shared and any(s.choice == 0 and s.prefilling for s in same))

    def _enough(self, tokens: list[int], whole: bool) -> bool:
        """Whether there are pages for a new sequence, and then one more for each that runs."""
        return self.pages.cost(tokens, whole) + len(self.running) <= self.pages.available

    def _grow(self, sequence: Sequence) -> bool:
        """Pages for the sequence's next token. False when it had to give up its own instead."""
        while not self.pages.grow(sequence.table, self.pages.pages_of(len(sequence.tokens))):
            youngest = self.running.pop()
            self._drop(youngest)
            youngest.computed = 0
            insort(self.waiting, youngest, key=_ORDER)
            self.preempted += 1
            if youngest is sequence:
                return False
        return True

    def _drop(self, sequence: Sequence) -> None:
        if sequence.load:
            sequence.load.cancel()
            sequence.load = None
        self.pages.release(sequence.table)
        self._release(sequence.number)
