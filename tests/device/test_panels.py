"""Weights as the kernels hold them, taken apart by torch: against the reference decoder, for every group of threads."""

import numpy as np
import pytest
import torch

from kt_core import kernels
from kt_core.bench.cases import weight
from kt_core.device import found, open_device, panels
from kt_core.operators import grouped
from kt_core.operators.grouped import Groups, Stored
from kt_core.operators.packed import Form, memory
from kt_core.operators.streamed import Streamed, Streamer
from kt_core.weights import decode_matrix

HIDDEN, INNER, EXPERTS = 256, 2304, 3  # more columns than the 2048 that FP8 keeps together
DEVICES = ["cpu", *(pytest.param(name, marks=pytest.mark.gpu) for name in found())]

# The kind of scales, the size of groups and zero points change with the seed where the format has a choice
VARIANTS = [
    (format, seed) for format in panels.DECODERS for seed in range(3 if format in ("INT4", "GPTQ", "AWQ") else 1)
]


class Gated:
    """What Streamed asks of transformers' experts."""

    num_experts, has_gate, is_concatenated = EXPERTS + 1, True, True


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("groups", "concatenated"), [(1, True), (2, False)], ids=["halves", "two groups, pairs"])
@pytest.mark.parametrize(("format", "variant"), VARIANTS)
def test_every_format(format, variant, groups, concatenated, device, monkeypatch):
    monkeypatch.setattr(panels, "AT_ONCE", 2)
    sizes = {"gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER)}
    stored = [
        {part: weight(format, *size, variant + 12 * seed) for part, size in sizes.items()} for seed in range(EXPERTS)
    ]
    pool = kernels.Pool([{"threads": 1}] * groups)
    kernel = kernels.Experts(EXPERTS + 1, HIDDEN, INNER, pool=pool)
    kernel.load_all([(expert["gate"], expert["up"], expert["down"]) for expert in stored], 1)
    module = Gated()
    module.is_concatenated = concatenated
    there = open_device(device)
    there.dtype = torch.float32
    streamer = Streamer(there, 1)
    form = Form(module, kernel, 1)
    layer = Streamed(module, form, kernel, list(range(1, EXPERTS + 1)), streamer)
    streamer.prepare()
    have = streamer.weights(0, 100).values
    for number, expert in enumerate(stored):
        gate, up, down = (decode_matrix(expert[part]) for part in ("gate", "up", "down"))
        both = np.concatenate((gate, up)) if concatenated else np.stack((gate, up), 1).reshape(-1, HIDDEN)
        assert torch.equal(have[0][number].cpu(), torch.from_numpy(both))
        assert torch.equal(have[1][number].cpu(), torch.from_numpy(down))
    assert layer.bytes == sum(place.nbytes for number in range(1, EXPERTS + 1) for place in kernel.places(number))
    raw = torch.stack([torch.cat([memory(place) for place in kernel.places(number)]) for number in (2, 3)]).to(device)
    packed, chosen = (
        Stored(raw, form, there),
        torch.tensor([1, 2, 0, 1], device=device),
    )  # of the experts 2 and 3; 2: none
    x, rows = torch.randn(2, HIDDEN, device=device), torch.randn(4, INNER, device=device)
    close(packed.few_first(x, chosen, 2), x.repeat_interleave(2, 0), have[0][1:], chosen)
    close(packed.few_down(rows, chosen), rows, have[1][1:], chosen)
    groups = Groups(torch.tensor([0, 1, 1, 2], device=device), torch.tensor([1, 3], dtype=torch.int32, device=device))
    close(packed.down(rows, groups), rows, have[1][1:], groups.group)
    monkeypatch.setattr(grouped, "ROOM", HIDDEN * INNER)
    close(packed.down(rows, groups), rows, have[1][1:], groups.group)


def close(found, rows, weights, chosen):
    """Products of rows with their experts' weights, in float32: K terms in another order, with the last bit of each wrong at
    most, differ by 2 sqrt(K) 2^-24 of their sum of magnitudes, as good as always; with K = 2304 that is 6e-6."""
    for row, number, result in zip(rows.double(), chosen.tolist(), found.double(), strict=True):
        if number < len(weights):
            terms = weights[number].double() * row
            assert ((result - terms.sum(-1)).abs() <= 6e-6 * terms.abs().sum(-1)).all()
        else:
            assert torch.isfinite(result).all()


def test_places_of_experts_that_are_not_there():
    kernel = kernels.Experts(2, HIDDEN, INNER)
    assert kernel.places(0) == []
    with pytest.raises(ValueError, match="no such expert"):
        kernel.places(2)
