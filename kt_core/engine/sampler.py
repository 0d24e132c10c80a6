"""The choice of the next token, from float32 logits [vocab].

Order of steps: repetition penalty, frequency and presence penalties, logit bias, the tokens that a grammar allows,
temperature, top-k, top-p, min-p, typical-p. What depends on a request's tokens is done here; the rest, which looks at every
logit, in the extension (native/src/sampling.cpp), for all sequences of a step together. A token is drawn by inverting the
distribution at one uniform float64, so a seeded request consumes exactly one random number a token, whatever the filters
leave over. docs/engine.md has what a token costs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kt_core.errors import KTError
from kt_core.kernels.sampling import Floats, choose, largest, log_total
from kt_core.types import Sampling, TokenLogprob

Row = tuple[Floats, Sampling, float]


class BadLogits(KTError):
    """The model's logits hold NaN or +inf, or no token is left to choose from."""


@dataclass
class State:
    """What one sequence's sampling depends on besides the logits."""

    generator: np.random.Generator
    seen: NDArray[np.bool_]  # [vocab]: in the prompt or the answer
    counts: Floats  # [vocab]: times in the answer

    def add(self, token: int) -> None:
        self.seen[token] = True
        self.counts[token] += 1


def start(sampling: Sampling, prompt: Sequence[int], vocab: int, choice: int = 0) -> State:
    """The state before the first token. Choice i of a request seeded with s draws as if seeded with s + i."""
    seed = None if sampling.seed is None else (sampling.seed + choice) % 2**64
    seen = np.zeros(vocab, np.bool_)
    seen[np.array(prompt, np.int64)] = True
    return State(np.random.default_rng(seed), seen, np.zeros(vocab, np.float32))


def penalize(logits: Floats, sampling: Sampling, state: State) -> Floats:
    """Logits [vocab] with penalties and bias applied; the input is left alone.

    Repetition (Keskar et al. 2019, arXiv:1909.05858): tokens of prompt and answer, l/p when l > 0, else l*p.
    Frequency and presence (OpenAI): l - count*frequency - [count > 0]*presence, over the answer only.
    """
    repetition = sampling.repetition_penalty
    punished = repetition != 1.0 or sampling.frequency_penalty or sampling.presence_penalty
    if punished or sampling.logit_bias:
        logits = logits.copy()
    if punished:
        ids = np.flatnonzero(state.seen)
        values, counts = logits[ids], state.counts[ids]
        if repetition != 1.0:
            values = np.where(values > 0, values / repetition, values * repetition)
        logits[ids] = values - counts * sampling.frequency_penalty - (counts > 0) * sampling.presence_penalty
    if sampling.logit_bias:
        logits[list(sampling.logit_bias)] += np.array(list(sampling.logit_bias.values()), np.float32)
    return logits


def row(logits: Floats, sampling: Sampling, state: State, bounds: Floats | None = None) -> Row:
    """A token to choose, for raw logits [vocab]; takes its random number from `state`.

    `bounds` [vocab] are +inf for tokens that a grammar allows and -inf for the others.
    """
    adjusted = penalize(logits, sampling, state)
    if bounds is not None:
        adjusted = np.minimum(adjusted, bounds)  # a NaN stays one
    return adjusted, sampling, state.generator.random() if sampling.temperature > 0.0 else 0.0


def checked(chosen: tuple[int, float], state: State) -> int:
    """The token of what `choose` gave for a row, which `state` takes in.

    Raises BadLogits when the logits held NaN or +inf, or when every token was ruled out.
    """
    token, best = chosen
    if not math.isfinite(best):
        raise BadLogits("engine.banned_all" if best == -math.inf else "engine.bad_logits")
    state.add(token)
    return token


def sample(logits: Floats, sampling: Sampling, state: State, bounds: Floats | None = None) -> int:
    """One row's next token. Raises BadLogits."""
    return checked(choose([row(logits, sampling, state, bounds)])[0], state)


def logprobs(logits: Floats, token: int, top: int) -> TokenLogprob:
    """Log-probabilities (natural, to 1e-6) of `token` and of the `top` most likely, from raw logits."""
    total = log_total(logits)
    ranked = tuple((int(id), float(logits[id]) - total) for id in (largest(logits, top) if top else ()))
    return TokenLogprob(token, float(logits[token]) - total, ranked)
