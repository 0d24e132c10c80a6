"""A runner that computes nothing but what its pages hold, and checks every step that it is given."""

import threading
import time
from typing import ClassVar

import torch

VOCAB = 97


def following(tokens):
    """The token that comes after these: any change to any of them, or to their order, changes it."""
    value = 7
    for token in tokens:
        value = (value * 31 + token + 1) % 1_000_003
    return value % (VOCAB - 3) + 3  # 0 to 2 have meanings of their own


def answer_to(prompt, count):
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(following(tokens))
    return tokens[len(prompt) :]


class Reader:
    """Writes tokens into slots and reads each sequence back through its page table.

    A sequence that holds the token `POISON` fails, with every other one of its step.
    """

    POISON = 2
    vocab = VOCAB
    eos_ids = frozenset({1})
    experts: ClassVar = {}
    moved: ClassVar = {"experts": 0, "bytes": 0, "hits": 0}

    def __init__(self, page=4, max_context=64, max_tokens=24, shareable=True, delay=0.0, ballast=0):
        self.page, self.max_context, self.max_tokens, self.shareable = page, max_context, max_tokens, shareable
        self.page_bytes = 8 * page + ballast
        self.ballast = ballast  # bytes of a page that are all the page's last token
        self.delay = delay
        self.gate = threading.Event()
        self.gate.set()
        self.steps = []  # [(sequence, tokens, whether its logits are wanted)]
        self.released = []
        self.written = 0
        self._answering = set()  # what decodes, and so must be in each step

    def allocate(self, pages):
        self._pages = pages
        self._tokens, self._positions = (torch.full((pages, self.page), -1, dtype=torch.int32) for _ in range(2))
        self._ballast = torch.zeros((pages, self.ballast), dtype=torch.uint8)
        self.storage = [held.view(torch.uint8) for held in (self._tokens, self._positions, self._ballast)]

    def release(self, sequence):
        self.released.append(sequence)
        self._answering.discard(sequence)

    def resume(self, sequence, tokens):
        return 0, "off"

    def forget(self):
        return 0

    def forward(self, step):
        self.gate.wait(20)
        time.sleep(self.delay)
        starts, lengths = step.batch.starts.tolist(), step.batch.lengths.tolist()
        wanted = set(step.outputs.tolist())
        assert 0 < len(step.tokens) <= self.max_tokens and starts[-1] == len(step.tokens)
        self.steps.append(
            [(n, e - b, e - 1 in wanted) for n, b, e in zip(step.sequences, starts[:-1], starts[1:], strict=True)]
        )
        missing = self._answering - set(step.sequences)
        assert not missing or len(step.sequences) == 1, f"{missing} had to wait"  # one alone: after a failure
        for token, position, slot in zip(
            step.tokens.tolist(), step.positions.tolist(), step.slots.tolist(), strict=True
        ):
            assert 0 <= slot < self._pages * self.page
            self._tokens.view(-1)[slot], self._positions.view(-1)[slot] = token, position
            self._ballast[slot // self.page] = token
            self.written += 1
        rows = []
        for number, table, length, end in zip(
            step.sequences, step.batch.tables.tolist(), lengths, starts[1:], strict=True
        ):
            assert self._positions[table].view(-1)[:length].tolist() == list(range(length))
            tokens = self._tokens[table].view(-1)[:length].tolist()
            full = table[: length // self.page]
            assert (self._ballast[full] == self._tokens[full, -1:]).all()
            if self.POISON in tokens:
                raise RuntimeError("poisoned")
            if end - 1 in wanted:
                self._answering.add(number)
                rows.append(torch.nn.functional.one_hot(torch.tensor(following(tokens)), VOCAB) * 20.0)
        return torch.stack(rows) if rows else torch.empty(0, VOCAB)
