"""Attention over paged caches: one sequence whose last tokens ask."""

import torch

from kt_core.bench.cases import unit
from kt_core.bench.job import Job
from kt_core.bench.layers import Done, inputs
from kt_core.bench.measure import Call
from kt_core.kernels import attention, units

PAGE = 64
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}


def layout_of(job: Job, format: str) -> attention.PageLayout:
    shape = job.cache_shape
    return attention.PageLayout(shape.kv_heads, shape.key_size, shape.value_size, PAGE, DTYPES[format], shape.is_latent)


class AttentionBench:
    """Caches of one format with the job's keys, of layers used in turn. Pages lie in random order."""

    def __init__(self, job: Job, format: str, tier: str | None, done: Done) -> None:
        self._job, self._tier = job, tier
        self._unit = unit("bf16" if format == "BF16" else "f32", "direct", units(tier))
        (self._keys,) = job.keys
        self.layout = layout_of(job, format)
        self._layers = []
        for index in range(job.layer_count(format)):
            self._layers.append(self.cache(index))
            done(index + 1)

    def cache(self, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Pages with random keys and values, and the table [1, P] of the sequence."""
        count = -(-self._keys // PAGE)
        pages = attention.new_pages(self.layout, count)
        table = torch.randperm(count, dtype=torch.int32, generator=torch.Generator().manual_seed(seed))[None]
        shape = self._job.cache_shape
        for begin in range(0, self._keys, 4096):  # a part at a time: float32 takes twice a page's memory
            at = torch.arange(begin, min(begin + 4096, self._keys))
            slots = table[0, at // PAGE].long() * PAGE + at % PAGE
            wide = [
                inputs(len(at), shape.kv_heads * size, seed + begin + size)
                for size in (shape.key_size, shape.value_size)
            ]
            keys, values = (x.view(len(at), shape.kv_heads, -1) for x in wide)
            attention.write(pages, self.layout, slots, keys, None if self.layout.shared else values)
        return pages, table

    def path(self, tokens: int) -> str:
        return "latent" if self.layout.shared else "direct"

    def calls(self, tokens: int) -> list[Call]:
        shape = self._job.cache_shape
        q = self.queries(tokens)
        seen = sum(range(self._keys - tokens + 1, self._keys + 1))  # by all queries
        operations = {self._unit: 2.0 * shape.heads * (shape.key_size + shape.value_size) * seen}
        nbytes = -(-self._keys // PAGE) * self.layout.page_bytes
        return [Call(lambda layer=layer: self.attend(layer, q), nbytes, operations) for layer in self._layers]  # type: ignore[misc]

    def queries(self, tokens: int) -> torch.Tensor:
        shape = self._job.cache_shape
        return inputs(tokens, shape.heads * shape.key_size).view(tokens, shape.heads, shape.key_size)

    def attend(self, layer: tuple[torch.Tensor, torch.Tensor], q: torch.Tensor) -> torch.Tensor:
        pages, table = layer
        numbers = torch.tensor([self._keys, 0, len(q)], dtype=torch.int32)
        batch = attention.Batch(table, numbers[:1], numbers[1:])
        return attention.attend(q, pages, self.layout, batch, self.layout.key_size**-0.5, tier=self._tier)

    def error(self, tokens: int) -> tuple[float, float]:
        """The largest error of the last query's results over its bound, and 1.

        The bound is of sum p |v|: 2e-6 of the largest score's size for an error of the scores, 1e-6 for exp, sums and
        the division, and 2^-9 for weights that are rounded to bfloat16: by at most 2^-8 each, but of both signs.
        """
        pages, table = layer = self.cache(1)
        q = self.queries(tokens)
        got = self.attend(layer, q)[-1].double()
        at = torch.arange(self._keys)
        slots = table[0, at // PAGE].long() * PAGE + at % PAGE
        group = self._job.cache_shape.heads // self.layout.heads
        k, v = (x.double().repeat_interleave(group, 1) for x in attention.read(pages, self.layout, slots))
        asked = q[-1].to(self.layout.dtype).double() * self.layout.key_size**-0.5
        weights = torch.einsum("hd,lhd->hl", asked, k).softmax(-1)
        size = torch.einsum("hd,lhd->hl", asked.abs(), k.abs()).amax(-1)
        step = 2e-6 * size + 1e-6 + (2**-9 if self.layout.dtype == torch.bfloat16 else 0)
        bound = torch.einsum("hl,lhd->hd", weights, v.abs()) * step[:, None]
        error = (got - torch.einsum("hl,lhd->hd", weights, v)).abs() / bound
        return float(error.max()), 1.0
