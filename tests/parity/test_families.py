"""Every family of transformers runs, with kt's kernels where they fit and its own modules where they do not.

Bounds as in test_parity.py: float32 weights differ by the order of sums, bfloat16 ones by the rounding of activations.
"""

import inspect

import pytest
import torch
from driving import Driver
from families import FAMILIES, save
from references import from_folder
from transformers.cache_utils import DynamicCache, DynamicLayer

from kt_core.engine.loader import build
from kt_core.engine.runners import runner_for
from kt_core.engine.runners.own import OwnCacheRunner
from kt_core.models import read_spec, resolve
from kt_core.operators.base import Operator
from kt_core.weights import open_weights

F32_BOUND = 1e-5  # max |difference| / max |logit|
KL_BOUND = 3e-4  # mean over positions; no position above ten times this


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


# With an older transformers its modules differ, and not how kernels round: float32 weights show both sides.
DTYPES = [pytest.param(torch.float32, marks=pytest.mark.transformers), torch.bfloat16]


@pytest.fixture(scope="module", params=DTYPES, ids=["F32", "BF16"])
def case(request, family, tmp_path_factory):
    """(dtype, the model, what it should answer, the prompt, what the plan knows of it)."""
    folder = tmp_path_factory.mktemp(family)
    save(family, folder, request.param)
    prompt = torch.randint(3, 128, (1, 21), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected = from_folder(folder)(prompt).logits[0]
    files = resolve(str(folder))
    model = build(open_weights(files), lambda *_: None)
    return request.param, model, expected, prompt, read_spec(files)


def check(dtype, ours, expected):
    assert torch.isfinite(ours).all()
    if dtype == torch.float32:
        difference = (ours - expected).abs().max() / expected.abs().max()
        assert difference < F32_BOUND, f"{difference:.2e}"
        return
    p, q = expected.double().log_softmax(-1), ours.double().log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1)
    assert kl.mean() < KL_BOUND and kl.max() < 10 * KL_BOUND, f"KL mean {kl.mean():.2e} max {kl.max():.2e}"


@torch.no_grad()
def test_logits(case):
    dtype, model, expected, prompt, _ = case
    check(dtype, model(prompt).logits[0], expected)


@torch.no_grad()
def test_token_by_token(case):
    dtype, model, expected, prompt, _ = case
    tokens = prompt[0].tolist()
    for runner in (runner_for(model, dtype=torch.float32), OwnCacheRunner(model)):
        check(dtype, Driver(runner).feed(tokens[:5], *([token] for token in tokens[5:])), expected[4:])


@torch.no_grad()
def test_the_plan_knows_the_cache(family, case):
    """The tiny models' rows are multiples of what a page pads to. Where attention is called with keys that are expanded,
    pages hold those: MLA's, and JetMoE's, once for each expert of a token."""
    _, model, _, prompt, spec = case
    cache = DynamicCache(config=model.config)
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    model(prompt, use_cache=True, **{name: cache})
    before, more = cache_bytes(cache), 12
    model(prompt[:, :more], use_cache=True, **{name: cache})
    grown = (cache_bytes(cache) - before) / more
    everywhere = all(type(layer) is DynamicLayer for layer in cache.layers)  # and no window, no linear attention
    assert grown == spec.kv_bytes_per_token if everywhere else grown <= spec.kv_bytes_per_token
    runner = runner_for(model, dtype=torch.float32)
    if runner.page_bytes and not hasattr(model.config, "kv_lora_rank") and family != "jetmoe":
        assert runner.page_bytes == runner.page * spec.kv_bytes_per_token


def cache_bytes(cache):
    held = [t for layer in cache.layers for t in (getattr(layer, "keys", None), getattr(layer, "values", None))]
    return sum(t.numel() * t.element_size() for t in held if t is not None)


def test_pages_wherever_attention_is_plain(family, case):
    own = {"falcon_h1", "granitemoehybrid", "jamba", "llama4_text", "qwen3_next"}
    assert (runner_for(case[1]).page_bytes == 0) == (family in own)


def test_operators_stand_where_they_fit(family, case):
    _, model, *_ = case
    names = {type(module).__name__ for module in model.modules() if not isinstance(module, Operator)}
    expected = FAMILIES[family].kept
    assert expected <= names
    left = {name for name in names if name.endswith(("Experts", "Embedding")) or name == "Linear"}
    assert {name for name in left if "Rotary" not in name} <= expected
