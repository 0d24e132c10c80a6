"""Answers that have to follow a grammar: which tokens may come next.

A grammar is one text in llguidance's dialect of Lark for the whole answer, marks and reasoning included, so that nothing but
the tokens themselves decides where a part of it begins and ends. A special token is written as its id, <[151667]>.
"""

import re
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import llguidance
import numpy as np
from numpy.typing import NDArray

from kt_core.errors import UsageError

# Characters of a grammar: compiling lets no other thread run, and 500,000 took 0.9 s.
LONGEST = 1 << 17
# States of the automaton take up to 2 KB each, and every choice of a request shares them; fuel is counted in about 50 k a ms.
# An object whose keys may all be left out takes four items a key where the next one begins: the longest grammar has 20,000.
_LIMITS = llguidance.LLParserLimits(
    max_lexer_states=50_000,
    max_grammar_size=250_000,
    max_items_in_row=25_000,
    step_max_items=200_000,
    verbose_errors=False,
)
_DRAWN = re.compile(r"\d+ \|")
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")  # [256, 8]
_BOUNDS = np.where(_BITS, np.float32(np.inf), np.float32(-np.inf))  # of eight tokens, by the byte of their bits


class ConstraintFailed(UsageError):
    """The grammar became too complex on the way."""


class Grammars:
    """The grammars of one model's tokens; safe from several threads.

    Reading the tokenizer takes a second at 150 k tokens and lets no other thread run, so it is done once, at the start.
    """

    def __init__(self, tokenizer: Any, vocab: int, ends: frozenset[int]) -> None:
        self._vocab = vocab
        self._tokens: llguidance.LLTokenizer | None = None
        self._reason = ""
        self.special: dict[str, int] = {}  # tokens that no text stands for, by their content
        # One thread: masks take 0.02 ms in the middle and 4 ms at most, and the step beside it needs the cores.
        self._beside = ThreadPoolExecutor(1, "masks")
        try:
            text = tokenizer.backend_tokenizer.to_str()
            self._tokens = llguidance.LLTokenizer(text, n_vocab=max(vocab, len(tokenizer)), eos_token=sorted(ends))
            added = {token.content: id for id, token in tokenizer.added_tokens_decoder.items()}
            self.special = {text: id for text, id in added.items() if self._tokens.is_special_token(id)}
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except (
            BaseException
        ) as error:  # its reader's panics are no Exceptions; requests without a grammar need none of it
            self._reason = " ".join(str(error).split()) or type(error).__name__

    def start(self, grammar: str) -> "Constraint":
        """The beginning of an answer. Raises UsageError for a grammar that cannot be compiled, with the reason."""
        if self._tokens is None:
            raise UsageError("engine.no_grammars", reason=self._reason)
        if len(grammar) > LONGEST:
            raise UsageError("engine.grammar", reason=f"{len(grammar)} characters, at most {LONGEST} are read")
        try:
            grammar.encode()
        except UnicodeEncodeError as error:
            raise UsageError("engine.grammar", reason=error) from None
        matcher = llguidance.LLMatcher(self._tokens, grammar, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise UsageError("engine.grammar", reason=_reason(matcher.get_error()))
        constraint = Constraint(matcher, self._tokens.vocab_size, self._vocab, self._beside)
        try:  # what matches nothing shows at the first token
            first = constraint.bounds()
        except ConstraintFailed as error:
            raise UsageError("engine.grammar", reason=error.args_["reason"]) from None
        if not (first > 0).any():
            raise UsageError("engine.grammar", reason="nothing matches it")
        return constraint


class Constraint:
    """Where one answer is in its grammar. The next mask is computed beside the step that needs it."""

    def __init__(self, matcher: llguidance.LLMatcher, tokens: int, vocab: int, beside: ThreadPoolExecutor) -> None:
        self._matcher = matcher
        self._tokens, self._vocab = tokens, vocab  # the tokenizer's, and the model's, which may have fewer or more
        self._beside = beside
        self._next: Future[NDArray[np.float32]] | None = None

    def copy(self) -> "Constraint":
        """Another answer's, at the same place; what one finds out about the grammar serves both."""
        other = Constraint(self._matcher.deep_copy(), self._tokens, self._vocab, self._beside)
        other._next = self._next
        return other

    def prepare(self) -> None:
        """Begin to compute what `bounds` will give."""
        self._next = self._next or self._beside.submit(self._compute)

    def bounds(self) -> NDArray[np.float32]:
        """float32 [vocab]: +inf for what may come next, -inf for the rest. Raises ConstraintFailed."""
        self.prepare()
        assert self._next is not None
        return self._next.result()

    def accept(self, token: int) -> bool:
        """Take the token that was chosen; True when the answer has ended with it. Raises ConstraintFailed."""
        self._next = None
        if not self._matcher.consume_token(token):
            raise ConstraintFailed("engine.grammar_failed", reason=_reason(self._matcher.get_error()))
        return self._matcher.is_stopped()

    def _compute(self) -> NDArray[np.float32]:
        bits = np.zeros((self._tokens + 31) // 32, np.int32)
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if self._matcher.is_error():
            raise ConstraintFailed("engine.grammar_failed", reason=_reason(self._matcher.get_error()))
        return np.take(_BOUNDS, bits.view(np.uint8), axis=0).reshape(-1)[: self._vocab]


def _reason(text: str) -> str:
    """What the library says, on one line, without its drawing of the place in a grammar that nobody sent."""
    if text.startswith("panic"):
        return "it is more than can be compiled"
    lines = (line.strip() for line in text.split("\n"))
    return " ".join(line for line in lines if line.strip("^ ") and not _DRAWN.match(line))[:300]
