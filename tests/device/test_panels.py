"""Weights as the kernels hold them, taken apart by torch: against the reference decoder, for every group of threads."""

import numpy as np
import pytest
import torch

from kt_core import kernels
from kt_core.bench.cases import weight
from kt_core.device import found, open_device, panels
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
    layer = Streamed(module, kernel, list(range(1, EXPERTS + 1)), streamer)
    streamer.prepare()
    have = streamer.weights(0)
    for number, expert in enumerate(stored):
        gate, up, down = (decode_matrix(expert[part]) for part in ("gate", "up", "down"))
        both = np.concatenate((gate, up)) if concatenated else np.stack((gate, up), 1).reshape(-1, HIDDEN)
        assert torch.equal(have.first[number].cpu(), torch.from_numpy(both))
        assert torch.equal(have.down[number].cpu(), torch.from_numpy(down))
    assert layer.bytes == sum(place.nbytes for number in range(1, EXPERTS + 1) for place in kernel.places(number))


def test_places_of_experts_that_are_not_there():
    kernel = kernels.Experts(2, HIDDEN, INNER)
    assert kernel.places(0) == []
    with pytest.raises(ValueError, match="no such expert"):
        kernel.places(2)
