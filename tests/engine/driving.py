"""Steps made by hand, for runners without an engine."""

import itertools

import torch

from kt_core.engine.step import Step
from kt_core.kernels.attention import Batch

_NUMBERS = itertools.count()  # a sequence's never comes again, as in the engine


class Sequence:
    """One sequence of a runner, in pages of its own."""

    def __init__(self, number, pages):
        self.number, self.pages, self.length = number, pages, 0


class Driver:
    """Feeds tokens to several sequences of a runner."""

    def __init__(self, runner, tokens=1024, sequences=4):
        self.runner = runner
        self._each = -(-tokens // runner.page)
        runner.allocate(self._each * sequences)
        self._made = 0

    def sequence(self):
        pages = list(range(self._each * self._made, self._each * (self._made + 1)))
        self._made += 1
        return Sequence(next(_NUMBERS), pages)

    def step(self, *parts, wanted=None):
        """parts: (sequence, ids); returns the logits of the last token of each, or of the rows `wanted`."""
        page, lengths, starts, positions = self.runner.page, [], [0], []
        for sequence, ids in parts:
            positions.append(torch.arange(sequence.length, sequence.length + len(ids)))
            sequence.length += len(ids)
            lengths.append(sequence.length)
            starts.append(starts[-1] + len(ids))
        tables = torch.tensor([sequence.pages for sequence, _ in parts], dtype=torch.int32)
        slots = [tables[i, at // page] * page + at % page for i, at in enumerate(positions)]
        batch = Batch(tables, torch.tensor(lengths, dtype=torch.int32), torch.tensor(starts, dtype=torch.int32))
        rows = [end - 1 for end in starts[1:]] if wanted is None else wanted
        step = Step(
            torch.cat([torch.tensor(ids) for _, ids in parts]), torch.cat(positions), torch.cat(slots).long(), batch,
            torch.tensor(rows, dtype=torch.int64), tuple(sequence.number for sequence, _ in parts),
        )  # fmt: skip
        return self.runner.forward(step)

    def feed(self, *pieces):
        """The logits after each of the pieces of a new sequence that is fed alone: [pieces, vocab]."""
        sequence = self.sequence()
        return torch.cat([self.step((sequence, piece)) for piece in pieces])
