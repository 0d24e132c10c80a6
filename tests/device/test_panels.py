"""Weights as the kernels hold them, taken apart by torch: against the reference decoder, for every group of threads."""

import numpy as np
import pytest
import torch

from kt_core import kernels
from kt_core.bench.cases import weight
from kt_core.device import open_device, panels
from kt_core.operators.streamed import Streamed, Streamer
from kt_core.weights import decode_matrix

HIDDEN, INNER, EXPERTS = 256, 512, 3


class Gated:
    """What Streamed asks of transformers' experts."""

    num_experts, has_gate, is_concatenated = EXPERTS + 1, True, True


@pytest.fixture(params=[1, 2], ids=["one group", "two groups"])
def pool(request):
    return kernels.Pool([{"threads": 1}] * request.param)


@pytest.mark.parametrize("concatenated", [True, False], ids=["halves", "pairs"])
@pytest.mark.parametrize("format", panels.DECODERS)
def test_every_format(format, concatenated, pool):
    sizes = {"gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER)}
    stored = [{part: weight(format, *size, seed) for part, size in sizes.items()} for seed in range(EXPERTS)]
    kernel = kernels.Experts(EXPERTS + 1, HIDDEN, INNER, pool=pool)
    kernel.load_all([(expert["gate"], expert["up"], expert["down"]) for expert in stored], 1)
    module = Gated()
    module.is_concatenated = concatenated
    streamer = Streamer(open_device("cpu"), 1)
    layer = Streamed(module, kernel, list(range(1, EXPERTS + 1)), streamer)
    streamer.prepare()
    have = streamer.weights(0)
    for number, expert in enumerate(stored):
        gate, up, down = (decode_matrix(expert[part]) for part in ("gate", "up", "down"))
        both = np.concatenate((gate, up)) if concatenated else np.stack((gate, up), 1).reshape(-1, HIDDEN)
        assert torch.equal(have.first[number], torch.from_numpy(both))
        assert torch.equal(have.down[number], torch.from_numpy(down))
    assert layer.bytes == sum(place.nbytes for number in range(1, EXPERTS + 1) for place in kernel.places(number))


def test_places_of_experts_that_are_not_there():
    kernel = kernels.Experts(2, HIDDEN, INNER)
    assert kernel.places(0) == []
    with pytest.raises(ValueError, match="no such expert"):
        kernel.places(2)
