"""Routing against transformers' routers and a plain numpy model, on every tier."""

import cases
import numpy as np
import pytest
import torch
from transformers import (
    DeepseekV3Config,
    Glm4MoeConfig,
    GptOssConfig,
    MixtralConfig,
    Qwen3MoeConfig,
)
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from kt_core.kernels import set_threads
from kt_core.kernels.routing import Rule, route

TIERS = cases.layer_tiers()
HIDDEN, EXPERTS, SLOTS = 24, 64, 6


def _grouped(config, router):
    return router(
        config(
            hidden_size=HIDDEN,
            n_routed_experts=EXPERTS,
            num_experts_per_tok=SLOTS,
            n_group=8,
            topk_group=3,
            norm_topk_prob=True,
            routed_scaling_factor=2.5,
        )
    )


SIZES = {"hidden_size": HIDDEN, "num_experts_per_tok": SLOTS}
GROUPED = Rule(SLOTS, "sigmoid", groups=8, top_groups=3, normalise=True, epsilon=1e-20, scale=2.5)
FAMILIES = {
    "qwen3_moe": (
        lambda: Qwen3MoeTopKRouter(Qwen3MoeConfig(num_experts=EXPERTS, norm_topk_prob=True, **SIZES)),
        Rule(SLOTS, normalise=True),
    ),
    "qwen3_moe, as they are": (
        lambda: Qwen3MoeTopKRouter(Qwen3MoeConfig(num_experts=EXPERTS, norm_topk_prob=False, **SIZES)),
        Rule(SLOTS),
    ),
    "mixtral": (
        lambda: MixtralTopKRouter(MixtralConfig(num_local_experts=EXPERTS, **SIZES)),
        Rule(SLOTS, normalise=True),
    ),
    "gpt_oss": (
        lambda: GptOssTopKRouter(GptOssConfig(num_local_experts=EXPERTS, **SIZES)),
        Rule(SLOTS, "logit", softmax_last=True),
    ),
    "deepseek_v3": (lambda: _grouped(DeepseekV3Config, DeepseekV3TopkRouter), GROUPED),
    "glm4_moe": (lambda: _grouped(Glm4MoeConfig, Glm4MoeTopkRouter), GROUPED),
}


@pytest.fixture(autouse=True)
def _threads():
    yield
    set_threads(2)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tier", TIERS)
def test_routers_of_transformers(tier, family):
    torch.manual_seed(5)
    make, rule = FAMILIES[family]
    router = make()
    torch.nn.init.normal_(router.weight)
    bias = getattr(router, "e_score_correction_bias", None)
    if bias is not None:
        bias.normal_(std=0.3)
    with torch.no_grad():
        logits, expected_weights, expected_ids = router(torch.randn(50, HIDDEN))
    results = []
    for threads in (1, 2, 3):
        set_threads(threads)
        results.append(route(logits, rule, bias, tier))
    ids, weights = results[0]
    assert all(torch.equal(ids, other) and torch.equal(weights, w) for other, w in results[1:])
    order, expected_order = ids.argsort(-1), expected_ids.argsort(-1)
    assert torch.equal(ids.gather(1, order), expected_ids.gather(1, expected_order))
    torch.testing.assert_close(
        weights.gather(1, order), expected_weights.gather(1, expected_order), rtol=2e-6, atol=1e-7
    )


def softplus(x):
    return np.logaddexp(0, x)


SCORES = {
    "softmax": lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum(),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sqrtsoftplus": lambda x: np.sqrt(softplus(x)),
    "logit": lambda x: x,
}


def model(logits, rule, bias):
    """One token in float64, written from Rule's words."""
    scores = SCORES[rule.score](logits.astype(np.float64))
    choice = scores + (0 if bias is None else bias.astype(np.float64))
    if rule.groups > 1:
        runs = choice.reshape(rule.groups, -1)
        totals = np.sort(runs, axis=1)[:, -rule.group_best :].sum(1)
        best = np.argsort(-totals, kind="stable")[: rule.top_groups]
        outside = np.setdiff1d(np.arange(rule.groups), best)
        runs[outside] = rule.outside
        choice = runs.reshape(-1)
    ids = np.argsort(-choice, kind="stable")[: rule.slots]
    weights = scores[ids]
    if rule.softmax_last:
        weights = SCORES["softmax"](weights)
    if rule.normalise:
        weights = weights / max(weights.sum() + rule.epsilon, rule.floor)
    return ids, weights * rule.scale


RULES = [
    Rule(1),
    Rule(EXPERTS, normalise=True),
    Rule(4, "sqrtsoftplus", normalise=True, epsilon=1e-20, scale=1.5),
    Rule(4, "sigmoid", normalise=True, epsilon=1e-6),
    Rule(3, "softmax", groups=4, top_groups=2, group_best=1, outside=0.0, scale=16.0),  # DeepSeek-V2
    Rule(3, "softmax", groups=4, top_groups=2, outside=0.0, normalise=True, epsilon=1e-20),  # Mistral-4
    Rule(4, "softmax", normalise=True, floor=0.5),  # Ernie-4.5
    Rule(20, "sigmoid", groups=8, top_groups=2),  # more slots than the groups have: others fill up
]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("tier", TIERS)
def test_every_rule(tier, rule, biased):
    rng = np.random.default_rng(2)
    logits = (rng.standard_normal((40, EXPERTS)) * 4).astype(np.float32)
    logits[0] *= 20  # scores that underflow
    bias = rng.standard_normal(EXPERTS).astype(np.float32) * np.float32(0.2) if biased else None
    ids, weights = route(torch.from_numpy(logits), rule, None if bias is None else torch.from_numpy(bias), tier)
    for t in range(1, len(logits)):
        expected_ids, expected_weights = model(logits[t], rule, bias)
        assert ids[t].tolist() == expected_ids.tolist()
        np.testing.assert_allclose(weights[t].numpy(), expected_weights, rtol=3e-6, atol=1e-12)
    assert len(set(ids[0].tolist())) == rule.slots
    assert weights[0].isfinite().all()


@pytest.mark.parametrize("tier", TIERS)
def test_ties_and_what_is_not_a_number(tier):
    logits = torch.zeros(4, 16)
    logits[1, 3] = logits[1, 9] = 1
    logits[2, 0] = float("nan")
    logits[3] = float("nan")
    for rule in (Rule(4, "logit"), Rule(4, "sigmoid", groups=4, top_groups=2)):
        ids, weights = route(logits, rule, tier=tier)
        assert ids[0].tolist() == [0, 1, 2, 3]
        assert ids[1, :2].tolist() == [3, 9]
        assert 0 not in ids[2].tolist()
        assert ids[3].tolist() == [0, 1, 2, 3]
        assert weights[3].isnan().all()


def test_softplus_keeps_small_scores():
    logits = torch.linspace(-80, 80, 321)[None]
    ids, weights = route(logits, Rule(321, "sqrtsoftplus"))
    assert ids[0].tolist() == list(range(320, -1, -1))
    expected = np.sqrt(softplus(logits[0].double().numpy()))[::-1]
    np.testing.assert_allclose(weights[0].numpy(), expected, rtol=1e-6)


def test_what_does_not_fit_is_refused():
    logits = torch.zeros(2, 8)
    for rule in (Rule(9), Rule(1, groups=3, top_groups=1), Rule(1, groups=8, top_groups=2)):
        with pytest.raises(ValueError):
            route(logits, rule)
    for arguments in ({"slots": 0}, {"slots": 1, "score": "max"}, {"slots": 1, "groups": 2, "top_groups": 3}):
        with pytest.raises(ValueError):
            Rule(**arguments)
    for wrong in (logits.double(), logits[0], logits.to(torch.bfloat16)):
        with pytest.raises(ValueError):
            route(wrong, Rule(1))
    with pytest.raises(ValueError):
        route(logits, Rule(1), torch.zeros(7))
    assert route(torch.zeros(0, 8), Rule(2))[0].shape == (0, 2)
