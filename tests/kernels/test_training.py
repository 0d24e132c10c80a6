"""Gradients through the experts against float64 autograd: shapes, formats, tiers, activations, threads, pools."""

import cases
import numpy as np
import pytest
import torch

from kt_core.kernels import ACTIVATIONS, POLICY, UNGATED, Experts, Pool, deterministic, set_threads, training
from kt_core.kernels.training import AdamW, LoraFactors, step, train
from kt_core.weights import Matrix

TIERS = cases.tiers()
# Every product takes both operands as bfloat16: each is off by at most 2^-9 of itself, the parts of a chain of three or
# four products add up, and what is left after averaging over a sum is far below. A missing term is off by far more.
TOLERANCE = 0.02
TRAINABLE = sorted(set(POLICY) - {"F32", "F16"})


def bf16(*shape, scale=1.0):
    return (torch.randn(*shape) * scale).to(torch.bfloat16).float()


class Layer:
    """Experts in `format`, inputs and low-rank factors of a seed, all of them exact in bfloat16."""

    def __init__(self, hidden, inner, experts=4, tokens=13, rank=5, format="BF16", activation="silu", seed=0, **more):
        torch.manual_seed(seed)
        self.activation, self.limit = activation, more.pop("limit", None)
        self.biased = more.pop("biased", False)
        self.kernel = Experts(experts, hidden, inner, activation, self.limit, **more)
        shapes = [(inner, hidden), (inner, hidden), (hidden, inner)]
        self.weights = []
        for e in range(experts):
            three = [cases.stored(format, *shape, seed=7 * e + i) for i, shape in enumerate(shapes)]
            biases = [bf16(shape[0]) if self.biased else None for shape in shapes]
            if activation in UNGATED:
                three[0] = biases[0] = None
            self.kernel.load(e, *three, *biases)
            self.weights.append((three, biases))
        self.x, self.dy = bf16(tokens, hidden), bf16(tokens, hidden)
        self.ids = torch.stack([torch.randperm(experts)[:2] for _ in range(tokens)])
        self.route = torch.rand(tokens, 2)
        self.factors = [
            (bf16(experts, rank, cols, scale=cols**-0.5), bf16(experts, rows, rank, scale=0.3)) for rows, cols in shapes
        ]
        if activation in UNGATED:
            self.factors[0] = None

    def leaves(self, dtype):
        plain = [self.x, self.route, *(t for pair in self.factors if pair for t in pair)]
        return [t.to(dtype, copy=True).requires_grad_() for t in plain]

    def lora(self, leaves):
        found = iter(leaves[2:])
        return tuple(None if pair is None else LoraFactors(next(found), next(found)) for pair in self.factors)

    def run(self, scale=0.7, keep=True, low_rank=True, dtype=torch.float32):
        leaves = self.leaves(torch.float32)
        if dtype != torch.float32:
            leaves[0] = self.x.to(dtype, copy=True).requires_grad_()
        y = train(self.kernel, leaves[0], self.ids, leaves[1], self.lora(leaves) if low_rank else None, scale, keep)
        y.backward(self.dy.to(dtype))
        return [y.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    def masters(self, dtype=torch.float32):
        """gate, up and down of all experts, as leaves."""
        parts = [
            [torch.from_numpy(np.array(three[p].values)) for three, _ in self.weights if three[p]] for p in range(3)
        ]
        return tuple(torch.stack(part).to(dtype).requires_grad_() if part else None for part in parts)

    def run_base(self, keep=True):
        """Gradients of input, routing weights and the weights themselves."""
        x, route, masters = self.x.clone().requires_grad_(), self.route.clone().requires_grad_(), self.masters()
        y = train(self.kernel, x, self.ids, route, keep=keep, masters=masters)
        y.backward(self.dy)
        return [y.detach(), x.grad, route.grad, *(m.grad for m in masters if m is not None)]

    def expected_base(self):
        x, route = (t.double().requires_grad_() for t in (self.x, self.route))
        masters = self.masters(torch.float64)
        y = torch.zeros(x.shape, dtype=torch.float64)
        for e in range(len(self.weights)):
            tokens, slots = torch.nonzero(self.ids == e, as_tuple=True)
            gate, up = (None if m is None else x[tokens] @ m[e].T for m in masters[:2])
            rows = hidden(self.activation, gate, up, self.limit) @ masters[2][e].T
            y = y.index_add(0, tokens, route[tokens, slots, None] * rows)
        y.backward(self.dy.double())
        return [y.detach(), x.grad, route.grad, *(m.grad for m in masters if m is not None)]

    def expected(self, scale=0.7, low_rank=True):
        leaves = self.leaves(torch.float64)
        lora = self.lora(leaves) if low_rank else (None, None, None)
        y = torch.zeros(self.x.shape, dtype=torch.float64)
        for e in range(len(self.weights)):
            tokens, slots = torch.nonzero(self.ids == e, as_tuple=True)
            rows = self._expert(e, leaves[0][tokens], lora, scale)
            y = y.index_add(0, tokens, leaves[1][tokens, slots, None] * rows)
        y.backward(self.dy.double())
        return [y.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    def _expert(self, e, x, lora, scale):
        def product(part, x):
            matrix, bias = self.weights[e][0][part], self.weights[e][1][part]
            y = x @ torch.from_numpy(matrix.values).double().T
            if lora[part]:
                y = y + scale * (x @ lora[part].a[e].T) @ lora[part].b[e].T
            return y if bias is None else y + bias.double()

        up = product(1, x)
        gate = None if self.activation in UNGATED else product(0, x)
        return product(2, hidden(self.activation, gate, up, self.limit))


def hidden(activation, gate, up, limit):
    if limit is not None:
        up = up.clamp(-limit, limit)
        gate = None if gate is None else gate.clamp(max=limit)
    if activation == "relu2":
        return up.relu() ** 2
    if activation == "silu":
        return torch.nn.functional.silu(gate) * up
    if activation == "gelu_tanh":
        return torch.nn.functional.gelu(gate, approximate="tanh") * up
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


def close(got, expected, tolerance=TOLERANCE):
    assert len(got) == len(expected)
    for number, (a, b) in enumerate(zip(got, expected, strict=True)):
        assert a.shape == b.shape
        assert torch.isfinite(a).all(), number
        error = (a.double() - b).norm() / b.norm().clamp(min=1e-30)
        assert error <= tolerance, (number, float(error))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (33, 17, 3), (64, 48, 8), (129, 70, 17), (300, 515, 33)], ids=str)
def test_odd_sizes_on_every_tier(tier, sizes):
    hidden, inner, rank = sizes
    layer = Layer(hidden, inner, rank=rank, tier=tier)
    tolerance = 0.04 if hidden == 1 else TOLERANCE  # one number is not averaged
    close(layer.run(), layer.expected(), tolerance)


@pytest.mark.parametrize("format", TRAINABLE)
def test_every_format(format):
    size = cases.columns(format, 64)
    layer = Layer(size, size, format=format, tokens=7)
    close(layer.run(), layer.expected(), 0.03)  # weights are rounded to bfloat16 as well


@pytest.mark.parametrize("tier", [t for t in TIERS if t in ("scalar", "avx2", "avx512")])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_limits_and_biases(tier, activation):
    layer = Layer(48, 40, activation=activation, limit=0.8, biased=True, tier=tier)
    close(layer.run(), layer.expected())


@pytest.mark.parametrize("rank", [1, 16, 130, 256])
def test_ranks(rank):
    layer = Layer(70, 50, rank=rank)
    close(layer.run(), layer.expected())


def test_empty_and_single_row_experts_and_ids_that_are_none():
    layer = Layer(64, 48, experts=6, tokens=9)
    layer.ids[:] = torch.tensor([1, 4])
    layer.ids[3] = torch.tensor([0, -1])
    layer.ids[5] = torch.tensor([7, 4])
    got = layer.run()
    close(got, layer.expected())
    assert (got[3][[2, 3, 5]] == 0).all()  # A of experts without rows
    layer.ids[:] = -1
    got = layer.run()
    assert all((tensor == 0).all() for tensor in got)


def test_without_low_rank_additions():
    layer = Layer(64, 48)
    close(layer.run(low_rank=False), layer.expected(low_rank=False))


def test_bfloat16_inputs():
    layer = Layer(96, 64)
    close(layer.run(dtype=torch.bfloat16), layer.expected())


@pytest.mark.parametrize("wave_bytes", [training.WAVE_BYTES, 1])
def test_same_bits_for_any_threads_pools_waves_and_with_nothing_kept(monkeypatch, wave_bytes):
    layer = Layer(80, 96, experts=3, tokens=300)
    first = layer.run()
    close(first, layer.expected())
    monkeypatch.setattr(training, "WAVE_BYTES", wave_bytes)
    results = []
    for threads in (1, 3):
        set_threads(threads)
        results += [layer.run(), layer.run(keep=False)]
    results.append(Layer(80, 96, experts=3, tokens=300, pool=Pool([{"threads": 1}, {"threads": 1}])).run())
    for other in results:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (33, 17, 2), (129, 70, 301), (300, 515, 14)], ids=str)
def test_gradients_of_the_weights_on_every_tier(tier, sizes):
    hidden, inner, tokens = sizes
    layer = Layer(hidden, inner, tokens=tokens, tier=tier)
    close(layer.run_base(), layer.expected_base(), 0.04 if hidden == 1 else TOLERANCE)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_the_weights_for_every_activation(activation):
    # In a seed of three a number lies so near its limit that rounding carries it across.
    layer = Layer(48, 40, activation=activation, limit=0.8, seed=3)
    close(layer.run_base(), layer.expected_base())


def test_gradients_of_the_weights_of_experts_with_one_row_and_with_none(monkeypatch):
    layer = Layer(64, 48, experts=6, tokens=9)
    layer.ids[:] = torch.tensor([1, 4])
    layer.ids[3] = torch.tensor([0, -1])
    first = layer.run_base()
    close(first, layer.expected_base())
    assert (first[3][[2, 3, 5]] == 0).all()
    monkeypatch.setattr(training, "WAVE_BYTES", 1)
    set_threads(3)
    assert all(torch.equal(a, b) for a, b in zip(first, layer.run_base(keep=False), strict=True))
    pools = Layer(64, 48, experts=6, tokens=9, pool=Pool([{"threads": 1}, {"threads": 1}]))
    pools.ids = layer.ids
    assert all(torch.equal(a, b) for a, b in zip(first, pools.run_base(), strict=True))


@pytest.mark.parametrize("more", [{}, {"activation": "relu2"}, {"pool": [{"threads": 1}, {"threads": 2}]}], ids=str)
def test_steps_are_those_of_adamw_and_what_is_computed_follows(more):
    pool = Pool(more["pool"]) if "pool" in more else None
    layer = Layer(70, 50, tokens=40, activation=more.get("activation", "silu"), pool=pool)
    masters = layer.masters()
    plain = [None if m is None else m.detach().clone().requires_grad_() for m in masters]
    torch_adamw = torch.optim.AdamW([p for p in plain if p is not None], lr=0.02, weight_decay=0.1)
    states = [None if m is None else (torch.zeros_like(m), torch.zeros_like(m)) for m in masters]
    for number in (1, 2, 3):
        gradients = [None if m is None else bf16(*m.shape) for m in masters]
        for p, g in zip(plain, gradients, strict=True):
            if p is not None:
                p.grad = g.clone()
        torch_adamw.step()
        step(layer.kernel, masters, AdamW(0.02, number, weight_decay=0.1), gradients, states)
    for a, b in zip(masters, plain, strict=True):
        assert a is None or torch.allclose(a, b, rtol=1e-5, atol=1e-7)
    layer.weights = [
        (tuple(None if m is None else Values(m[e].detach().bfloat16().float()) for m in masters), (None, None, None))
        for e in range(len(layer.weights))
    ]
    close(layer.run_base(), layer.expected_base())
    # weights that are set, not stepped
    for m in masters:
        if m is not None:
            m.data.mul_(-2)
    step(layer.kernel, masters)
    layer.weights = [
        (tuple(None if w is None else Values(-2 * torch.from_numpy(w.values)) for w in three), biases)
        for three, biases in layer.weights
    ]
    close(layer.run_base(), layer.expected_base())


class Values:
    def __init__(self, values):
        self.values = values.numpy()


def test_what_a_step_refuses():
    layer = Layer(64, 48)
    masters = layer.masters()
    with pytest.raises(ValueError, match="float32 masters"):
        train(layer.kernel, layer.x, layer.ids, layer.route, masters=(*masters[:2], masters[2][:, :3]))
    with pytest.raises(ValueError, match="gradients and means"):
        step(layer.kernel, masters, AdamW(0.1, 1))
    other = Layer(64, 64, format="Q8_0")
    with pytest.raises(ValueError, match="BF16"):
        step(other.kernel, other.masters())


def test_what_it_refuses():
    layer = Layer(64, 48)
    x, ids, route = layer.x, layer.ids, layer.route
    with pytest.raises(ValueError, match="x \\[T, 64\\]"):
        train(layer.kernel, x[:, :3], ids, route)
    with pytest.raises(ValueError, match="int64"):
        train(layer.kernel, x, ids.int(), route)
    bad = LoraFactors(torch.zeros(4, 2, 3), torch.zeros(4, 48, 2))
    with pytest.raises(ValueError, match="factors"):
        train(layer.kernel, x, ids, route, (bad, bad, bad))
    wide = Experts(1, 8, 8)
    raw = np.zeros((8, 32), np.uint8)
    wide.load(0, *(Matrix("F32", 8, 8, raw) for _ in range(3)))
    with pytest.raises(ValueError, match="round them to BF16"):
        train(wide, torch.zeros(1, 8), torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1))


def off(found, expected):
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("format", [f for f in TRAINABLE if POLICY[f] == "int8"][::3])
def test_few_rows_meet_weights_as_they_are_stored(format):
    """As in inference where nothing is added; with additions as the slower way has it, but for int8's rounding; not when many."""
    layer = Layer(512, 256, format=format, tokens=3)
    few = layer.x, layer.ids, layer.route
    exact = layer.expected()[0]
    with torch.no_grad():
        plain, stored = layer.kernel(*few), train(layer.kernel, *few, as_stored=True)
        assert off(stored, plain) < TOLERANCE
        lora = layer.lora(layer.leaves(torch.float32))
        found = train(layer.kernel, *few, lora, 0.7, as_stored=True)
        assert off(found, exact) < 2 * TOLERANCE
        decoded = train(layer.kernel, *few, lora, 0.7)
        assert not torch.equal(found, decoded)
        with deterministic():
            assert torch.equal(train(layer.kernel, *few, lora, 0.7, as_stored=True), decoded)
        many = (layer.x.repeat(9, 1), layer.ids[:1].expand(27, -1), layer.route.repeat(9, 1))
        assert torch.equal(train(layer.kernel, *many, lora, 0.7, as_stored=True), train(layer.kernel, *many, lora, 0.7))
