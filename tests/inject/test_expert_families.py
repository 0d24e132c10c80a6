"""Expert modules of transformers with gates, biases and layouts of their own, against their eager forward."""

import numpy as np
import pytest
import torch
from transformers import AutoConfig
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4Experts
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextExperts
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3VLExperts
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts
from transformers.models.openai_privacy_filter.modeling_openai_privacy_filter import OpenAIPrivacyFilterExperts
from transformers.models.phimoe.modeling_phimoe import PhimoeExperts

from kt_core.errors import BadData
from kt_core.operators.experts import Experts
from kt_core.weights import Matrix

pytestmark = pytest.mark.transformers

SIZES = {"hidden_size": 64, "num_local_experts": 5, "n_routed_experts": 5, "moe_intermediate_size": 48}
FAMILIES = {
    GptOssExperts: ("gpt_oss", {"swiglu_limit": 0.6, "intermediate_size": 48}),
    OpenAIPrivacyFilterExperts: ("openai_privacy_filter", {"intermediate_size": 48}),
    MiniMaxM3VLExperts: ("minimax_m3_vl_text", {"swiglu_limit": 0.6, "swiglu_alpha": 1.1, "intermediate_size": 48}),
    DeepseekV4Experts: ("deepseek_v4", {"swiglu_limit": 0.6}),
    Glm5NextTextExperts: ("glm5_next_text", {"swiglu_limit": 0.6}),
    NemotronHExperts: ("nemotron_h", {"moe_latent_size": 64}),
    PhimoeExperts: ("phimoe", {"hidden_act": "gelu_pytorch_tanh", "intermediate_size": 48}),
}


def module(kind):
    """The family's module with random parameters, large enough for its limit to act."""
    family, more = FAMILIES[kind]
    config = AutoConfig.for_model(family, **SIZES | more)
    config._experts_implementation = "eager"
    torch.manual_seed(2)
    experts = kind(config).eval()
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    return config, experts


class Stored:
    """The module's parameters as kt's weights give them: [out, in] for each expert and part."""

    def __init__(self, original):
        self.original = original
        self.taken = None

    def experts(self, key):
        return self.original.num_experts

    def forget_pages(self):
        """They lie in no file."""

    def expert(self, key, index, part):
        name = "down_proj" if part == "down" else "gate_up_proj" if self.original.has_gate else "up_proj"
        matrix = getattr(self.original, name)[index].detach()
        if self.original.is_transposed:
            matrix = matrix.T
        if name == "gate_up_proj":
            half = len(matrix) // 2
            first = part == "up"
            matrix = matrix[first * half :][:half] if self.original.is_concatenated else matrix[int(first) :: 2]
        values = matrix.contiguous().numpy()
        return Matrix("F32", *values.shape, values.view(np.uint8))

    def tensor(self, name):
        return getattr(self.original, name.rpartition(".")[2]).detach()


@pytest.mark.parametrize("kind", FAMILIES, ids=lambda kind: kind.__name__)
@torch.no_grad()
def test_matches_the_module(kind):
    config, original = module(kind)
    operator = Experts("m.experts", Stored(original), config, original)
    operator.load()
    x = torch.randn(9, original.down_proj.shape[1 if not original.is_transposed else 2])
    ids = torch.stack([torch.randperm(5)[:3] for _ in range(9)])
    weights = torch.rand(9, 3)
    expected = original(x, ids, weights)
    # float32 sums in another order, as in tests/parity
    assert (operator(x, ids, weights) - expected).abs().max() < 1e-5 * expected.abs().max()


def test_a_bias_of_another_shape():
    config, original = module(GptOssExperts)
    original.down_proj_bias = torch.nn.Parameter(torch.zeros(5, 63))
    with pytest.raises(BadData, match="down_proj_bias"):
        Experts("m.experts", Stored(original), config, original).load()


def test_the_limit_acts():
    """Without that the comparison would prove nothing about it."""
    _, original = module(DeepseekV4Experts)
    x, ids, weights = torch.randn(9, 64), torch.zeros(9, 1, dtype=torch.int64), torch.ones(9, 1)
    with torch.no_grad():
        clamped = original(x, ids, weights)
        original.limit = 1e9
        assert (original(x, ids, weights) - clamped).abs().max() > 0.1 * clamped.abs().max()
