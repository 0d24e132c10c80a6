"""Compares results at a job's sizes with the float64 reference."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from kt_core.bench import layers
from kt_core.bench.attention import AttentionBench
from kt_core.bench.cases import EXPERTS_TOLERANCE, PREFILL, TOLERANCE, weight
from kt_core.bench.job import ATTENTION, CHECK_UNITS, LINEAR, Job
from kt_core.kernels import POLICY, Experts, Linear, reference
from kt_core.weights import Matrix, decode_matrix

SAMPLE = 2  # tokens that are compared; the reference takes a second for each in the largest shapes


@dataclass(frozen=True)
class Checked:
    """The largest error and the largest allowed one.

    Of a linear layer relative to sum |x w|, of experts to a row's largest, of attention to its own bound.
    """

    error: float
    bound: float

    @property
    def good(self) -> bool:
        return self.error <= self.bound  # not a number is not good


def check(job: Job, format: str, tier: str | None, tokens: int) -> Checked:
    """With new weights, different in each expert, and as many rows for an expert as `tokens` of the job give it."""
    if job.kind == ATTENTION:
        return Checked(*AttentionBench(replace(job, layers=1), format, tier, lambda _: None).error(tokens))
    return _linear(job, format, tier, tokens) if job.kind == LINEAR else _experts(job, format, tier, tokens)


def _linear(job: Job, format: str, tier: str | None, tokens: int) -> Checked:
    matrix = weight(format, job.intermediate, job.hidden, seed=11)
    x = layers.inputs(tokens, job.hidden)
    y = Linear(matrix, tier=tier)(x).numpy()[-SAMPLE:]
    path = layers.Paths(format, tier).path(tokens)
    a, w = reference.rounded(x.numpy()[-SAMPLE:], decode_matrix(matrix), format, path)
    size = np.abs(a) @ np.abs(w).T
    return Checked(_worst(y, a @ w.T, size), TOLERANCE[format])


def _experts(job: Job, format: str, tier: str | None, tokens: int) -> Checked:
    experts = min(CHECK_UNITS, job.experts)
    top_k = min(2, experts)
    rows = max(1, tokens * job.top_k // job.experts)
    tokens = max(1, rows * experts // top_k)
    layer = Experts(experts, job.hidden, job.intermediate, tier=tier)
    three = [(part.rows, part.cols) for part in job.parts for _ in range(part.count)]
    stored = {e: [weight(format, *shape, seed=3 * e + i) for i, shape in enumerate(three)] for e in range(experts)}
    for expert, (gate, up, down) in stored.items():
        layer.load(expert, gate, up, down)
    x, mix = layers.inputs(tokens, job.hidden), layers.mixing(tokens, top_k)
    generator = torch.Generator().manual_seed(9)
    ids = torch.stack([torch.randperm(experts, generator=generator)[:top_k] for _ in range(tokens)])
    y = layer(x, ids, mix).numpy()
    paths = {e: layers.Paths(format, tier).path(count) for e, count in layers.counts(ids).items()}
    worst = 0.0
    for token in range(max(0, tokens - SAMPLE), tokens):
        expected = np.zeros(job.hidden)
        for expert, share in sorted(zip(ids[token].tolist(), mix[token].tolist(), strict=True)):
            # one expert at a time: decoded, the largest take half a GiB
            parts = {0: _decoded(stored[expert])}
            first = 1 if paths[expert] == PREFILL else None
            one = np.zeros((1, 1), np.int64), np.full((1, 1), share, np.float32)
            expected += reference.experts(x[token : token + 1].numpy(), *one, parts, "silu", first)[0]
        worst = _larger(worst, _worst(y[token], expected, np.abs(expected).max()))

    return Checked(worst, EXPERTS_TOLERANCE[POLICY[format]])


def _decoded(three: list[Matrix]) -> tuple[reference.Part, reference.Part, reference.Part]:
    gate, up, down = ((m.format, decode_matrix(m)) for m in three)
    return gate, up, down


def _worst(got: reference.Array, expected: reference.Array, size: reference.Array) -> float:
    error = np.abs(got.astype(np.float64) - expected) / np.where(size == 0, 1, size)
    return float(np.max(error)) if np.isfinite(error).all() else float("nan")


def _larger(a: float, b: float) -> float:
    """The larger one; not a number is the largest."""
    return b if not b <= a else a
