"""One choice's answer: tokens in, text with its tokens out."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from kt_core.engine.detokenizer import Detokenizer, StopStrings
from kt_core.types import TokenLogprob


class Piece(NamedTuple):
    """Text that can go out, the tokens that it begins with, and their log-probabilities when asked for."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]


class _Pending(NamedTuple):
    start: int  # characters of text before this token
    token: int
    logprob: TokenLogprob | None


class Answer:
    """Collects tokens until their text can go out. A token goes out with the first character of its text."""

    def __init__(
        self, tokenizer: Any, stops: Sequence[str], context: Sequence[int] = (), marks: tuple[str, ...] = ()
    ) -> None:
        self._text = Detokenizer(tokenizer, context, marks)
        self._stops = StopStrings(stops)
        self._pending: list[_Pending] = []
        self._decoded = 0  # characters out of the detokenizer
        self._sent = 0  # characters that went out

    @property
    def stopped(self) -> str | None:
        """The stop string that was found: nothing more may be pushed."""
        return self._stops.found

    def push(self, token: int, logprob: TokenLogprob | None) -> Piece:
        self._pending.append(_Pending(self._decoded, token, logprob))
        return self._release(self._text.push(token))

    def finish(self) -> Piece:
        """What was held back. Tokens that lie behind a stop string are left out."""
        if self.stopped:
            return Piece("", (), ())
        piece = self._release(self._text.flush())
        if self.stopped:
            return piece
        rest = self._take(self._stops.flush(), len(self._pending))
        return Piece(piece.text + rest.text, piece.tokens + rest.tokens, piece.logprobs + rest.logprobs)

    def _release(self, decoded: str) -> Piece:
        self._decoded += len(decoded)
        text, _ = self._stops.push(decoded)
        end = self._sent + len(text)
        return self._take(text, sum(p.start < end for p in self._pending) if text else 0)

    def _take(self, text: str, count: int) -> Piece:
        self._sent += len(text)
        taken, self._pending = self._pending[:count], self._pending[count:]
        logprobs = tuple(p.logprob for p in taken if p.logprob is not None)
        return Piece(text, tuple(p.token for p in taken), logprobs)
