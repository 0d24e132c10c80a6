"""Norm, rotary embedding and elementwise operations against float64 and transformers' modules, on every tier."""

import cases
import pytest
import torch
from transformers import Qwen3MoeConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.qwen3_moe.modeling_qwen3_moe import (
    Qwen3MoeRMSNorm,
    Qwen3MoeRotaryEmbedding,
    apply_rotary_pos_emb,
)

from kt_core.kernels import norm, rope, set_threads

TIERS = cases.layer_tiers()
F32, BF16 = torch.float32, torch.bfloat16
SIZES = [1, 15, 16, 64, 97, 128, 515, 2048]
# a float32 rounding of each of a few operations, of numbers as large as the result
CLOSE = 8 * 2**-24


@pytest.fixture(autouse=True)
def _threads():
    yield
    set_threads(2)


def with_threads(call):
    """The result, which must not depend on the number of threads."""
    results = []
    for threads in (1, 2, 3):
        set_threads(threads)
        results.append(call())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    return results[0]


def normed(x, weight, epsilon, offset):
    x = x.double()
    y = x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt()
    return y if weight is None else y * (weight.double() + offset)


def data(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tier", TIERS)
def test_norm(tier, size):
    weight = data(size, seed=1)
    for tokens in (0, 1, 37):
        x = data(tokens, size)
        for w, offset in ((weight, 0.0), (weight, 1.0), (None, 0.0)):
            y = with_threads(lambda x=x, w=w, o=offset: norm.rms_norm(x, w, 1e-6, o, tier=tier))
            expected = normed(x, w, 1e-6, offset)
            # the sum of squares rounds with its length, and half of that reaches the root
            assert ((y - expected).abs() <= (CLOSE + size**0.5 * 2**-24) * expected.abs() + 1e-7).all()


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("tier", TIERS)
def test_norm_of_a_sum_updates_the_residual(tier, dtype):
    x, before, weight = data(21, 130).to(dtype), data(21, 130, seed=2).to(dtype), data(130, seed=1)
    residual = before.clone()
    y = norm.rms_norm(x, weight, 1e-5, residual=residual, tier=tier)
    total = x.float() + before.float()
    assert torch.equal(residual, total.to(dtype))
    # the sum is normed before it is rounded
    assert torch.equal(y, norm.rms_norm(total, weight, 1e-5, tier=tier).to(dtype))


def test_norm_of_heads_in_a_wider_row():
    rows = data(11, 5 * 32)
    part = rows[:, 32:128].unflatten(1, (3, 32))
    y = norm.rms_norm(part, data(32, seed=1), 1e-6)
    assert torch.equal(y, norm.rms_norm(part.reshape(33, 32), data(32, seed=1), 1e-6).view(11, 3, 32))


def test_norms_of_transformers():
    x = data(9, 256)
    plain, shifted = Qwen3MoeRMSNorm(256, 1e-6), Gemma3RMSNorm(256, 1e-6)
    for module, offset in ((plain, 0.0), (shifted, 1.0)):
        torch.nn.init.normal_(module.weight)
        with torch.no_grad():
            expected = module(x)
        torch.testing.assert_close(norm.rms_norm(x, module.weight, 1e-6, offset), expected, rtol=3e-6, atol=1e-6)


def turned(x, cosine, sine, interleaved, first):
    x = x.double().clone()
    pairs = cosine.shape[1]
    a, b = (
        (slice(first, first + 2 * pairs, 2), slice(first + 1, first + 2 * pairs, 2))
        if interleaved
        else (slice(first, first + pairs), slice(first + pairs, first + 2 * pairs))
    )
    left, right = x[..., a].clone(), x[..., b].clone()
    c, s = cosine.double()[:, None], sine.double()[:, None]
    x[..., a], x[..., b] = left * c - right * s, right * c + left * s
    return x


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("size, pairs, first", [(64, 32, 0), (128, 64, 0), (80, 20, 0), (192, 32, 128), (10, 3, 1)])
@pytest.mark.parametrize("tier", TIERS)
def test_rotate(tier, size, pairs, first, interleaved, dtype):
    tables = rope.tables(10000.0 ** -(torch.arange(pairs) / pairs), 300)
    positions = torch.randint(0, 300, (23,))
    row = data(23, 4 * size + 5).to(dtype)
    expected = turned(row[:, : 4 * size].unflatten(1, (4, size)), *(t[positions] for t in tables), interleaved, first)

    def rotated():
        wide = row.clone()
        rope.rotate(wide[:, : 4 * size].unflatten(1, (4, size)), positions, tables, interleaved, first, tier)
        return wide

    got = with_threads(rotated)
    assert torch.equal(got[:, 4 * size :], row[:, 4 * size :])
    bound = 20 * (CLOSE if dtype == F32 else 2**-8)  # of values below 20
    assert ((got[:, : 4 * size].unflatten(1, (4, size)) - expected).abs() <= bound).all()


ROPES = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "longrope": {
        "short_factor": [1.0] * 16,
        "long_factor": [2.0] * 16,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


@pytest.mark.parametrize("kind", ROPES)
def test_rotary_embedding_of_transformers(kind):
    config = Qwen3MoeConfig(
        head_dim=32,
        max_position_embeddings=256,
        rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **ROPES[kind]},
    )
    module = Qwen3MoeRotaryEmbedding(config)
    q, positions = data(1, 100, 3, 32), torch.arange(100)
    cosine, sine = module(q, positions[None])
    q_expected, _ = apply_rotary_pos_emb(q, q, cosine, sine, unsqueeze_dim=2)
    tables = rope.tables(module.inv_freq, 100, module.attention_scaling)
    rope.rotate(q[0], positions, tables)
    torch.testing.assert_close(q, q_expected, rtol=1e-6, atol=3e-6)


def test_interleaved_rotation_gives_deepseeks_scores():
    """transformers sorts the pairs into halves; ours stay where they are. Scores are those of the same pairs."""
    q, k = data(1, 2, 40, 32), data(1, 1, 40, 32, seed=1)
    cosine, sine = rope.tables(10000.0 ** -(torch.arange(16) / 16), 40)
    full = (torch.cat([cosine, cosine], -1)[None], torch.cat([sine, sine], -1)[None])
    a, b = apply_rotary_pos_emb_interleave(q, k, *full)
    ours = [x[0].transpose(0, 1).contiguous() for x in (q, k)]
    for x in ours:
        rope.rotate(x, torch.arange(40), (cosine, sine), interleaved=True)
    got = torch.einsum("thd,lkd->htl", *ours)
    expected = torch.einsum("htd,ld->htl", a[0], b[0, 0])
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-3)


COMBINATIONS = {
    "add": lambda a, b: a + b,
    "multiply": lambda a, b: a * b,
    "sigmoid_gate": lambda a, b: a * torch.sigmoid(b),
    "silu_gate": lambda a, b: torch.nn.functional.silu(a) * b,
}


@pytest.mark.parametrize("kind", norm.COMBINATIONS)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("tier", TIERS)
def test_combine(tier, dtype, kind):
    for tokens, size in ((0, 8), (1, 1), (3, 129), (40, 512)):
        both = data(tokens, 2 * size).to(dtype)
        a, b = both[:, :size], both[:, size:]
        got = with_threads(lambda a=a, b=b: norm.combine(kind, a, b, tier))
        expected = COMBINATIONS[kind](a.double(), b.double())
        # a sum cancels, so its bound is of its parts
        bound = (CLOSE if dtype == F32 else 2**-8) * ((a.abs() + b.abs()).double() + expected.abs())
        assert ((got - expected).abs() <= bound).all()


def test_wrong_arguments():
    x = data(4, 8)
    for call in (
        lambda: norm.rms_norm(x, torch.ones(7), 1e-6),
        lambda: norm.rms_norm(x.double(), None, 1e-6),
        lambda: norm.rms_norm(x, None, 1e-6, residual=torch.ones(4, 9)),
        lambda: norm.rms_norm(x, None, 1e-6, residual=torch.ones(4, 8, dtype=BF16)),
        lambda: norm.combine("divide", x, x),
        lambda: norm.combine("add", x, x[:3]),
        lambda: norm.combine("add", x, x.to(BF16)),
        lambda: rope.rotate(x.view(4, 2, 4), torch.arange(4), (torch.ones(3, 2), torch.ones(3, 2))),
        lambda: rope.rotate(x.view(4, 2, 4), torch.arange(4) - 1, (torch.ones(9, 2), torch.ones(9, 2))),
        lambda: rope.rotate(x.view(4, 2, 4), torch.arange(4), (torch.ones(9, 3), torch.ones(9, 3))),
        lambda: rope.rotate(x.view(4, 2, 4).transpose(1, 2), torch.arange(4), (torch.ones(9, 1), torch.ones(9, 1))),
    ):
        with pytest.raises(ValueError):
            call()
