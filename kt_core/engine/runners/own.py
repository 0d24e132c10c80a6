"""Any causal language model of transformers, with a cache of transformers' own for each sequence."""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from transformers import DynamicCache

from kt_core import kernels
from kt_core.engine.runners.facts import MAX_TOKENS, Facts
from kt_core.engine.runners.states import States, copied, paths_of
from kt_core.engine.step import NO_EXPERTS, NOTHING_MOVED, Counted, Step
from kt_core.engine.vision import Seen, arguments
from kt_core.events import one_line
from kt_core.lora import Adapter

log = logging.getLogger(__name__)

PAGE = 64  # tokens; the scheduler counts in pages all the same
_PIECES = [9, 3]  # tokens; in the second one, a state that is not gone on from shows most
# Of the largest logit: rounding in all layers of a quantised model stays below, and Jamba of transformers 5, which takes up
# its recurrent state for single tokens only, differs by more.
_BOUND = 1e-2


class OwnCacheRunner:
    """Computes a step sequence by sequence: linear attention, and caches that no page can hold.

    Since a recurrent state cannot be cut back to a prefix, copies of whole states are kept at some borders of pages,
    `state_bytes` of them together; a model whose caches cannot be copied goes without.
    """

    page = PAGE
    page_bytes = 0
    shareable = False
    experts: Mapping[int, Counted] = NO_EXPERTS
    moved: Mapping[str, int] = NOTHING_MOVED
    storage: tuple[torch.Tensor, ...] = ()
    max_tokens = MAX_TOKENS

    def __init__(self, model: Any, max_context: int | None = None, state_bytes: int = 0) -> None:
        self._facts = Facts(model, max_context)
        self.max_context = self._facts.max_context
        self.vocab = self._facts.vocab
        self.eos_ids = self._facts.eos_ids
        self.state_bytes = state_bytes
        self._states: States | None = None
        self._goes_on = True
        self._caches: dict[int, _Own] = {}

    def allocate(self, pages: int) -> None:
        """Only finds out how states can be gone on from: caches grow with their sequences."""
        self._goes_on, reason = self._try_out()
        if not self._goes_on:
            log.info("prompts are computed at once, however long: %s", reason)
        if self.state_bytes and not reason:
            self._states = States(self.state_bytes, PAGE)
        else:
            log.info("no prefix is kept: %s", reason or "memory has no room for a second state beside a conversation's")

    def forward(self, step: Step) -> torch.Tensor:
        starts = step.batch.starts.tolist()
        wanted = set(step.outputs.tolist())
        rows = []
        every = step.seen or (None,) * len(step.sequences)
        adapters = step.adapters or (-1,) * len(step.sequences)
        for number, seen, adapter, (begin, end) in zip(step.sequences, every, adapters, pairwise(starts), strict=True):
            with self._facts.adapted.taking([(0, sys.maxsize, adapter)]):
                position, tokens = int(step.positions[begin]), step.tokens[begin:end]
                logits = self._advance(number, seen, position, tokens, end - 1 in wanted)
            rows += [logits] if logits is not None else []
        return torch.stack(rows) if rows else torch.empty(0, self.vocab)

    def release(self, sequence: int) -> None:
        self._caches.pop(sequence, None)

    def adapt(self, number: int, adapter: Adapter) -> None:
        """Raises what Adapted.adapt raises."""
        self._facts.adapted.adapt(number, adapter)

    def forget_adapter(self, number: int) -> None:
        """No sequence of a step takes it any more."""
        self._facts.adapted.forget(number)

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

    def _advance(
        self, number: int, seen: Seen | None, position: int, tokens: torch.Tensor, wanted: bool
    ) -> torch.Tensor | None:
        """The last token's logits [vocab] if they are wanted. What a step that is taken again, since another sequence
        failed in it, has computed already stays."""
        if number not in self._caches:
            self._caches[number] = _Own(self._new(), ())
        own = self._caches[number]
        for piece in own.pieces(tokens[own.length - position :]) if position <= own.length else ():
            if self._goes_on or wanted:
                due = torch.cat([own.held, piece])
                more = arguments([(seen, own.length - len(own.held), own.length + len(piece))])
                own.logits = self._facts.logits(due, torch.tensor([len(due) - 1]), own.cache, **more)[0]
                own.held = own.held[:0]
            else:
                own.held = torch.cat([own.held, piece])
            own.tokens += seen.named(own.length, piece.tolist()) if seen else piece.tolist()
            self._keep(own)
        assert own.length == position + len(tokens) and (own.logits is not None or not wanted)
        return own.logits if wanted else None

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

    def _try_out(self) -> tuple[bool, str]:
        """Whether a prompt can go on in a second piece, and why the state between them is not kept, "" where it is."""
        tokens = torch.arange(sum(_PIECES)) % self.vocab
        first, then = tokens.split(_PIECES)
        last, end = torch.tensor([len(then) - 1]), torch.tensor([len(tokens) - 1])
        before = kernels.info()["deterministic"]
        kernels.set_deterministic(True)
        try:
            whole = self._facts.logits(tokens, end, self._new())
            cache = self._new()
            self._facts.logits(first, last, cache)
            kept = copied(cache)
            found = self._facts.logits(then, last, cache)
            again = self._facts.logits(then, last, copied(kept))
        except Exception as error:  # whatever a model's code, or copying its cache, may raise
            return False, f"{type(error).__name__}: {one_line(error)}"
        finally:
            kernels.set_deterministic(before)
        difference = float((found - whole).abs().max() / whole.abs().max())
        if not difference <= _BOUND:
            return False, f"a prompt in two pieces differs from the same at once by {difference:.1e}"
        return True, "" if torch.equal(found, again) else "the model keeps a state beside its caches"


class _Own:
    """One sequence: what it was fed, by the keys that find it again, and the state after that."""

    def __init__(self, cache: Any, tokens: Sequence[int]) -> None:
        self.cache = cache
        self.tokens = list(tokens)
        self.logits: torch.Tensor | None = None
        self.held = torch.empty(0, dtype=torch.int64)  # of `tokens`, those that wait to be computed with the rest
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
