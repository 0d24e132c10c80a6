"""Folders of `kt quant` in the forms that engines for GPUs call W4A16 and W8A16, with experts on a device and on the CPU.

The reference is transformers' eager float32 over the weights that the folder stands for, unpacked here by loops of numpy. Where
the device, the CPU here, computes everything, only the order of sums differs; the CPU's kernels round activations to int8.
"""

import json

import numpy as np
import pytest
import torch
from references import from_folder, save_tiny
from safetensors.torch import load_file, save_file
from stepping import Driver
from test_hybrid import F32_BOUND, runner_of

from kt_core.models.files import local_files
from kt_core.operators.hybrid import HybridExperts
from kt_core.quantise import make
from kt_core.quantise.job import Job, method_of, overrides_of

# Rows for whole groups of 128; every token has every expert, so that no router's near tie turns by a rounding.
SIZES = {"hidden_size": 128, "moe_intermediate_size": 128, "head_dim": 32, "num_experts_per_tok": 7}
KL_BOUND = 6e-3  # mean over positions; no position above ten times this: that of tests/parity for activations in int8
FORMS = {
    "W4A16, groups of 128": ("int4", {"group": 128}, ()),
    "W4A16, groups of 32, attention kept": ("int4", {"group": 32}, ("self_attn=keep",)),
    "W4A16, zero points": ("int4", {"group": 64, "zero_point": True}, ()),
    "W8A16": ("int8", {}, ()),
    "W4A16 of experts": ("moe_int4", {}, ()),
}


def unpacked(tensors: dict[str, torch.Tensor], module: str) -> torch.Tensor:
    """float32 [rows, columns]: words of 4 or 8 bits, the first number in the lowest ones, less 8 or 128 or a zero point."""
    rows, cols = tensors[f"{module}.weight_shape"].tolist()
    words = tensors[f"{module}.weight_packed"].numpy().view(np.uint32)
    scales = tensors[f"{module}.weight_scale"].float().numpy()
    bits = 32 * words.shape[1] // cols
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    numbers = (words[:, :, None] >> shifts & (2**bits - 1)).reshape(rows, cols).astype(np.float32)
    zeros = np.full(scales.shape, 2 ** (bits - 1), np.float32)
    if f"{module}.weight_zero_point" in tensors:
        packed = tensors[f"{module}.weight_zero_point"].numpy().view(np.uint32)
        zeros = (packed[:, None, :] >> shifts[:, None] & 15).reshape(-1, packed.shape[1])[:rows].astype(np.float32)
    size = cols // scales.shape[1]
    return torch.from_numpy((numbers - zeros.repeat(size, 1)) * scales.repeat(size, 1))


@pytest.fixture(scope="module", params=FORMS)
def case(request, tmp_path_factory):
    """(folder, tokens, what transformers answers with the weights that it stands for)"""
    method, options, rules = FORMS[request.param]
    root = tmp_path_factory.mktemp("forms")
    save_tiny("qwen3_moe", root / "plain", torch.bfloat16, **SIZES)
    chosen, only = method_of(method)
    job = Job(
        local_files(root / "plain"), chosen, str(root / "out"), "out", only=only, **options,
        overrides=overrides_of(rules, chosen),
    )  # fmt: skip
    out = make.run(make.prepare(job), lambda *_: None)
    settings = json.loads((out / "config.json").read_text())["quantization_config"]
    assert settings["quant_method"] == "compressed-tensors" and settings["format"] == "pack-quantized"
    stored = load_file(out / "model.safetensors")
    packed = {name.rpartition(".")[0] for name in stored if name.endswith(".weight_packed")}
    assert packed and any("self_attn" in module for module in packed) == (not rules and only == "all")
    meant = {name: tensor.float() for name, tensor in stored.items() if name.rpartition(".")[0] not in packed}
    meant |= {f"{module}.weight": unpacked(stored, module) for module in packed}
    save_file(meant, root / "plain" / "model.safetensors", {"format": "pt"})
    tokens = torch.randint(3, 128, (24,), generator=torch.Generator().manual_seed(5)).tolist()
    with torch.no_grad():
        return out, tokens, from_folder(root / "plain")(torch.tensor([tokens])).logits[0]


def test_all_on_the_device(case):
    folder, tokens, expected = case
    runner, model = runner_of(folder, 99)
    layers = [module for module in model.modules() if isinstance(module, HybridExperts)]
    assert layers and all(len(layer.on_device) == layer.num_experts for layer in layers)
    found = Driver(runner).cut(0, tokens, [16, 1, 5, 1, 1])
    assert float((found - expected).abs().max() / expected.abs().max()) < F32_BOUND


@pytest.mark.parametrize(
    ("experts", "threshold"), [(0, None), (2, None), (2, 12)], ids=["CPU", "shared out", "streamed"]
)
def test_experts_on_the_cpu(case, experts, threshold):
    folder, tokens, expected = case
    runner, _ = runner_of(folder, experts, threshold)
    found = Driver(runner).cut(0, tokens, [16, 1, 5, 1, 1])
    p, q = expected.double().log_softmax(-1), found.double().log_softmax(-1)
    divergence = (p.exp() * (p - q)).sum(-1)
    assert divergence.mean() < KL_BOUND and divergence.max() < 10 * KL_BOUND, f"{divergence.mean():.1e}"
