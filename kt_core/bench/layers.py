"""What is timed: calls of the kernels' layers, with the bytes and operations of each."""

from collections import Counter
from collections.abc import Callable, Iterable

import torch

from kt_core.bench import routing
from kt_core.bench.cases import DIRECT, PREFILL, Case, cases, unit, weight
from kt_core.bench.job import Job
from kt_core.bench.measure import Call
from kt_core.kernels import Experts, Linear, info, units

Done = Callable[[int], None]  # number of weights loaded so far


class Paths:
    """The path and the arithmetic unit of a number of rows, for one format on one tier."""

    def __init__(self, format: str, tier: str | None) -> None:
        name = tier or str(info()["chosen"])
        self._cases: dict[str, Case] = {case.path: case for case in cases(name) if case.format == format}
        self._units = units(tier)

    def path(self, rows: int) -> str:
        prefill = self._cases.get(PREFILL)
        return PREFILL if prefill and rows >= prefill.first_row else DIRECT

    def unit(self, rows: int) -> str:
        path = self.path(rows)
        return unit(self._cases[path].policy, path, self._units)

    def names(self, rows: Iterable[int]) -> str:
        """The paths that calls with these row counts take: "direct", "prefill", or both."""
        return "+".join(sorted({self.path(count) for count in rows}))


class LinearBench:
    """Linear layers [intermediate, hidden] of one format, used in turn."""

    def __init__(self, job: Job, format: str, tier: str | None, done: Done) -> None:
        self._job, self._paths = job, Paths(format, tier)
        matrix = weight(format, job.intermediate, job.hidden)
        self._layers = []
        for index in range(job.layer_count(format)):
            self._layers.append(Linear(matrix, tier=tier))
            done(index + 1)

    def path(self, tokens: int) -> str:
        return self._paths.path(tokens)

    def calls(self, tokens: int) -> list[Call]:
        x = inputs(tokens, self._job.hidden)
        operations = {self._paths.unit(tokens): 2.0 * tokens * self._job.hidden * self._job.intermediate}
        return [Call(lambda layer=layer: layer(x), layer.nbytes, operations) for layer in self._layers]  # type: ignore[misc]


class MoeBench:
    """The routed experts of MoE layers of one format, used in turn."""

    def __init__(self, job: Job, format: str, tier: str | None, done: Done) -> None:
        self._job, self._paths = job, Paths(format, tier)
        self._layers = []
        wide, tall = (weight(format, part.rows, part.cols, seed) for seed, part in enumerate(job.parts))
        for index in range(job.layer_count(format)):
            layer = Experts(job.experts, job.hidden, job.intermediate, tier=tier)
            self._layers.append(layer)
            for expert in range(job.experts):
                layer.load(expert, wide, wide, tall)
                done(index * job.experts + expert + 1)

    def path(self, tokens: int) -> str:
        return self._paths.names(rows for ids in self._ids(tokens) for rows in counts(ids).values())

    def calls(self, tokens: int) -> list[Call]:
        x, weights = inputs(tokens, self._job.hidden), mixing(tokens, self._job.top_k)
        out = torch.empty_like(x)  # as an engine's buffers: the same memory in every call
        return [self._call(layer, x, ids, weights, out) for ids in self._ids(tokens) for layer in self._layers]

    def _ids(self, tokens: int) -> list[torch.Tensor]:
        return routing.even(tokens, self._job.experts, self._job.top_k)

    def _call(
        self, layer: Experts, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
    ) -> Call:
        rows = counts(ids)
        operations: Counter[str] = Counter()
        for count in rows.values():
            operations[self._paths.unit(count)] += 6 * count * self._job.hidden * self._job.intermediate
        touched = len(rows) * layer.nbytes // self._job.experts
        return Call(lambda: layer(x, ids, weights, out), touched, dict(operations))


def counts(ids: torch.Tensor) -> dict[int, int]:
    """Expert -> its rows."""
    return Counter(ids.flatten().tolist())


def inputs(tokens: int, width: int, seed: int = 3) -> torch.Tensor:
    """Activations [tokens, width] float32, normal numbers."""
    return torch.randn(tokens, width, generator=torch.Generator().manual_seed(seed))


def mixing(tokens: int, top_k: int) -> torch.Tensor:
    """Routing weights [tokens, top_k] that add up to 1."""
    weights = torch.rand(tokens, top_k, generator=torch.Generator().manual_seed(5))
    return weights / weights.sum(dim=1, keepdim=True)
