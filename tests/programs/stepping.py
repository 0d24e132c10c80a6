"""Steps of several sequences for a runner, with pages in no order, as a scheduler would make them."""

from dataclasses import dataclass, field

import torch

from kt_core.engine.step import Step
from kt_core.kernels.attention import Batch

Parts = dict[int, list[int]]  # sequence -> its new tokens


@dataclass
class Driver:
    """Feeds sequences to a runner; answers with the logits of every new token."""

    runner: object
    pages: int = 32
    tables: dict[int, list[int]] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = torch.randperm(self.pages, generator=torch.Generator().manual_seed(4)).tolist()
        self.runner.allocate(self.pages)

    def step(self, parts: Parts, outputs: list[int] | None = None, adapters: tuple[int, ...] = ()) -> torch.Tensor:
        """Logits of the rows `outputs` of all new tokens, by default of all. adapters: of each part, -1 none."""
        page, slots, positions, starts = self.runner.page, [], [], [0]
        for sequence, tokens in parts.items():
            begin, table = self.lengths.get(sequence, 0), self.tables.setdefault(sequence, [])
            while len(table) * page < begin + len(tokens):
                table.append(self.free.pop())
            places = range(begin, begin + len(tokens))
            positions += places
            slots += [table[p // page] * page + p % page for p in places]
            starts.append(len(positions))
            self.lengths[sequence] = begin + len(tokens)
        width = max(len(self.tables[s]) for s in parts)
        tables = [self.tables[s] + [-1] * (width - len(self.tables[s])) for s in parts]
        int32 = {"dtype": torch.int32}
        batch = Batch(
            torch.tensor(tables, **int32),
            torch.tensor([self.lengths[s] for s in parts], **int32),
            torch.tensor(starts, **int32),
        )
        wanted = torch.tensor(range(len(positions)) if outputs is None else outputs, dtype=torch.int64)
        tokens = torch.tensor([token for part in parts.values() for token in part])
        return self.runner.forward(
            Step(tokens, torch.tensor(positions), torch.tensor(slots), batch, wanted, tuple(parts), adapters=adapters)
        )

    def cut(self, sequence: int, tokens: list[int], sizes: list[int]) -> torch.Tensor:
        """Logits of a sequence that is fed in parts of those sizes."""
        assert sum(sizes) == len(tokens)
        results = []
        for size in sizes:
            part, tokens = tokens[:size], tokens[size:]
            results.append(self.step({sequence: part}))
        return torch.cat(results)
