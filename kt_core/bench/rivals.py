"""The same work by torch's own CPU kernels, as transformers would do it: a loop over the experts in use."""

from collections.abc import Callable, Iterator

import torch
from torch.nn import functional

from kt_core.bench import routing
from kt_core.bench.job import LINEAR, Job
from kt_core.bench.layers import counts, inputs, mixing
from kt_core.bench.measure import Call
from kt_core.kernels import units

Product = Callable[[torch.Tensor], torch.Tensor]
BF16, INT8 = "torch-bf16", "torch-int8"


def names() -> list[str]:
    """The paths that this torch has: bfloat16, and int8 weights with a scale for each row where it can."""
    return [BF16, INT8] if hasattr(torch, "_weight_int8pack_mm") else [BF16]


def calls(job: Job, name: str, done: Callable[[int], None]) -> Callable[[int], list[Call]]:
    """Weights for `name`, as many layers as the job's BF16 has; the result gives the calls for a number of tokens."""
    layers = [list(_unit_weights(job, name)) for _ in range(job.layer_count("BF16"))]
    done(1)
    return lambda tokens: [call for layer in layers for call in _calls(job, name, layer, tokens)]


def _unit_weights(job: Job, name: str) -> Iterator[list[Product]]:
    shapes = [(part.rows, part.cols) for part in job.parts for _ in range(part.count)]
    for _ in range(job.experts):
        yield [_product(name, *shape) for shape in shapes]


def _product(name: str, rows: int, cols: int) -> Product:
    """x [M, cols] bfloat16 to [M, rows]."""
    if name == BF16:
        weight = torch.full((rows, cols), 0.01, dtype=torch.bfloat16)
        return lambda x: functional.linear(x, weight)
    packed = torch.full((rows, cols), 3, dtype=torch.int8)
    scales = torch.full((rows,), 0.003, dtype=torch.bfloat16)
    return lambda x: torch._weight_int8pack_mm(x, packed, scales)


def _calls(job: Job, name: str, layer: list[list[Product]], tokens: int) -> Iterator[Call]:
    x = inputs(tokens, job.hidden).to(torch.bfloat16)
    size = 2 if name == BF16 else 1
    unit = "tile_bf16" if "tile_bf16" in units() and tokens > 1 else "bf16"
    weights = sum(part.count * part.rows * part.cols for part in job.parts)
    if job.kind == LINEAR:
        (product,) = layer[0]
        yield Call(lambda: product(x), size * weights, {unit: 2.0 * tokens * weights})
        return
    mix = mixing(tokens, job.top_k).to(torch.bfloat16)
    for ids in routing.even(tokens, job.experts, job.top_k):
        touched = len(counts(ids)) * weights * size
        operations = {unit: 2.0 * tokens * job.top_k * weights}
        yield Call(lambda ids=ids: _experts(layer, x, ids, mix), touched, operations)  # type: ignore[misc]


def _experts(layer: list[list[Product]], x: torch.Tensor, ids: torch.Tensor, mix: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    for expert in ids.unique().tolist():
        rows, slots = torch.where(ids == expert)
        gate, up, down = layer[expert]
        mine = x[rows]
        out = down(functional.silu(gate(mine)) * up(mine))
        y.index_add_(0, rows, out * mix[rows, slots, None])
    return y
