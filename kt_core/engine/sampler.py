"""The choice of the next token: pure functions over one float32 logits vector [vocab].

Order of steps: repetition penalty, frequency and presence penalties, logit bias, the tokens that a grammar allows,
temperature, top-k, top-p, min-p, typical-p. A token is drawn by inverting the distribution at one uniform float64, so a
seeded request consumes exactly one random number a token, whatever the filters leave over.

Nothing is sorted that can be found by the largest logits of blocks: at 152 k logits and one thread a full sort takes 14 ms and
torch.topk 0.7, the 20 largest by blocks 0.05. docs/engine.md has what a token costs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from kt_core.errors import KTError
from kt_core.types import Sampling, TokenLogprob

_BLOCK = 128
# Filters by mass look at this many of the first tokens before they sort all; they hold what is asked for in nearly every step.
_FIRST = (64, 1024, 16384)
# Below it float32 has no numbers; all but the largest logits have lost any chance long before.
_COLDEST = 1e-20


class BadLogits(KTError):
    """The model's logits hold NaN or +inf, or no token is left to choose from."""


@dataclass
class State:
    """What one sequence's sampling depends on besides the logits."""

    generator: torch.Generator
    seen: torch.Tensor  # bool [vocab]: in the prompt or the answer
    ids: torch.Tensor  # int64 [n]: those that were seen, each once
    counts: torch.Tensor  # float32 [vocab]: times in the answer

    def add(self, token: int) -> None:
        if not self.seen[token]:
            self.seen[token] = True
            self.ids = torch.cat([self.ids, torch.tensor([token])])
        self.counts[token] += 1


def start(sampling: Sampling, prompt: Sequence[int], vocab: int, choice: int = 0) -> State:
    """The state before the first token. Choice i of a request seeded with s draws as if seeded with s + i."""
    generator = torch.Generator()
    if sampling.seed is None:
        generator.seed()
    else:
        generator.manual_seed((sampling.seed + choice) % 2**64)
    seen = torch.zeros(vocab, dtype=torch.bool)
    seen[torch.tensor(list(prompt), dtype=torch.int64)] = True
    return State(generator, seen, seen.nonzero().flatten(), torch.zeros(vocab))


def penalize(logits: torch.Tensor, sampling: Sampling, state: State) -> torch.Tensor:
    """Logits [vocab] with penalties and bias applied; the input is left alone.

    Repetition (Keskar et al. 2019, arXiv:1909.05858): tokens of prompt and answer, l/p when l > 0, else l*p.
    Frequency and presence (OpenAI): l - count*frequency - [count > 0]*presence, over the answer only.
    """
    repetition, frequency, presence = (
        sampling.repetition_penalty,
        sampling.frequency_penalty,
        sampling.presence_penalty,
    )
    if repetition != 1.0 or frequency or presence:
        values, counts = logits[state.ids], state.counts[state.ids]
        if repetition != 1.0:
            values = torch.where(values > 0, values / repetition, values * repetition)
        logits = logits.index_put((state.ids,), values - counts * frequency - (counts > 0) * presence)
    if sampling.logit_bias:
        ids = torch.tensor(list(sampling.logit_bias), dtype=torch.int64)
        logits = logits.index_add(0, ids, torch.tensor(list(sampling.logit_bias.values()), dtype=torch.float32))
    return logits


def _blocks(values: torch.Tensor, padding: float) -> torch.Tensor:
    """[n] as [blocks, _BLOCK], a view where no padding is needed."""
    missing = -len(values) % _BLOCK
    if missing:
        values = torch.nn.functional.pad(values, (0, missing), value=padding)
    return values.view(-1, _BLOCK)


def argmax(values: torch.Tensor) -> int:
    """The first of the largest values; a NaN counts as the largest. Five times as fast as torch's own."""
    blocks = _blocks(values, -torch.inf)
    row = int(torch.argmax(blocks.amax(1)))
    return row * _BLOCK + int(torch.argmax(blocks[row]))


def _at_least(blocks: torch.Tensor, tops: torch.Tensor, bound: torch.Tensor | float) -> torch.Tensor:
    """Rising indexes of the values >= bound, of blocks whose largest values are `tops`."""
    rows = (tops >= bound).nonzero().flatten()
    found = (blocks[rows] >= bound).nonzero()
    return rows[found[:, 0]] * _BLOCK + found[:, 1]


def largest(values: torch.Tensor, k: int) -> torch.Tensor:
    """Ids [k] of the k largest values, largest first; of equal ones the lower id comes first. 0 < k <= n.

    The k-th largest of the blocks' largest values bounds the k-th largest of all from below.
    """
    blocks = _blocks(values, -torch.inf)
    tops = blocks.amax(1)
    bound = torch.topk(tops, k).values[-1] if k < len(tops) else -torch.inf
    ids = _at_least(blocks, tops, bound)
    ids = ids[ids < len(values)]
    return ids[torch.argsort(values[ids], descending=True, stable=True)[:k]]


def _holding(probabilities: torch.Tensor, preference: torch.Tensor, mass: float) -> torch.Tensor:
    """The fewest tokens, by falling preference, whose probabilities add up to `mass` or more; all, if rounding hides it."""
    total = len(probabilities)
    for k in (*(k for k in _FIRST if k < total), total):
        ids = largest(preference, k)
        sums = torch.cumsum(probabilities[ids].double(), 0)
        if sums[-1] >= mass:
            break
    return ids[: int((sums < mass).sum()) + 1]


def _likely(probabilities: torch.Tensor, min_p: float) -> torch.Tensor:
    """Tokens at least min_p times as likely as the likeliest."""
    blocks = _blocks(probabilities, -1.0)
    tops = blocks.amax(1)
    return _at_least(blocks, tops, min_p * tops.max())


def _typical(probabilities: torch.Tensor, mass: float) -> torch.Tensor:
    """Tokens whose information is nearest to what is expected, the entropy (Meister et al. 2022, arXiv:2202.00666)."""
    information = -torch.log(probabilities)
    entropy = torch.special.entr(probabilities).sum(dtype=torch.float64).float()
    return _holding(probabilities, -(information - entropy).abs(), mass)


@lru_cache(maxsize=4)
def _all(count: int) -> torch.Tensor:
    return torch.arange(count)


def candidates(logits: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids [n], probabilities float32 [n]) that remain after temperature (> 0), top-k, top-p, min-p and typical-p.

    Each filter sees the distribution that the one before it left. At least one token remains.
    """
    everything = not 0 < sampling.top_k < len(logits)
    ids = _all(len(logits)) if everything else largest(logits, sampling.top_k)
    kept = logits if everything else logits[ids]
    if sampling.temperature != 1.0:  # the difference first: it is exact where it matters
        kept = (kept - kept.amax()).div_(max(sampling.temperature, _COLDEST))
    probabilities = torch.softmax(kept, 0)
    if sampling.top_p < 1.0:
        ids, probabilities = _kept(_holding(probabilities, probabilities, sampling.top_p), ids, probabilities)
    if sampling.min_p > 0.0:
        ids, probabilities = _kept(_likely(probabilities, sampling.min_p), ids, probabilities)
    if sampling.typical_p < 1.0:
        ids, probabilities = _kept(_typical(probabilities, sampling.typical_p), ids, probabilities)
    return ids, probabilities


def _kept(left: torch.Tensor, ids: torch.Tensor, probabilities: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    probabilities = probabilities[left]
    return ids[left], probabilities / probabilities.sum()


def draw(probabilities: torch.Tensor, generator: torch.Generator) -> int:
    """An index with the given probability, from one uniform number; never one of probability 0.

    First the block, then the place in it, so that only a block is summed up bit by bit; sums are float64.
    """
    blocks = _blocks(probabilities, 0.0)
    sums = torch.cumsum(blocks.sum(1).double(), 0)
    target = torch.rand((), dtype=torch.float64, generator=generator) * sums[-1]
    row = min(int(torch.searchsorted(sums, target, right=True)), len(sums) - 1)
    inside = torch.cumsum(blocks[row].double(), 0)
    index = int(torch.searchsorted(inside, target - (sums[row - 1] if row else 0.0), right=True))
    # A block's sum is rounded, and so may lie above the sum of its parts; the last token with a probability is meant then.
    if index == _BLOCK or not blocks[row, index]:
        return int(probabilities[: (row + 1) * _BLOCK].nonzero()[-1])
    return row * _BLOCK + index


def sample(logits: torch.Tensor, sampling: Sampling, state: State, bounds: torch.Tensor | None = None) -> int:
    """The next token for raw logits, a float32 tensor [vocab]. Updates `state`.

    `bounds`, float32 [vocab], are +inf for tokens that a grammar allows and -inf for the others: the smaller of logit
    and bound takes a tenth of the time that a choice by a bool takes.

    Raises BadLogits when the logits hold NaN or +inf, or when every token is ruled out.
    """
    adjusted = penalize(logits, sampling, state)
    if bounds is not None:
        adjusted = torch.minimum(adjusted, bounds)  # a NaN stays one
    token = argmax(adjusted)
    best = float(adjusted[token])
    if not math.isfinite(best):
        raise BadLogits("engine.banned_all" if best == -math.inf else "engine.bad_logits")
    if sampling.temperature > 0.0:
        ids, probabilities = candidates(adjusted, sampling)
        token = int(ids[draw(probabilities, state.generator)])
    state.add(token)
    return token


def logprobs(logits: torch.Tensor, token: int, top: int) -> TokenLogprob:
    """Log-probabilities (natural, to 1e-6) of `token` and of the `top` most likely, from raw logits."""
    most = logits.amax()
    total = most.double() + (logits - most).exp_().sum(dtype=torch.float64).log()
    ids = largest(logits, min(top, len(logits))) if top else torch.empty(0, dtype=torch.int64)
    ranked = zip(ids.tolist(), (logits[ids].double() - total).tolist(), strict=True)
    return TokenLogprob(token, float(logits[token].double() - total), tuple(ranked))
