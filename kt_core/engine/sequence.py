"""One choice of one request, from its first prompt token to its last chunk."""

import logging
import math
import sys
import time
from typing import Any

from kt_core.engine import sampler
from kt_core.engine.answer import Answer, Piece
from kt_core.engine.disk import Load
from kt_core.engine.pages import MISSES, Table
from kt_core.engine.stream import Stream
from kt_core.errors import KTError
from kt_core.kernels.sampling import Floats
from kt_core.types import Chunk, Timings, TokenLogprob, Usage

log = logging.getLogger(__name__)

# Tokens of a step whose logits are all wanted: 39 MB of them at 152 k tokens.
SCORED = 64


class Sequence:
    """`tokens` are the prompt's and those answered so far; the first `computed` of them are in the cache."""

    def __init__(
        self, stream: Stream, choice: int, order: tuple[int, int], answer: Answer, ends: frozenset[int], limit: int
    ) -> None:
        self.stream = stream
        self.choice = choice
        self.order = order  # of arrival: the request's number, then the choice
        self.number = -1  # what the runner knows it by; another one after each preemption
        self.tokens = list(stream.prompt)
        # What finds its pages: the tokens, but digests of what is seen in the places of images, and of an adapter in the first.
        self.keys = self.tokens if stream.keys is stream.prompt else list(stream.keys)
        self.adapter = stream.adapter.number if stream.adapter else -1
        self.computed = 0
        self.table = Table()
        self.load: Load | None = None  # pages that come from disk; nothing is computed before they are there
        self.cached: int | None = None  # prompt tokens that were found in the cache; None: not begun yet
        self.ended = False
        self._answer = answer
        self._ends = ends
        self._limit = limit
        self._state: sampler.State | None = None
        self.scoring = stream.request.scores_prompt  # all of the prompt is computed, for its log-probabilities
        self._scores = [TokenLogprob(stream.prompt[0], math.nan)]
        self._constraint = stream.constraint.copy() if stream.constraint else None
        self.begun = self._first = self._last = 0.0  # monotonic seconds; 0: not yet

    @property
    def pending(self) -> int:
        """Tokens to compute before the next one can be chosen."""
        return len(self.tokens) - self.computed

    @property
    def answered(self) -> int:
        return len(self.tokens) - len(self.stream.prompt)

    @property
    def prefilling(self) -> bool:
        return self.computed < len(self.stream.prompt)

    @property
    def most(self) -> int:
        """Tokens that a step takes of it at most."""
        return SCORED if self.scoring else sys.maxsize

    def wanted(self, size: int) -> int:
        """Of its next `size` tokens, how many of the last ones' logits are wanted."""
        return size if self.scoring else int(size == self.pending)

    def begin(self, miss: str, read: int | None = None) -> None:
        """Its tokens are computed from now on, for the first time or once more. `miss` is a key of MISSES, or "";
        `read` of the cached tokens came from disk, None: nobody looked there."""
        if self.cached is not None:
            log.info("request %s: computed again from token %d", self.stream.request.id, self.computed)
            return
        self.cached = self.computed
        self.begun = time.monotonic()
        if self._constraint:
            self._constraint.prepare()
        found = f", {read} of them on disk" if read else ""
        reason = f": {MISSES[miss]}{'' if read is None else ', and not on disk'}" if miss else ""
        name, total = self.stream.request.id, len(self.stream.prompt)
        log.info("request %s: %d of %d prompt tokens were cached%s%s", name, self.cached, total, found, reason)

    def state(self) -> dict[str, Any]:
        """For people who watch."""
        seconds = self._last - self._first
        return {
            "id": self.stream.request.id,
            "choice": self.choice,
            "state": self._phase(),
            "prompt_tokens": len(self.stream.prompt),
            "computed_tokens": self.computed,
            "cached_tokens": self.cached or 0,
            "answered_tokens": self.answered,
            "tokens_per_second": round((self.answered - 1) / seconds, 3) if seconds > 0 else 0.0,
        }

    def _phase(self) -> str:
        if not self.table.pages:
            return "waiting"
        return "loading" if self.load else "prefill" if self.prefilling else "decode"

    @property
    def answers(self) -> bool:
        """Whether anything follows the prompt, for somebody who waits for it."""
        return self._limit > 0 and not self.stream.aborted

    def score(self, logits: Floats) -> None:
        """Take the logits [size, vocab] of its next tokens; once all are there, the prompt's log-probabilities go out."""
        known, prompt = len(self._scores), self.stream.prompt  # it may have been computed so far before
        pairs = zip(logits[known - 1 - self.computed :], prompt[known:], strict=False)
        self._scores += [sampler.logprobs(row, token, self.stream.request.logprobs or 0) for row, token in pairs]
        if len(self._scores) == len(prompt):
            self.scoring = False
            self.stream.put(Chunk("", self.choice, prompt=tuple(self._scores)))

    def draft(self, logits: Floats) -> sampler.Row:
        """What its next token is chosen by, given the raw logits [vocab] behind all its tokens. Raises ConstraintFailed."""
        request, constraint = self.stream.request, self._constraint
        if self._state is None:
            self._state = sampler.start(request.sampling, self.stream.prompt, len(logits), self.choice)
        return sampler.row(logits, request.sampling, self._state, constraint.bounds() if constraint else None)

    def accept(self, logits: Floats, chosen: tuple[int, float]) -> None:
        """Take the token that was chosen by its draft; `ended` says whether it was the last.

        Raises BadLogits and ConstraintFailed.
        """
        request, constraint = self.stream.request, self._constraint
        assert self._state is not None
        token = sampler.checked(chosen, self._state)
        complete = constraint is not None and constraint.accept(token)
        self.tokens.append(token)
        if self.keys is not self.tokens:
            self.keys.append(token)
        self._last = time.monotonic()
        self._first = self._first or self._last
        if token in self._ends:
            self.end("stop")
            return
        logprob = None if request.logprobs is None else sampler.logprobs(logits, token, request.logprobs)
        piece = self._answer.push(token, logprob)
        if piece.text:
            self._put(piece)
        if self._answer.stopped or complete:
            self.end("stop")
        elif self.answered >= self._limit:
            self.end("length")
        elif constraint:
            constraint.prepare()

    def fail(self, error: Exception) -> None:
        """End it, and with it the request's other choices, because of `error`."""
        stream = self.stream
        if isinstance(error, KTError):
            log.error("request %s: %s", stream.request.id, error)
            stream.error = stream.error or error
        else:  # whatever the model's code raises
            log.error("request %s failed", stream.request.id, exc_info=error)
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            stream.error = stream.error or KTError("engine.failed", reason=reason)
        stream.aborted = stream.aborted or "error"
        self.end("error")

    def end(self, reason: str) -> None:
        """Put the last chunk."""
        self.ended = True
        now = time.monotonic()
        begun = self.begun or now
        timings = Timings(
            queued=begun - self.stream.submitted,
            prefill=(self._first or now) - begun,
            decode=self._last - self._first,
        )
        usage = Usage(len(self.stream.prompt), self.answered, self.cached or 0)
        self._put(
            self._answer.finish(), finish_reason=reason, usage=usage, timings=timings, stopped=self._answer.stopped
        )

    def _put(self, piece: Piece, **ending: Any) -> None:
        self.stream.put(Chunk(piece.text, self.choice, piece.tokens, piece.logprobs, **ending))
