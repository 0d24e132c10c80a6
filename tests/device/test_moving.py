"""Experts that change places: what they gain by a model of costs, and that no logit knows of it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from families import save
from references import TINY, from_folder, save_tiny
from routing import EXPERTS, LAYERS, drifting, even, repeats, seconds
from stepping import Driver
from test_graphs import decoded, recording_runner
from test_hybrid import FAMILIES, check, runner_of

from kt_core.device import open_device
from kt_core.operators import moving
from kt_core.operators.moving import Moves

SOME = 13  # of 128 experts: a tenth


class Layer:
    """What Moves asks of a layer of experts, without weights."""

    def __init__(self):
        self.num_experts, self.slots, self.form = EXPERTS, 8, SimpleNamespace(bytes=2_650_000)
        self.counted = np.zeros(EXPERTS)
        place = torch.full((EXPERTS,), SOME)
        place[:SOME] = torch.arange(SOME)
        room = SimpleNamespace(numbers=list(range(SOME)), grouped=SimpleNamespace(place=place), word=None)
        room.put = lambda slot, parts: None
        self.resident, self.kernel = (
            room,
            SimpleNamespace(places=lambda number: [], elsewhere=torch.arange(EXPERTS) < SOME),
        )

    @property
    def elsewhere(self):
        return self.kernel.elsewhere


def played(trace):
    """(part of hits, experts moved in a step of LAYERS layers) while the trace goes through, a step taking what it costs."""
    layers, now = [Layer() for _ in range(trace.shape[1])], [0.0]
    share = len(layers) / LAYERS
    moves = Moves(open_device("cpu"), layers, moving.BYTES * share, clock=lambda: now[0])
    hits = 0
    for token in trace:
        there = [layer.elsewhere.numpy()[ids] for layer, ids in zip(layers, token, strict=True)]
        hits += np.sum(there)
        for layer, ids in zip(layers, token, strict=True):
            layer.counted[ids] += 1
        before = moves.moved
        moves.turn()
        now[0] += seconds(np.mean(there), (moves.moved - before) / share)
        for layer in (
            layers
        ):  # no place has two experts, and what points to the device's weights and what the CPU leaves out agree
            places = layer.resident.grouped.place
            assert (places[~layer.elsewhere] == SOME).all() and len(set(layer.resident.numbers)) == SOME
    return hits / trace.size, moves.moved / len(trace) / share


def test_a_drifting_trace_gains():
    trace = drifting(500, 6, 1)
    assert np.allclose(repeats(trace), (0.45, 0.80), atol=0.03)
    uniform = seconds(SOME / EXPERTS, 0)
    assert uniform / seconds(*played(trace)) >= 1.2


def test_an_even_trace_loses_nothing():
    hits, moved = played(even(500, 6, 2))
    assert seconds(SOME / EXPERTS, 0) / seconds(hits, moved) > 0.99
    assert (
        moved < 17
    )  # once that is known, an eighth of the time for copies is used: 8 in a step, and 63 in each of the first 64


@pytest.mark.parametrize("family", FAMILIES)
def test_no_logit_changes(family, tmp_path, restless):
    """In float32, while experts move in every step: in pieces of a prompt, streamed or not, and single tokens."""
    (save_tiny if family in TINY else save)(family, tmp_path, torch.float32)
    tokens = torch.randint(3, 128, (30,), generator=torch.Generator().manual_seed(5)).tolist()
    with torch.no_grad():
        expected = from_folder(tmp_path)(torch.tensor([tokens])).logits[0]
    runner, _ = runner_of(tmp_path, 2, threshold=16, strategy="dynamic")
    runner.moves[0]._allowance = 1e18
    driver, before = Driver(runner), [sum(layer.asked) for layer in runner.experts.values()]
    check(driver.cut(0, tokens, [5, 1, 1, 17, 1, 1, 1, 1, 1, 1]), expected)
    assert runner.moves[0].moved >= 8 and runner.moves[0].bytes > 0
    runner.moves[0]._left = -1e18  # nothing goes any more, and what has gone has come
    driver.step({1: tokens[:1]})
    for layer, asked in zip(runner.experts.values(), before, strict=True):
        assert layer.elsewhere.nonzero().flatten().tolist() == sorted(layer.resident.numbers)
        assert len(layer.resident.numbers) == 2 and sum(layer.asked) - asked == 31 * layer.slots


def test_in_graphs(tmp_path, restless):
    save_tiny("qwen3_moe", tmp_path, torch.float32)
    plain, _ = runner_of(tmp_path, 0)
    runner, device = recording_runner(tmp_path, strategy="dynamic")
    runner.moves[0]._allowance = 1e18
    check(decoded(runner, 2), decoded(plain, 2))
    assert device.replays == 3 and runner.moves[0].moved > 0


def test_copies_keep_to_their_time(tmp_path, restless):
    save_tiny("qwen3_moe", tmp_path, torch.float32)
    runner, _ = runner_of(tmp_path, 2, strategy="dynamic")
    moves, now = runner.moves[0], [0.0]
    size = moves._layers[0].form.bytes
    moves._clock, moves._last, moves._left, moves._allowance = (lambda: now[0]), 0.0, 0.0, 2 * size
    driver = Driver(runner)
    for token in range(20):
        driver.step({0: [3 + token]})
        now[0] += 0.25  # half an expert's time
    assert 8 <= moves.bytes / size <= 10
