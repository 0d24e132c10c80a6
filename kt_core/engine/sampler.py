"""The choice of the next token: pure functions over one float32 logits vector [vocab].

Order of steps: repetition penalty, frequency and presence penalties, logit bias, temperature,
top-k, top-p, min-p. A token is drawn by inverting the distribution at one uniform float64, so a
seeded request consumes exactly one random number a token, whatever the filters leave over.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kt_core.errors import KTError
from kt_core.types import Sampling, TokenLogprob

# top-p looks at this many of the largest logits before it sorts all: a full sort of 150 k logits takes 14 ms, the
# 1024 largest 0.8 ms (one thread), and they hold the nucleus of nearly every step.
_NUCLEUS = (1024, 16384)


class BadLogits(KTError):
    """The model's logits hold NaN or +inf, or no token is left to choose from."""


@dataclass
class State:
    """What one sequence's sampling depends on besides the logits."""

    generator: torch.Generator
    seen: torch.Tensor  # bool [vocab]: in the prompt or the answer
    counts: torch.Tensor  # float32 [vocab]: times in the answer

    def add(self, token: int) -> None:
        self.seen[token] = True
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
    return State(generator, seen, torch.zeros(vocab))


def penalize(logits: torch.Tensor, sampling: Sampling, state: State) -> torch.Tensor:
    """Logits [vocab] with penalties and bias applied; the input is left alone.

    Repetition (Keskar et al. 2019, arXiv:1909.05858): tokens of prompt and answer, l/p when l > 0, else l*p.
    Frequency and presence (OpenAI): l - count*frequency - [count > 0]*presence, over the answer only.
    """
    if sampling.repetition_penalty != 1.0:
        scaled = torch.where(logits > 0, logits / sampling.repetition_penalty, logits * sampling.repetition_penalty)
        logits = torch.where(state.seen, scaled, logits)
    if sampling.frequency_penalty or sampling.presence_penalty:
        logits = logits - state.counts * sampling.frequency_penalty - (state.counts > 0) * sampling.presence_penalty
    if sampling.logit_bias:
        ids = torch.tensor(list(sampling.logit_bias), dtype=torch.int64)
        logits = logits.index_add(0, ids, torch.tensor(list(sampling.logit_bias.values()), dtype=torch.float32))
    return logits


def largest(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Ids [k] of the k largest logits, largest first; of equal ones the lower id comes first."""
    kth = torch.topk(logits, k).values[-1]
    above = (logits > kth).nonzero().flatten()
    ties = (logits == kth).nonzero().flatten()[: k - len(above)]
    ids = torch.cat([above, ties])
    return ids[torch.argsort(logits[ids], descending=True, stable=True)]


def _nucleus(scaled: torch.Tensor, top_p: float) -> torch.Tensor:
    """Ids of the smallest set of most likely tokens whose probabilities add up to top_p or more."""
    total = torch.logsumexp(scaled, 0)
    for k in (*(k for k in _NUCLEUS if k < len(scaled)), len(scaled)):
        ids = largest(scaled, k)
        mass = torch.cumsum(torch.exp(scaled[ids] - total), 0)
        if mass[-1] >= top_p:
            break
    return ids[: int((mass < top_p).sum()) + 1]


def candidates(logits: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids [n], probabilities float64 [n]) that remain after temperature (> 0), top-k, top-p and min-p.

    Each filter sees the distribution that the one before it left. At least one token remains.
    """
    ids = largest(logits, sampling.top_k) if 0 < sampling.top_k < len(logits) else torch.arange(len(logits))
    kept = logits if len(ids) == len(logits) else logits[ids]
    # Float64 and the shift by the maximum keep tiny temperatures from overflowing to inf - inf.
    scaled = (kept.double() - kept.max()) / sampling.temperature
    if sampling.top_p < 1.0:
        nucleus = _nucleus(scaled, sampling.top_p)
        ids, scaled = ids[nucleus], scaled[nucleus]
    probabilities = torch.softmax(scaled, 0)
    if sampling.min_p > 0.0:
        keep = probabilities >= sampling.min_p * probabilities.max()
        ids, probabilities = ids[keep], probabilities[keep]
        probabilities = probabilities / probabilities.sum()
    return ids, probabilities


def draw(probabilities: torch.Tensor, generator: torch.Generator) -> int:
    """An index with the given probability, from one uniform number; never one of probability 0."""
    total = torch.cumsum(probabilities, 0)
    uniform = torch.rand((), dtype=torch.float64, generator=generator)
    index = int(torch.searchsorted(total, uniform * total[-1], right=True))
    # Rounding of uniform * total can reach total itself; the last token with a probability is meant then.
    return index if index < len(total) else int(probabilities.nonzero()[-1])


def sample(logits: torch.Tensor, sampling: Sampling, state: State) -> int:
    """The next token for raw logits, a float32 tensor [vocab]. Updates `state`.

    Raises BadLogits when the logits hold NaN or +inf, or when every token is ruled out.
    """
    adjusted = penalize(logits, sampling, state)
    token = int(torch.argmax(adjusted))  # the first of equal ones; a NaN counts as the largest
    best = adjusted[token]
    if not torch.isfinite(best):
        raise BadLogits("engine.banned_all" if best == -torch.inf else "engine.bad_logits")
    if sampling.temperature > 0.0:
        ids, probabilities = candidates(adjusted, sampling)
        token = int(ids[draw(probabilities, state.generator)])
    state.add(token)
    return token


def logprobs(logits: torch.Tensor, token: int, top: int) -> TokenLogprob:
    """Log-probabilities (natural, summed in float64) of `token` and of the `top` most likely, from raw logits."""
    values = logits.double()
    values = values - torch.logsumexp(values, 0)
    ids = largest(logits, min(top, len(logits))) if top else torch.empty(0, dtype=torch.int64)
    return TokenLogprob(token, float(values[token]), tuple((int(i), float(values[i])) for i in ids))
