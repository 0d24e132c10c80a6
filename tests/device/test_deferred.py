"""Experts whose results are added a layer later, against a reference that knows nothing of devices.

The definition: of every token that a layer of experts takes, the `count` slots of the smallest weights (of equal ones the last)
are not in that layer's result, but in that of the next layer of experts, computed from the rows that the first layer got. The
last layer defers nothing. Float32 on both sides: test_hybrid's bound, since the sums are the same but for their order.
"""

import pytest
import torch
from families import save
from references import TINY, from_folder, save_tiny
from stepping import Driver
from test_graphs import decoded, recording_runner
from test_hybrid import FAMILIES, check, runner_of

from kt_core.operators.hybrid import deferred


def deferring(model, count):
    """transformers' model, whose layers of experts defer."""
    layers = [module for name, module in model.named_modules() if name.endswith(".experts")]
    left = {}

    def wrapped(number, own):
        def forward(hidden, ids, weights):
            late = torch.zeros_like(weights, dtype=torch.bool)
            if number + 1 < len(layers):
                for row, values in enumerate(weights.tolist()):
                    ranked = sorted(range(len(values)), key=lambda slot: (-values[slot], slot))
                    late[row, ranked[len(values) - count :]] = True
            result = own(hidden, ids, weights * ~late) + left.pop(number - 1, 0)
            left[number] = own(hidden, ids, weights * late)
            return result

        return forward

    for number, layer in enumerate(layers):
        layer.forward = wrapped(number, layer.forward)
    return model


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    (save_tiny if request.param in TINY else save)(request.param, folder, torch.float32)
    tokens = torch.randint(3, 128, (30,), generator=torch.Generator().manual_seed(5)).tolist()
    with torch.no_grad():
        plain, late = from_folder(folder), deferring(from_folder(folder), 1)
        return folder, tokens, *(model(torch.tensor([tokens])).logits[0] for model in (plain, late))


@pytest.mark.parametrize(("experts", "threshold"), [(0, None), (2, 16), (99, None)], ids=["none", "some", "all"])
def test_against_the_definition(case, experts, threshold):
    """Prompts in pieces, streamed or not, and single tokens."""
    folder, tokens, plain, expected = case
    runner, model = runner_of(folder, experts, threshold, deferred=1)
    check(Driver(runner).cut(0, tokens, [8, 1, 1, 17, 1, 2]), expected)
    several = sum(name.endswith(".experts") for name, _ in model.named_modules()) > 1
    changed = (plain - expected).abs().max() / plain.abs().max() > 1e-3
    assert changed == several  # else this would pass without deferring anything


@pytest.mark.parametrize("words", [True, False], ids=["words", "functions"])
def test_in_graphs(tmp_path, words):
    save_tiny("qwen3_moe", tmp_path, torch.float32)
    plain, _ = runner_of(tmp_path, 2, deferred=1)
    runner, device = recording_runner(tmp_path, words, deferred=1)
    check(decoded(runner, 2), decoded(plain, 2))
    assert device.replays == 3


def test_which_are_deferred():
    weights = torch.tensor([[0.1, 0.4, 0.1, 0.4], [0.25, 0.25, 0.25, 0.25]])
    assert deferred(weights, 1).tolist() == [[False, False, True, False], [False, False, False, True]]
    assert deferred(weights, 2).tolist() == [[True, False, True, False], [False, False, True, True]]
    assert deferred(weights, 9).sum(-1).tolist() == [3, 3]  # one is left


def test_what_a_broken_step_left_is_not_added_to_the_next(tmp_path, monkeypatch):
    save_tiny("qwen3_moe", tmp_path, torch.float32)
    runner, model = runner_of(tmp_path, 2, deferred=1)
    driver = Driver(runner)
    expected = driver.step({0: [5, 6, 7]})

    def broken(*args, **more):
        raise RuntimeError("broken")

    monkeypatch.setattr(model.base_model.layers[1], "forward", broken)
    with pytest.raises(RuntimeError, match="broken"):
        driver.step({1: [9, 8]})
    monkeypatch.undo()
    check(driver.step({2: [5, 6, 7]}), expected)
