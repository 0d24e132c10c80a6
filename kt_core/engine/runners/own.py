"""Any causal language model of transformers, with a cache of transformers' own for each sequence."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import DynamicCache

from kt_core.engine.runners.facts import MAX_TOKENS, Facts
from kt_core.engine.runners.states import States, copied, paths_of
from kt_core.engine.step import Step

log = logging.getLogger(__name__)

PAGE = 64  # tokens; the scheduler counts in pages all the same


class OwnCacheRunner:
    """Computes a step sequence by sequence: linear attention, and caches that no page can hold.

    Since a recurrent state cannot be cut back to a prefix, copies of whole states are kept at some borders of pages,
    `state_bytes` of them together; a model whose caches cannot be copied goes without.
    """

    page = PAGE
    page_bytes = 0
    shareable = False
    storage: tuple[torch.Tensor, ...] = ()
    max_tokens = MAX_TOKENS

    def __init__(self, model: Any, max_context: int | None = None, state_bytes: int = 0) -> None:
        self._facts = Facts(model, max_context)
        self.max_context = self._facts.max_context
        self.vocab = self._facts.vocab
        self.eos_ids = self._facts.eos_ids
        self.state_bytes = state_bytes
        self._states: States | None = None
        self._caches: dict[int, _Own] = {}

    def allocate(self, pages: int) -> None:
        """Only finds out whether states can be copied: caches grow with their sequences."""
        if not self.state_bytes:
            log.info("no prefix is kept: memory has no room for a second state beside that of a conversation")
        elif reason := self._unfit():
            log.info("no prefix is kept: %s", reason)
        else:
            self._states = States(self.state_bytes, PAGE)

    def forward(self, step: Step) -> torch.Tensor:
        starts = step.batch.starts.tolist()
        wanted = set(step.outputs.tolist())
        rows = []
        for number, begin, end in zip(step.sequences, starts[:-1], starts[1:], strict=True):
            logits = self._advance(number, int(step.positions[begin]), step.tokens[begin:end])
            rows += [logits] if end - 1 in wanted else []
        return torch.stack(rows) if rows else torch.empty(0, self.vocab)

    def release(self, sequence: int) -> None:
        self._caches.pop(sequence, None)

    def resume(self, sequence: int, tokens: Sequence[int]) -> tuple[int, str]:
        if self._states is None:
            return 0, "off"
        paths = paths_of(tokens[:-1], PAGE)  # at least one token is left to compute
        state = self._states.find(paths)
        length = state.length if state else 0
        own = self._caches[sequence] = _Own(copied(state.cache) if state else self._new(), tokens[:length])
        own.borders, own.prompt = self._states.borders(paths), len(tokens)
        if not paths:
            return 0, "short"
        return length, "" if length == len(paths) * PAGE else "state"

    def forget(self) -> int:
        return self._states.flush() if self._states else 0

    def _new(self) -> DynamicCache:
        return DynamicCache(config=self._facts.model.config)

    def _advance(self, number: int, position: int, tokens: torch.Tensor) -> torch.Tensor:
        """The last token's logits [vocab]. What a step that is taken again, since another sequence failed in it, has
        computed already stays."""
        if number not in self._caches:
            self._caches[number] = _Own(self._new(), ())
        own = self._caches[number]
        for piece in own.pieces(tokens[own.length - position :]) if position <= own.length else ():
            own.logits = self._facts.logits(piece, torch.tensor([len(piece) - 1]), own.cache)[0]
            own.tokens += piece.tolist()
            self._keep(own)
        assert own.logits is not None and own.length == position + len(tokens)
        return own.logits

    def _keep(self, own: "_Own") -> None:
        """The state where it is, if somebody may ask for it."""
        answering = own.length > own.prompt
        if self._states is None or own.length % PAGE or not (answering or own.length in own.borders):
            return
        own.paths = paths_of(own.tokens, PAGE, own.paths)
        self._states.keep(own.paths[-1], own.length, own.cache)
        if answering:  # of an answer the last border is enough
            if own.last:
                self._states.drop(own.last)
            own.last = own.paths[-1]

    def _unfit(self) -> str:
        """Why states of this model cannot be copied, found by going on from one twice; "" where they can."""
        first, then = torch.arange(5) % self.vocab, torch.tensor([0, 1]) % self.vocab
        last = torch.tensor([len(then) - 1])
        cache = self._new()
        try:
            self._facts.logits(first, last, cache)
            kept = copied(cache)
            expected = self._facts.logits(then, last, cache)
            found = self._facts.logits(then, last, copied(kept))
        except Exception as error:  # whatever copying a cache may raise
            return f"the model's caches cannot be copied: {type(error).__name__}: {error}"
        return "" if torch.equal(found, expected) else "the model keeps a state beside its caches"


class _Own:
    """One sequence: what it was fed, and the state after that."""

    def __init__(self, cache: Any, tokens: Sequence[int]) -> None:
        self.cache = cache
        self.tokens = list(tokens)
        self.logits: torch.Tensor | None = None
        self.borders: set[int] = set()  # lengths where its state is to be kept
        self.prompt = 0  # tokens that it began with
        self.paths: list[bytes] = []
        self.last = b""  # the border of its answer whose state is kept

    @property
    def length(self) -> int:
        return len(self.tokens)

    def pieces(self, tokens: torch.Tensor) -> Iterator[torch.Tensor]:
        """The tokens, cut where a state is to be kept."""
        at, begin = 0, self.length
        for border in sorted(b - begin for b in self.borders if begin < b < begin + len(tokens)):
            yield tokens[at:border]
            at = border
        if len(tokens) > at:
            yield tokens[at:]
