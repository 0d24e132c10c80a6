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
from quantized_writers import WAYS
from references import from_folder, save_tiny
from safetensors.torch import load_file, save_file
from test_parity import F32_BOUND, KERNEL_BOUND, KL_BOUND, Dequantised, reference_call
from transformers import AutoConfig, AutoModelForCausalLM

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
}  # fmt: skip
GPT_OSS = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_local_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 32,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8, "vocab_size": 301,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
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
}
IGNORED = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|down)_proj"]


def quantise(family: str, way: str, folder: Path) -> tuple[Path, Path]:
    """(the quantised folder, one with the same weights in float32)"""
    plain, small = folder / "plain", folder / way
    save_tiny(family, plain, torch.float32, **SIZES[family])
    tensors, meant = {}, {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        meant[name] = tensor
        if not re.search(CASES[way], name):
            tensors[name] = tensor
            continue
        written, meant[name] = WAYS[way].write(tensor)
        tensors |= {f"{name.removesuffix('weight')}{end}": t.contiguous() for end, t in written.items()}
    config = json.loads((plain / "config.json").read_text())
    settings = WAYS[way].settings
    if CASES[way] == EXPERTS and "ignore" in settings:
        settings = settings | {"ignore": IGNORED}
    small.mkdir()
    (small / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    save_file(tensors, small / "model.safetensors")
    save_file(meant, plain / "model.safetensors", metadata={"format": "pt"})
    return small, plain


@pytest.fixture(scope="module", params=[(family, way) for family in SIZES for way in CASES], ids="-".join)
def case(request, tmp_path_factory):
    """(weights, prompt, the reference's logits)"""
    small, plain = quantise(*request.param, tmp_path_factory.mktemp("quantised"))
    prompt = torch.randint(0, 301, (1, 19), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        logits = from_folder(plain)(prompt).logits[0]
    return open_weights(resolve(str(small))), prompt, logits


def quantise_gpt_oss(folder: Path) -> tuple[Path, Path]:
    """As `quantise`: experts alone, in stacks of blocks whose rows are the plain folder's columns."""
    plain, small = folder / "plain", folder / "mxfp4"
    config = AutoConfig.for_model("gpt_oss", **GPT_OSS, initializer_range=0.15)
    torch.manual_seed(11)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(plain)
    tensors, meant = {}, load_file(plain / "model.safetensors")
    for name, tensor in list(meant.items()):
        if not re.search(r"experts\.(gate_up|down)_proj$", name):
            tensors[name] = tensor
            continue
        written = [WAYS["fp4-v4"].write(matrix.T.contiguous()) for matrix in tensor]
        meant[name] = torch.stack([values.T for _, values in written]).contiguous()
        blocks = torch.stack([ends["weight"].view(torch.uint8) for ends, _ in written])
        tensors[f"{name}_blocks"] = blocks.reshape(*blocks.shape[:2], -1, 16)
        tensors[f"{name}_scales"] = torch.stack([ends["scale"].view(torch.uint8) for ends, _ in written])
    small.mkdir()
    settings = json.loads((plain / "config.json").read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
    (small / "config.json").write_text(json.dumps(settings))
    save_file(tensors, small / "model.safetensors")
    save_file(meant, plain / "model.safetensors", metadata={"format": "pt"})
    return small, plain


@torch.no_grad()
def test_gpt_oss_through_its_own_experts(tmp_path):
    """The rules leave the experts to transformers, which has them transposed and decoded."""
    small, plain = quantise_gpt_oss(tmp_path)
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
