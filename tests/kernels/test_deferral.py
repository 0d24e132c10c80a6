"""Experts that a layer defers: none is lost, and each token keeps its own largest weights."""

import gc

import pytest
import torch
from test_wrapper import E, K, batch, close, loaded, loop, tensors, wrapper


@pytest.mark.parametrize("way", ["forward", "submit"])
@pytest.mark.parametrize("deferred", [1, 2, K])
def test_deferral_loses_nothing(deferred, way):
    """Each token's largest weights now, the rest with the next layer, also when a dense layer lies in between."""
    plain = [loaded(index) for index in (3, 5, 6)]
    layers = []
    for index in (3, 5, 6):  # 4 is dense
        before = layers[-1] if layers else None
        layers.append(loaded(index, max_deferred_experts_per_token=deferred, previous=before))
    for seed in (7, 8):  # the next batch starts clean
        batches = [batch(20, seed=seed + 10 * i) for i in range(3)]
        now, later = [], []
        for index, (x, ids, weights) in zip((3, 5, 6), batches, strict=True):
            largest = torch.zeros_like(ids, dtype=torch.bool).scatter_(1, weights.topk(K - deferred).indices, True)
            now.append(loop(x, ids.where(largest, -1), weights, *tensors(index)))
            later.append(loop(x, ids.where(~largest, -1), weights, *tensors(index)))
        outputs = []
        for layer, (x, ids, weights) in zip(layers, batches, strict=True):
            if way == "forward":
                outputs.append(layer.forward(x, ids, weights))
            else:
                layer.submit_forward(x, ids, weights)
                outputs.append(layer.sync_forward(x))
        close(outputs[0], now[0], 1e-2)
        close(outputs[1], now[1] + later[0], 1e-2)
        close(outputs[2], now[2] + later[2] + later[1], 1e-2)  # nothing comes after the last layer
        total = sum(layer.forward(*inputs) for layer, inputs in zip(plain, batches, strict=True))
        # the same products, added in another order
        close(sum(outputs), total, 1e-5)


def test_a_deferred_contribution_cannot_be_forgotten():
    first = loaded(0, max_deferred_experts_per_token=2)
    x, ids, weights = batch()
    whole = first.forward(x, ids, weights)
    assert first.take_deferred() is None
    second = loaded(1, previous=first)
    part = first.forward(x, ids, weights)
    assert not torch.equal(part, whole)
    with pytest.raises(RuntimeError, match="never added"):
        first.forward(x, ids, weights)
    close(part + first.take_deferred(), whole, 1e-5)
    assert torch.equal(first.forward(x, ids, weights), part)
    with pytest.raises(ValueError, match="deferred"):
        second.forward(x[:3], ids[:3], weights[:3])
    first.forward(x, ids, weights)
    first.discard_deferred()
    assert torch.equal(first.forward(x, ids, weights), part)
    first.discard_deferred()
    del second
    gc.collect()
    assert torch.equal(first.forward(x, ids, weights), whole)
    with pytest.raises(ValueError, match="hidden_size"):
        wrapper(hidden_size=96, previous=first)


def test_a_failure_defers_nothing():
    first = loaded(0, max_deferred_experts_per_token=2)
    second = loaded(1, previous=first)
    x, ids, weights = batch()
    bad = ids.clone()
    bad[0, 0] = E
    first.submit_forward(x, bad, weights)
    with pytest.raises(ValueError, match="below"):
        first.sync_forward(x)
    first.forward(x, ids, weights)
    assert torch.isfinite(second.forward(x, ids, weights)).all()
