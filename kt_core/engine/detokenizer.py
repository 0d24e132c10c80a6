"""Tokens to text as they come: whole characters only, and stop strings cut out."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from transformers import PreTrainedTokenizerFast

# Bytes that do not make a character decode to this one, one per byte or per broken sequence.
_REPLACEMENT = "\ufffd"
# An unfinished UTF-8 character has at most 3 bytes, and so at most as many tokens and replacement characters.
_UNFINISHED = 3


@lru_cache(maxsize=8)
def _hidden(tokenizer: Any, marks: tuple[str, ...]) -> frozenset[int]:
    """The special tokens that are no part of a mark."""
    special = {id: token.content for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(id for id, content in special.items() if not any(content in mark for mark in marks))


def _decode_of(tokenizer: Any) -> Callable[..., str]:
    """The tokenizer's decode, of a list of ids. Where transformers would only hand it on, that costs more than decoding a token."""
    kind = type(tokenizer)
    own = PreTrainedTokenizerFast
    if isinstance(tokenizer, own) and kind.decode is own.decode and kind._decode is own._decode:
        decode: Callable[..., str] = tokenizer.backend_tokenizer.decode
        return decode
    return partial(tokenizer.decode, clean_up_tokenization_spaces=False)


class Detokenizer:
    """Turns a growing list of tokens into pieces of text whose concatenation is the decoded whole.

    `context` are the tokens before the first one. They matter to tokenizers that drop the leading
    space of what they decode; leave them out to get an answer's text as if decoded on its own.
    Special tokens have no text, but for those that `marks` are made of.
    Decodes a window of the last few tokens, because a token's text may depend on its neighbours; the
    window starts one piece before the newest, at a point where the text ended in a whole character.
    """

    def __init__(self, tokenizer: Any, context: Sequence[int] = (), marks: tuple[str, ...] = ()) -> None:
        self._text_of = _decode_of(tokenizer)
        self._hidden = _hidden(tokenizer, marks) if marks else None  # None: all special tokens
        self._window = list(context)[-8:]
        self._whole = len(self._window)  # tokens of the window whose text ended in a whole character
        self._sent = len(self._settled(self._decode(self._window)))

    def _decode(self, tokens: list[int]) -> str:
        hidden = self._hidden
        shown = tokens if hidden is None else [token for token in tokens if token not in hidden]
        return self._text_of(shown, skip_special_tokens=hidden is None)

    @staticmethod
    def _settled(text: str) -> str:
        unfinished = len(text) - len(text.rstrip(_REPLACEMENT))
        return text[: len(text) - min(unfinished, _UNFINISHED)]

    def push(self, token: int) -> str:
        """The text that `token` completes: "" while a character is unfinished."""
        self._window.append(token)
        text = self._decode(self._window)
        settled = self._settled(text)
        # A byte-fallback decoder writes a whole run of bytes as replacement characters while its end is unfinished,
        # so nothing is believed until the character must have ended.
        if settled != text and len(self._window) - self._whole <= _UNFINISHED:
            return ""
        piece = settled[self._sent :]
        self._sent = max(self._sent, len(settled))
        if settled == text and piece:
            self._window = self._window[self._whole :]
            self._whole = len(self._window)
            self._sent = len(self._decode(self._window))
        return piece

    def flush(self) -> str:
        """What is held back, as it stands: an unfinished character comes out as U+FFFD."""
        text = self._decode(self._window)
        piece = text[self._sent :]
        self._sent = len(text)
        return piece


class StopStrings:
    """Cuts text before the first stop string that is complete, however the text is split into pieces.

    When several are complete at the same character, the longest counts. Only text that may still become a stop string is
    held back: the longest end of the text that is the beginning of one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.found: str | None = None  # the one that was

    def push(self, piece: str) -> tuple[str, bool]:
        """(text that can go out, whether a stop string was found). After a find, nothing more may be pushed."""
        text = self._held + piece
        found = [(text.find(stop) + len(stop), text.find(stop), stop) for stop in self._stops if stop in text]
        if found:
            _, begin, self.found = min(found)
            self._held = ""
            return text[:begin], True
        keep = max((self._overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Length of the longest end of `text` that is a beginning of `stop`."""
        return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held
