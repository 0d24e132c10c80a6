"""From the scheduler's parts to the tensors of a step."""

from collections.abc import Sequence as Listed

import numpy as np
import torch

from kt_core.engine.scheduler import Part
from kt_core.engine.step import Step
from kt_core.kernels.attention import Batch


def step_of(parts: Listed[Part], page: int) -> Step:
    """The step that computes `parts`, those with the highest adapter last, with pages of `page` tokens, and the rows of logits that they want."""
    counts = np.array([part.size for part in parts])
    ends = counts.cumsum()
    starts = np.concatenate([[0], ends]).astype(np.int32)
    begins = np.array([part.sequence.computed for part in parts])
    most = max(len(part.sequence.table.pages) for part in parts)
    tables = np.zeros((len(parts), most), np.int32)
    tokens = np.empty(ends[-1], np.int64)
    for row, (sequence, count) in enumerate(parts):
        tables[row, : len(sequence.table.pages)] = sequence.table.pages
        tokens[starts[row] : ends[row]] = sequence.tokens[sequence.computed : sequence.computed + count]
    owners = np.repeat(np.arange(len(parts)), counts)
    positions = np.arange(ends[-1]) - starts[owners] + begins[owners]
    slots = tables[owners, positions // page].astype(np.int64) * page + positions % page
    wanted = [
        row for end, part in zip(ends, parts, strict=True) for row in range(end - part.sequence.wanted(part.size), end)
    ]
    return Step(
        tokens=torch.from_numpy(tokens),
        positions=torch.from_numpy(positions),
        slots=torch.from_numpy(slots),
        batch=Batch(
            torch.from_numpy(tables), torch.from_numpy((begins + counts).astype(np.int32)), torch.from_numpy(starts)
        ),
        outputs=torch.tensor(wanted, dtype=torch.int64),
        sequences=tuple(part.sequence.number for part in parts),
        seen=tuple(part.sequence.stream.seen for part in parts),
        adapters=tuple(part.sequence.adapter for part in parts) if parts[-1].sequence.adapter >= 0 else (),
    )
