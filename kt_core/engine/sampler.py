"""The choice of the next token: pure functions over one float32 logits vector [vocab].

Order of steps: repetition penalty, frequency and presence penalties, logit bias, the tokens that a grammar allows,
temperature, top-k, top-p, min-p, typical-p. A token is drawn by inverting the distribution at one uniform float64, so a
seeded request consumes exactly one random number a token, whatever the filters leave over.

numpy and not torch: it takes a half to a tenth of the time for these lengths, and no threads that would wait for each other
beside the kernels'. Nothing is sorted that can be found by the largest logits of columns: at 152 k logits a full sort takes
16 ms, the 20 largest 0.06. docs/engine.md has what a token costs.
"""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kt_core.errors import KTError
from kt_core.types import Sampling, TokenLogprob

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

_ROWS = 128  # of the grid that values are looked at in: as many columns as there are groups
# The most typical tokens that are looked at before all are sorted; they hold what is asked for in nearly every step.
_FIRST = (64, 1024, 16384)
# Below it float32 has no numbers; all but the largest logits have lost any chance long before.
_COLDEST = 1e-20
_LEAST = np.float32(1e-37)  # a probability, where its logarithm is taken


class BadLogits(KTError):
    """The model's logits hold NaN or +inf, or no token is left to choose from."""


@dataclass
class State:
    """What one sequence's sampling depends on besides the logits."""

    generator: np.random.Generator
    seen: NDArray[np.bool_]  # [vocab]: in the prompt or the answer
    ids: Ids  # [n]: those that were seen, each once
    counts: Floats  # [vocab]: times in the answer

    def add(self, token: int) -> None:
        if not self.seen[token]:
            self.seen[token] = True
            self.ids = np.append(self.ids, token)
        self.counts[token] += 1


def start(sampling: Sampling, prompt: Sequence[int], vocab: int, choice: int = 0) -> State:
    """The state before the first token. Choice i of a request seeded with s draws as if seeded with s + i."""
    seed = None if sampling.seed is None else (sampling.seed + choice) % 2**64
    seen = np.zeros(vocab, np.bool_)
    seen[np.array(prompt, np.int64)] = True
    return State(np.random.default_rng(seed), seen, np.flatnonzero(seen), np.zeros(vocab, np.float32))


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
        values, counts = logits[state.ids], state.counts[state.ids]
        if repetition != 1.0:
            values = np.where(values > 0, values / repetition, values * repetition)
        logits[state.ids] = values - counts * sampling.frequency_penalty - (counts > 0) * sampling.presence_penalty
    if sampling.logit_bias:
        logits[list(sampling.logit_bias)] += np.array(list(sampling.logit_bias.values()), np.float32)
    return logits


def largest(values: Floats, k: int) -> Ids:
    """Ids of the k largest values, largest first, without those that are -inf; of equal ones the lower id comes first. 0 < k <= n.

    The k-th largest of the columns' largest values bounds the k-th largest of all from below, and few are above it.
    """
    columns = len(values) // _ROWS
    if k <= columns:
        tops = values[: columns * _ROWS].reshape(_ROWS, columns).max(0)
        bound = np.partition(tops, columns - k)[columns - k]
    else:
        bound = np.partition(values, len(values) - k)[len(values) - k]
    ids = np.flatnonzero(values >= bound if bound > -np.inf else values > bound)
    return ids[np.argsort(-values[ids], kind="stable")[:k]]


def _nucleus(probabilities: Floats, mass: float) -> Ids:
    """The fewest most likely tokens whose probabilities add up to `mass` or more; of equal ones those of lower ids.

    Those far below (1 - mass) / n cannot add up to what may be left out, so they are not looked at. The others are summed by
    the bits of their exponents and the first four behind them, and only those that the cut goes through are sorted.
    """
    ids = np.flatnonzero(probabilities >= 0.5 * (1.0 - mass) / len(probabilities))
    values = probabilities[ids]
    bins = values.view(np.int32) >> 19  # of positive numbers, in their order
    most = int(bins.max())
    sums = np.cumsum(np.bincount(most - bins, weights=values))
    cut = min(int(np.searchsorted(sums, mass)), len(sums) - 1)
    border = np.flatnonzero(bins == most - cut)
    border = border[np.argsort(-values[border], kind="stable")]
    inside = (sums[cut - 1] if cut else 0.0) + np.cumsum(values[border], dtype=np.float64)
    border = border[: int(np.searchsorted(inside, mass)) + 1]
    return ids[np.append(np.flatnonzero(bins > most - cut), border)]


def _holding(probabilities: Floats, preference: Floats, mass: float) -> Ids:
    """The fewest tokens, by falling preference, whose probabilities add up to `mass` or more; all, if rounding hides it."""
    total = len(probabilities)
    for k in (*(k for k in _FIRST if k < total), total):
        ids = largest(preference, k)
        sums = np.cumsum(probabilities[ids], dtype=np.float64)
        if sums[-1] >= mass:
            break
    return ids[: int(np.searchsorted(sums, mass)) + 1]


def _typical(probabilities: Floats, mass: float) -> Ids:
    """Tokens whose information is nearest to what is expected, the entropy (Meister et al. 2022, arXiv:2202.00666)."""
    information = -np.log(np.maximum(probabilities, _LEAST))
    entropy = np.float32(np.dot(probabilities, information))
    return _holding(probabilities, -np.abs(information - entropy), mass)


class _Scratch(threading.local):
    """A thread's memory for one vector: new memory of this size costs more than what is written into it."""

    values: Floats = np.empty(0, np.float32)

    def of(self, count: int) -> Floats:
        if len(self.values) < count:
            self.values = np.empty(count, np.float32)
        return self.values[:count]


_scratch = _Scratch()


@lru_cache(maxsize=4)
def _all(count: int) -> Ids:
    return np.arange(count)


def candidates(logits: Floats, sampling: Sampling) -> tuple[Ids, Floats]:
    """(ids [n], weights [n]) that remain after temperature (> 0), top-k, top-p, min-p and typical-p.

    Each filter sees the distribution that the one before it left. At least one token remains. Weights are in proportion to
    probabilities, and hold until the thread's next call.
    """
    everything = not 0 < sampling.top_k < len(logits)
    ids = _all(len(logits)) if everything else largest(logits, sampling.top_k)
    kept = logits if everything else logits[ids]
    # The difference is exact where it matters, and cannot overflow.
    weights = np.subtract(kept, kept.max(), out=_scratch.of(len(kept)))
    if sampling.temperature != 1.0:
        weights /= max(sampling.temperature, _COLDEST)
    np.exp(weights, out=weights)
    if sampling.top_p < 1.0 or sampling.typical_p < 1.0:
        weights /= weights.sum()
    if sampling.top_p < 1.0:
        ids, weights = _kept(_nucleus(weights, sampling.top_p), ids, weights)
    if sampling.min_p > 0.0:
        ids, weights = _kept(np.flatnonzero(weights >= sampling.min_p * weights.max()), ids, weights)
    if sampling.typical_p < 1.0:
        ids, weights = _kept(_typical(weights, sampling.typical_p), ids, weights)
    return ids, weights


def _kept(left: Ids, ids: Ids, probabilities: Floats) -> tuple[Ids, Floats]:
    probabilities = probabilities[left]
    return ids[left], probabilities / probabilities.sum()


def draw(weights: Floats, generator: np.random.Generator) -> int:
    """An index with a probability in proportion to its weight, from one uniform number; never one of weight 0.

    First the column of a grid, then the place in it, so that only a column is summed up number by number; sums are float64.
    """
    missing = -len(weights) % _ROWS
    if missing:
        weights = np.append(weights, np.zeros(missing, np.float32))
    grid = weights.reshape(_ROWS, -1)
    sums = np.cumsum(grid.sum(0), dtype=np.float64)
    target = generator.random() * sums[-1]
    column = min(int(np.searchsorted(sums, target, "right")), len(sums) - 1)
    inside = np.cumsum(grid[:, column], dtype=np.float64)
    row = int(np.searchsorted(inside, target - (sums[column - 1] if column else 0.0), "right"))
    # A column's sum is rounded, and so may lie above the sum of its parts; the last token with a weight is meant then.
    if row == _ROWS:
        row = int(np.flatnonzero(grid[:, column])[-1])
    return row * grid.shape[1] + column


def sample(logits: Floats, sampling: Sampling, state: State, bounds: Floats | None = None) -> int:
    """The next token for raw logits [vocab]. Updates `state`.

    `bounds` [vocab] are +inf for tokens that a grammar allows and -inf for the others.
    Raises BadLogits when the logits hold NaN or +inf, or when every token is ruled out.
    """
    adjusted = penalize(logits, sampling, state)
    if bounds is not None:
        adjusted = np.minimum(adjusted, bounds)  # a NaN stays one
    token = int(np.argmax(adjusted))  # the first of equal ones; a NaN counts as the largest
    best = float(adjusted[token])
    if not math.isfinite(best):
        raise BadLogits("engine.banned_all" if best == -math.inf else "engine.bad_logits")
    if sampling.temperature > 0.0:
        ids, weights = candidates(adjusted, sampling)
        token = int(ids[draw(weights, state.generator)])
    state.add(token)
    return token


def logprobs(logits: Floats, token: int, top: int) -> TokenLogprob:
    """Log-probabilities (natural, to 1e-6) of `token` and of the `top` most likely, from raw logits."""
    most = logits.max()
    weights = np.subtract(logits, most, out=_scratch.of(len(logits)))
    total = float(most) + math.log(np.exp(weights, out=weights).sum(dtype=np.float64))
    ids: Any = largest(logits, min(top, len(logits))) if top else ()
    ranked = tuple((int(id), float(logits[id]) - total) for id in ids)
    return TokenLogprob(token, float(logits[token]) - total, ranked)
