"""Whole quantised folders against transformers' eager float32 over the weights that their writers meant.

With the weights decoded to float32 only the order of sums differs; in their own formats the kernels round activations.
The references' folders hold plain float32, so nothing of transformers' or kt's quantised readers is in them.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from quantized_writers import WAYS, Written
from references import from_folder, save_tiny
from safetensors.torch import load_file, save_file
from test_parity import F32_BOUND, KERNEL_BOUND, KL_BOUND, Dequantised, reference_call

from kt_core import kernels
from kt_core.engine.loader import build
from kt_core.inject import default_rules
from kt_core.models import resolve
from kt_core.operators.experts import Experts
from kt_core.operators.linear import Linear
from kt_core.weights import open_weights

# Every matrix has a whole number of groups of 32, and rows for whole words of eight. Every token has every expert: a
# rounding that turns a near tie of the router says nothing about weights.
SIZES = {
    "qwen3_moe": {"hidden_size": 128, "moe_intermediate_size": 64, "head_dim": 32, "num_experts_per_tok": 7},
    "deepseek_v3": {
        "hidden_size": 128, "moe_intermediate_size": 192, "intermediate_size": 192, "q_lora_rank": 64,
        "kv_lora_rank": 64, "v_head_dim": 32, "num_experts_per_tok": 8, "topk_group": 2,
    },
    "gpt_oss": {"intermediate_size": 96, "num_experts_per_tok": 6},
}  # fmt: skip
EXPERTS = r"\.experts\.\d+\."
LAYERS = r"_proj\.weight|_proj_with_mqa\.weight|q_[ab]_proj\.weight"
CASES = {  # the way -> which matrices it is for; the others stay as they are
    "fp8-block": LAYERS,
    "ct-int4-g32": EXPERTS,  # as Kimi-K2: everything else is in the ignore list
    "gptq-asym": EXPERTS,
    "gptq-sym": LAYERS,
    "awq": LAYERS,
    "modelopt-nvfp4": LAYERS,
    "ct-nvfp4": EXPERTS,
    "ct-fp8-rows": LAYERS,
    "mxfp8": LAYERS,
    "mxfp4": r"experts\.(gate_up|down)_proj$",
}
PAIRS = [(family, way) for family in ("qwen3_moe", "deepseek_v3") for way in CASES if way != "mxfp4"]
PAIRS.append(("gpt_oss", "mxfp4"))
OLDER = {("qwen3_moe", "fp8-block"), ("deepseek_v3", "ct-int4-g32"), ("gpt_oss", "mxfp4")}  # a way of each family
PARAMETERS = [
    pytest.param(pair, marks=pytest.mark.transformers if pair in OLDER else (), id="-".join(pair)) for pair in PAIRS
]
IGNORED = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|down)_proj"]


def quantise(family: str, way: str, folder: Path) -> tuple[Path, Path]:
    """(the quantised folder, one with the same weights in float32)"""
    plain, small = folder / "plain", folder / way
    save_tiny(family, plain, torch.float32, **SIZES[family])
    settings = {"quant_method": "mxfp4"} if way == "mxfp4" else WAYS[way].settings
    if CASES[way] == EXPERTS and "ignore" in settings:
        settings = settings | {"ignore": IGNORED}
    tensors, meant = {}, {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        written, meant[name] = {name: tensor}, tensor
        if re.search(CASES[way], name):
            written, meant[name] = (stack if way == "mxfp4" else module)(name, tensor, way)
        tensors |= {end: t.contiguous() for end, t in written.items()}
    small.mkdir()
    config = json.loads((plain / "config.json").read_text()) | {"quantization_config": settings}
    (small / "config.json").write_text(json.dumps(config))
    save_file(tensors, small / "model.safetensors")
    save_file(meant, plain / "model.safetensors", metadata={"format": "pt"})
    return small, plain


def module(name: str, weight: torch.Tensor, way: str) -> Written:
    written, meant = WAYS[way].write(weight)
    return {f"{name.removesuffix('weight')}{end}": tensor for end, tensor in written.items()}, meant


def stack(name: str, weights: torch.Tensor, way: str) -> Written:
    """gpt-oss: transformers' [E, in, out] as blocks along `in`, [E, out, in / 32, 16]."""
    pairs = [WAYS["fp4-v4"].write(weight.T.contiguous()) for weight in weights]
    blocks, scales = (torch.stack([ends[e].view(torch.uint8) for ends, _ in pairs]) for e in ("weight", "scale"))
    meant = torch.stack([values.T for _, values in pairs]).contiguous()
    return {f"{name}_blocks": blocks.reshape(*scales.shape, 16), f"{name}_scales": scales}, meant


@pytest.fixture(scope="module", params=PARAMETERS)
def case(request, tmp_path_factory):
    """(weights, prompt, the reference's logits)"""
    small, plain = quantise(*request.param, tmp_path_factory.mktemp("quantised"))
    prompt = torch.randint(0, 301, (1, 19), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        logits = from_folder(plain)(prompt).logits[0]
    return open_weights(resolve(str(small))), prompt, logits


@pytest.mark.transformers
@torch.no_grad()
def test_gpt_oss_through_its_own_experts(tmp_path):
    """The rules leave the experts to transformers, which has them transposed and decoded."""
    small, plain = quantise("gpt_oss", "mxfp4", tmp_path)
    rules = tmp_path / "rules.yaml"
    rules.write_text("- match: {name: '\\.experts$'}\n  replace: {class: default}\n" + default_rules().read_text())
    prompt = torch.randint(0, 301, (1, 19), generator=torch.Generator().manual_seed(5))
    logits = from_folder(plain)(prompt).logits[0]
    ours = build(open_weights(resolve(str(small))), lambda *_: None, rules)(prompt).logits[0]
    difference = (ours - logits).abs().max() / logits.abs().max()
    assert difference < F32_BOUND, f"{difference:.2e}"


@torch.no_grad()
def test_decoded_weights_give_the_same_logits(case):
    weights, prompt, logits = case
    ours = build(Dequantised(weights), lambda *_: None)(prompt).logits[0]
    difference = (ours - logits).abs().max() / logits.abs().max()
    assert difference < F32_BOUND, f"{difference:.2e}"


@pytest.mark.parametrize("count", [19, 2], ids=["prefill", "direct"])
@torch.no_grad()
def test_logits_in_their_own_formats(case, count):
    """Kernel calls against a float64 model of their rounding, whole models by the bounds that GGUF formats have."""
    weights, prompt, logits = case
    model, calls = build(weights, lambda *_: None), []
    operators = [module for module in model.modules() if isinstance(module, Linear | Experts)]
    for module in operators:
        module.register_forward_hook(lambda *call: calls.append(call))
    ours = model(prompt[:, :count]).logits[0]
    assert len(calls) == len(operators)
    for module, inputs, output in calls:
        expected = reference_call(module, inputs)
        got = output.double().numpy().reshape(expected.shape)
        assert np.abs(got - expected).max() / np.abs(expected).max() < KERNEL_BOUND, module.key
    p, q = logits[:count].double().log_softmax(-1), ours.double().log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1)
    bound = KL_BOUND["int8"]
    if policies(weights) == {"bf16"}:
        bound = 2 * KL_BOUND["bf16"]  # many rows: FP8 weights times scales are rounded like activations, BF16's are not
    assert kl.mean() < bound and kl.max() < 10 * bound, f"KL mean {kl.mean():.2e} max {kl.max():.2e}"


def policies(weights):
    """How the kernels round activations for this checkpoint's formats."""
    matrices = [weights.matrix(name) for name in weights.names() if re.search(LAYERS, name)]
    matrices.append(weights.expert("model.layers.1.mlp.experts", 0, "up"))
    return {kernels.POLICY[matrix.format] for matrix in matrices}
