"""Logits of a model whose experts are shared out between a device and the CPU, against transformers' eager float32.

Where the device is the CPU, both sides compute float32 weights in float32: they differ by the order of sums. On a GPU, modules
and experts there round to bfloat16, which is bound by the KL of the distributions (tests/parity derives the numbers).
"""

import pytest
import torch
from families import save
from references import TINY, from_folder, save_tiny
from stepping import Driver

from kt_core.device import open_device
from kt_core.engine.loader import build
from kt_core.engine.placing import Placing
from kt_core.engine.runners import device_runner_for
from kt_core.engine.runners.hybrid import HybridRunner
from kt_core.kernels.placement import placed
from kt_core.models import resolve
from kt_core.operators.crossing import Crossing
from kt_core.operators.hybrid import HybridExperts
from kt_core.operators.streamed import Streamer
from kt_core.weights import open_weights

F32_BOUND = 1e-5  # max |difference| / max |logit|
KL_BOUND = 3e-4  # mean over positions; no position above ten times this
FAMILIES = ["qwen3_moe", "deepseek_v3", "mixtral", "glm4_moe", "minimax_m2", "gpt_oss"]
PROMPTS = [21, 9]  # tokens of two sequences
CHUNK = 64


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, tmp_path_factory):
    """(folder, prompts, what transformers answers)"""
    folder = tmp_path_factory.mktemp(request.param)
    (save_tiny if request.param in TINY else save)(request.param, folder, torch.float32)
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(3, 128, (n,), generator=generator).tolist() for n in PROMPTS]
    reference = from_folder(folder)
    with torch.no_grad():
        return folder, prompts, [reference(torch.tensor([prompt])).logits[0] for prompt in prompts]


def runner_of(folder, experts, threshold=None, captured=(), device=None, **more):
    device = device or open_device("cpu")
    streamer = Streamer(device, threshold) if threshold else None
    placing = Placing(device, Crossing(device), streamer, experts, **more)
    model = build(open_weights(resolve(str(folder))), lambda *_: None, placing=placing)
    return device_runner_for(model, 64, torch.float32, placing.crossing, CHUNK, tuple(captured)), model


def check(ours, expected):
    assert torch.isfinite(ours).all()
    difference = (ours - expected).abs().max() / expected.abs().max()
    assert difference < F32_BOUND, f"{difference:.2e}"


def check_rounded(ours, expected):
    p, q = expected.double().log_softmax(-1), ours.double().log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1)
    assert kl.mean() < KL_BOUND and kl.max() < 10 * KL_BOUND, f"KL mean {kl.mean():.2e} max {kl.max():.2e}"


def stepped(runner, prompts):
    """Logits of both sequences, whose prompts come in pieces beside each other, one token at a time in the end."""
    at, (a, b) = Driver(runner), prompts
    found = {0: [], 1: []}
    for parts in (
        {0: a[:8]},
        {0: a[8:9], 1: b[:6]},
        {0: a[9:19], 1: b[6:7]},
        {1: b[7:8], 0: a[19:20]},
        {0: a[20:], 1: b[8:]},
    ):
        logits = at.step(parts)
        for sequence, tokens in parts.items():
            found[sequence].append(logits[: len(tokens)])
            logits = logits[len(tokens) :]
    return [torch.cat(rows) for rows in found.values()]


@pytest.mark.parametrize("experts", [0, 2, 99], ids=["none", "some", "all"])
def test_placements(case, experts):
    folder, prompts, expected = case
    runner, model = runner_of(folder, experts)
    assert isinstance(runner, HybridRunner)
    layers = [module for module in model.modules() if isinstance(module, HybridExperts)]
    assert layers and {len(layer.on_device) for layer in layers} == {min(experts, layers[0].num_experts)}
    for found, logits in zip(stepped(runner, prompts), expected, strict=True):
        check(found, logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["F32", "BF16"])
@pytest.mark.parametrize("experts", [0, 2], ids=["none", "some"])
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "mixtral"])
def test_streamed_prompts(family, experts, dtype, tmp_path):
    """Prompts whose experts are taken apart on the device, beside tokens whose are not; gpt-oss has biases."""
    (save_tiny if family in TINY else save)(family, tmp_path, dtype)
    tokens = torch.randint(3, 128, (40,), generator=torch.Generator().manual_seed(5)).tolist()
    with torch.no_grad():
        expected = from_folder(tmp_path)(torch.tensor([tokens])).logits[0]
    runner, model = runner_of(tmp_path, experts, threshold=16)
    ours = Driver(runner).cut(0, tokens, [20, 1, 16, 3])
    streamed = [module.streamed for module in model.modules() if isinstance(module, HybridExperts)]
    assert all(streamed)
    if dtype == torch.float32:
        check(ours, expected)
    else:  # tokens that the CPU's kernels compute round activations
        check_rounded(ours, expected)


def test_latent_attention_keeps_the_latent(tmp_path):
    """Where the family expands keys in a method of its own: its pages are those of one head."""
    save_tiny("deepseek_v3", tmp_path, torch.float32)
    runner, model = runner_of(tmp_path, 2)
    attention = model.base_model.layers[0].self_attn
    expanded = 3 * 64 * 4 * 4 * (32 + 24)
    assert runner.page_bytes == (3 * 64 * 4 * (32 + 16) if hasattr(attention, "expand_kv") else expanded)
    assert "expand_kv" not in vars(attention)


@pytest.mark.parametrize("strategy", ["uniform", "front-loading", "random"])
def test_every_strategy_places_as_many(strategy):
    mask = placed(strategy, 3, 8, 10)
    assert mask.sum() == 10
    expected = {"uniform": [4, 3, 3], "front-loading": [8, 2, 0]}.get(strategy)
    assert expected is None or mask.sum(1).tolist() == expected
    if strategy != "random":  # always the first of a layer
        assert all(row[: int(row.sum())].all() for row in mask)
    assert torch.equal(mask, placed(strategy, 3, 8, 10))


@pytest.mark.parametrize(("family", "ahead"), [("deepseek_v3", True), ("glm4_moe", True), ("qwen2_moe", False)])
def test_shared_experts_are_computed_while_the_cpu_computes(family, ahead, tmp_path, monkeypatch):
    """Where the block calls them after the routed ones; Qwen2's calls them before. Nothing is computed twice for long."""
    (save_tiny if family in TINY else save)(family, tmp_path, torch.float32)
    tokens = torch.randint(3, 128, (12,), generator=torch.Generator().manual_seed(5)).tolist()
    with torch.no_grad():
        expected = from_folder(tmp_path)(torch.tensor([tokens])).logits[0]
    runner, model = runner_of(tmp_path, 2)
    layers = [module for module in model.modules() if isinstance(module, HybridExperts)]
    told, answer = [], Crossing.answer
    monkeypatch.setattr(Crossing, "answer", lambda *args: told.append("answer") or answer(*args))
    for layer in layers:
        inner = next(layer.ahead._module.children())
        inner.register_forward_hook(lambda *_: told.append("shared"))
    driver = Driver(runner)
    check(driver.cut(0, tokens, [8, 1, 1, 1, 1]), expected)
    assert told[-2 * len(layers) :] == ["shared", "answer"] * len(layers)
    assert all((layer.ahead._misses == 0) == ahead for layer in layers)


@pytest.mark.parametrize(("family", "bound"), [("qwen3_moe", 1e-2), ("deepseek_v3", 0.13)])
def test_fp8_pages(family, bound, tmp_path):
    """Keys and values lose 2^-4 of a number at most; what a latent loses, keys and values of all heads lose. The bounds are
    twice what these random models show, which know nothing that would outweigh it."""
    save_tiny(family, tmp_path, torch.float32)
    tokens = torch.randint(3, 128, (30,), generator=torch.Generator().manual_seed(5)).tolist()
    with torch.no_grad():
        expected = from_folder(tmp_path)(torch.tensor([tokens])).logits[0]
    found, sizes = [], []
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        _, model = runner_of(tmp_path, 2)
        crossing = next(module.crossing for module in model.modules() if isinstance(module, HybridExperts))
        runner = device_runner_for(model, 64, dtype, crossing, CHUNK, ())
        ours = Driver(runner).cut(0, tokens, [20, 1, 8, 1])
        p, q = expected.double().log_softmax(-1), ours.double().log_softmax(-1)
        found.append(float((p.exp() * (p - q)).sum(-1).mean()))
        sizes.append(runner.page_bytes)
    print(f"KL {found[0]:.1e} with bfloat16, {found[1]:.1e} with FP8")
    assert sizes[1] * 2 == sizes[0] and found[1] < bound
