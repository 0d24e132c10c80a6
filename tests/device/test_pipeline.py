"""Layers on several devices: with the CPU as each of them, by the same code as with GPUs."""

import pytest
import torch
from families import save
from references import TINY, from_folder, save_tiny
from stepping import Driver
from test_deferred import deferring
from test_hybrid import FAMILIES, check, stepped

from kt_core.device import open_device
from kt_core.engine import pipeline
from kt_core.engine.loader import build
from kt_core.engine.pipeline import stage_of, transfer_map
from kt_core.engine.placing import Placing, Stage
from kt_core.engine.runners import device_runner_for
from kt_core.engine.runners.hybrid import HybridRunner
from kt_core.models import resolve
from kt_core.operators.crossing import Crossing
from kt_core.operators.hybrid import HybridExperts
from kt_core.operators.streamed import Streamer
from kt_core.weights import open_weights


def runner_of(folder, devices, experts, threshold=None, **more):
    stages = [Stage(one, Crossing(one), Streamer(one, threshold) if threshold else None) for one in devices]
    first = stages[0]
    placing = Placing(first.device, first.crossing, first.streamer, experts, **more, further=tuple(stages[1:]))
    model = build(open_weights(resolve(str(folder))), lambda *_: None, placing=placing)
    return device_runner_for(model, 64, torch.float32, placing.crossing, 64), model


def test_who_has_which_layer():
    assert transfer_map(7, 2) == {0: 0, 4: 1} and transfer_map(4, 4) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert transfer_map(2, 3) == {0: 0, 1: 1} and transfer_map(5, 1) == {0: 0}
    names = (
        "model.embed_tokens.weight",
        "model.rotary_emb",
        "model.layers.3.mlp.gate.weight",
        "model.layers.12.norm.weight",
    )
    behind = ("model.norm.weight", "lm_head.weight")
    assert [stage_of(name, {0: 0, 4: 1, 8: 2}) for name in (*names, *behind)] == [0, 0, 0, 2, 2, 2]


@pytest.mark.parametrize("family", FAMILIES)
def test_two_are_as_one(family, tmp_path, monkeypatch):
    """Some experts on each device, prompts streamed to both, and rows that go over between two layers."""
    (save_tiny if family in TINY else save)(family, tmp_path, torch.float32)
    prompts = [torch.randint(3, 128, (n,), generator=torch.Generator().manual_seed(5)).tolist() for n in (21, 9)]
    reference = from_folder(tmp_path)
    with torch.no_grad():
        expected = [reference(torch.tensor([prompt])).logits[0] for prompt in prompts]
    asked, own = [], pipeline._there
    monkeypatch.setattr(pipeline, "_there", lambda call, device: asked.append(device) or own(call, device))
    devices = [open_device("cpu"), open_device("cpu")]
    runner, model = runner_of(tmp_path, devices, 2, 6, strategy="random")
    assert isinstance(runner, HybridRunner) and {id(device) for device in asked} == {id(device) for device in devices}
    layers = [module for module in model.modules() if isinstance(module, HybridExperts)]
    places = [layer.crossing.device for layer in layers]
    assert places[-1] is devices[1] and [places.index(place) for place in places] == sorted(map(places.index, places))
    for found, logits in zip(stepped(runner, prompts), expected, strict=True):
        check(found, logits)


@torch.no_grad()
def test_what_a_layer_leaves_goes_to_the_next_device(tmp_path, restless):
    """Deferred experts, while experts move on both."""
    save_tiny("qwen3_moe", tmp_path, torch.float32)
    tokens = torch.randint(3, 128, (20,), generator=torch.Generator().manual_seed(5)).tolist()
    expected = deferring(from_folder(tmp_path), 1)(torch.tensor([tokens])).logits[0]
    devices = [open_device("cpu"), open_device("cpu"), open_device("cpu")]
    runner, _ = runner_of(tmp_path, devices, 2, strategy="dynamic", deferred=1)
    for moves in runner.moves:
        moves._allowance = 1e18
    check(Driver(runner).cut(0, tokens, [8, 1, 1, 8, 1, 1]), expected)
    assert len(runner.moves) == 2 and all(moves.moved for moves in runner.moves)  # the first layer has no experts
