"""Experts that a device computes in training: against plain autograd in float64, and shared out in every way."""

import os
from types import SimpleNamespace

import pytest
import tinyrun
import torch

from kt_core import models
from kt_core.device import open_device
from kt_core.errors import Unsupported
from kt_core.events import Events
from kt_core.kernels import training
from kt_core.train import head, lora, placing, session
from kt_core.train.shares import Gradients, Share

HIDDEN, INNER, EXPERTS, FIRST, COUNT, RANK, SCALE = 24, 16, 7, 2, 4, 3, 1.5
CPU = open_device("cpu")


def gate(module, both):
    halves = both.chunk(2, -1) if module.is_concatenated else (both[..., ::2], both[..., 1::2])
    return torch.sigmoid(1.7 * halves[0]) * halves[0] * (halves[1] + 1)


def fake(kind):
    module = SimpleNamespace(has_gate=kind != "ungated", is_concatenated=kind != "interleaved", num_experts=EXPERTS)
    module._apply_gate = lambda both: gate(module, both)
    module.act_fn = lambda up: torch.relu(up) ** 2
    return module


def random(*shape, grad=False):
    return (torch.randn(*shape, dtype=torch.float64) * 0.3).requires_grad_(grad)


def plain(module, x, ids, weights, dense, factors, biases):
    """By autograd, an expert at a time."""
    total = torch.zeros_like(x)
    for e in range(FIRST, FIRST + COUNT):
        first, down = (part[e - FIRST] for part in dense)
        if factors[2] is not None:
            gate_a, gate_b, up_a, up_b, down_a, down_b = (None if f is None else f[e] for f in factors)
            up = up_b @ up_a
            added = up if gate_a is None else torch.cat((gate_b @ gate_a, up))
            if gate_a is not None and not module.is_concatenated:
                added = torch.stack((gate_b @ gate_a, up), 1).flatten(0, 1)
            first, down = first + SCALE * added, down + SCALE * down_b @ down_a
        own = biases and [part[e - FIRST] for part in biases]
        both = x @ first.T + (own[0] if own else 0)
        inner = module._apply_gate(both) if module.has_gate else module.act_fn(both)
        out = inner @ down.T + (own[1] if own else 0)
        total = total + out * (weights * (ids == e)).sum(1)[:, None]
    return total


@pytest.mark.parametrize("kind", ["gated", "interleaved", "ungated"])
@pytest.mark.parametrize("adapted", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_gradients_are_those_of_autograd(kind, adapted, biased, monkeypatch):
    torch.manual_seed(len(kind))
    monkeypatch.setattr(CPU, "dtype", torch.float64)
    module, width = fake(kind), INNER * (1 if kind == "ungated" else 2)
    dense = random(COUNT, width, HIDDEN), random(COUNT, HIDDEN, INNER)
    biases = (random(COUNT, width), random(COUNT, HIDDEN)) if biased else None
    shapes = [(RANK, HIDDEN), (INNER, RANK), (RANK, HIDDEN), (INNER, RANK), (RANK, INNER), (HIDDEN, RANK)]
    factors = [random(EXPERTS, *shape, grad=True) if adapted else None for shape in shapes]
    if kind == "ungated":
        factors[:2] = None, None
    ids = torch.randint(0, EXPERTS - 2, (9, 3))  # one of these experts has no rows
    ids[0], ids[1, 0] = torch.tensor([FIRST, 0, 6]), -1
    x, weights, dy = random(9, HIDDEN, grad=True), random(9, 3, grad=True), random(9, HIDDEN)
    share = Share(module, CPU, FIRST, COUNT, lambda: dense, Gradients(CPU), biases, keep=not adapted or biased)
    leaves = [x, weights, *(f for f in factors if f is not None)]
    y = plain(module, x, ids, weights, dense, factors, biases)
    expected = torch.autograd.grad(y, leaves, dy)
    found = share(x, ids, weights, factors, SCALE)
    assert torch.allclose(found.double(), y, atol=1e-5)
    for turn in (1, 2):  # gradients add up
        share(x, ids, weights, factors, SCALE).backward(dy)
        for leaf, gradient in zip(leaves, expected, strict=True):
            assert torch.allclose(leaf.grad.double(), turn * gradient, atol=turn * 1e-5), (kind, leaf.shape)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tinyrun.base(tmp_path_factory.mktemp("shares") / "base")


def prepared(base, tmp_path, device="", count=0, **more):
    config = {"kt_num_threads": 1, "kt_num_gpu_experts": count}
    s = tinyrun.chosen(base, tmp_path / "data.json", tmp_path, kt_config=config, **more)
    model, _ = session.prepared(s, models.resolve(str(base)), Events(2), device)
    for name, parameter in lora.trainable(model).items():
        parameter.data.normal_(std=0.05, generator=torch.Generator().manual_seed(len(name)))
    return model, s


IDS = torch.arange(4, 24)[None]


def step(model):
    model.zero_grad()
    loss = head.loss(model, {"input_ids": IDS, "labels": IDS})
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in lora.trainable(model).items()}


def test_however_experts_are_shared_out_a_step_is_the_same(base, tmp_path):
    """All but the first two ways compute something on the CPU, whose kernels round to bfloat16."""
    found = []
    for resident, brought in ((6, 0), (0, 6), (2, 2), (3, 0)):
        model, _ = prepared(base, tmp_path, "cpu", resident)
        placing.share(model.train(), CPU, brought)
        model.gradient_checkpointing_enable({"use_reentrant": False})
        found += [step(model), step(model)]  # there and back, and there and back again
    for index, (loss, gradients) in enumerate(found):
        close = 1e-6 if index < 4 else 0.02
        assert abs(loss - found[0][0]) < close * found[0][0]
        for name, gradient in gradients.items():
            assert (gradient - found[0][1][name]).norm() < 2 * close * found[0][1][name].norm(), name


def test_how_many_are_brought_follows_from_measurements(base, tmp_path, monkeypatch):
    model, s = prepared(base, tmp_path, "cpu", 2)
    for here, rate, wanted in ((1e-3, 1e12, 4), (1.0, 1.0, 0), (8 * 512 * 4 / 2.5e6, 5e6, None)):
        monkeypatch.setattr(placing, "_measured", lambda *_, here=here: (here / 2, here / 2))
        monkeypatch.setattr(placing, "_link", lambda *_, rate=rate: rate)
        count = placing.balanced(model, 64, False)
        assert count == wanted if wanted is not None else 0 < count < 4
    monkeypatch.undo()
    reading, writing = os.pipe()
    placing.settle(model, s, "cpu", Events(writing))
    os.close(writing)
    with os.fdopen(reading) as lines:
        assert "2 on cpu" in lines.read()
    assert isinstance(model.get_input_embeddings(), head.HostTable)
    assert all(torch.isfinite(g).all() for g in step(model)[1].values())


def test_experts_are_kept_on_a_device_by_one_process_alone(base, tmp_path):
    s = tinyrun.chosen(base, tmp_path / "d.json", tmp_path, kt_config={"kt_num_gpu_experts": 2})
    assert placing.chosen(s, "cuda", 1) == "cuda"
    for device, processes in (("cpu", 1), ("cuda", 2)):
        with pytest.raises(Unsupported, match="kt_num_gpu_experts is 2"):
            placing.chosen(s, device, processes)


@pytest.mark.parametrize("rows", [2, 256])
def test_the_loss_by_parts_is_the_models_own(base, tmp_path, rows, monkeypatch):
    monkeypatch.setattr(head, "ROWS", rows)
    model, _ = prepared(base, tmp_path)
    labels = torch.where(torch.arange(20) % 3 > 0, IDS, -100)
    inputs = {"input_ids": IDS, "labels": labels, "attention_mask": torch.ones_like(IDS)}
    assert head.splits(model)
    loss = head.loss(model, inputs)
    loss.backward()
    found = {name: p.grad.clone() for name, p in lora.trainable(model).items()}
    model.zero_grad()
    expected = model(**inputs).loss
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert all(torch.allclose(found[n], p.grad, rtol=1e-3, atol=1e-6) for n, p in lora.trainable(model).items())
    assert head.loss(model, inputs, 4).item() == pytest.approx(expected.item() * (labels[:, 1:] >= 0).sum() / 4)
    model.config.final_logit_softcapping = 30.0
    assert not head.splits(model)


def test_layers_that_are_run_again_take_what_was_kept(base, tmp_path, monkeypatch):
    """To the same bits, and the experts' way forward is gone once; never for other inputs."""
    calls = []
    usual = training.Visit.knows
    monkeypatch.setattr(training.Visit, "knows", lambda self, given: calls.append(usual(self, given)) or calls[-1])
    model, _ = prepared(base, tmp_path)
    model.train().gradient_checkpointing_enable({"use_reentrant": False})
    kept = step(model)
    assert calls == [True, True]
    for layer in placing.layers(model):
        layer.revisited = False
    assert calls == [True, True]
    plain = step(model)
    assert kept[0] == plain[0]
    assert all(torch.equal(kept[1][name], plain[1][name]) for name in plain[1])
    visit = training.Visit(torch.ones(1), (torch.ones(2),))
    assert visit.knows((torch.ones(2),)) and not visit.knows((torch.zeros(2),))
