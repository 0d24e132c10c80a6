"""A model that cannot run is refused when it is loaded, and the error names the place."""

import copy

import pytest
import tinymodel
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from kt_core import kernels
from kt_core.engine import loader
from kt_core.engine.trial import try_out
from kt_core.errors import BadData, Unsupported
from kt_core.machine import probe
from kt_core.models import resolve
from kt_core.models.spec import read_spec
from kt_core.plan import make_plan


def test_a_sound_model_passes_and_keeps_no_hooks():
    model = tinymodel.model.__wrapped__()  # its own: transformers leaves hooks on one that was asked for hidden states
    try_out(model)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_family_with_a_cache_of_its_own_is_refused_at_load(tmp_path):
    """MiniMax-Text-01's linear attention takes no cache but its own: it failed at its first request."""
    sizes = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4}
    kinds = ["linear_attention", "full_attention"]
    config = AutoConfig.for_model("minimax", **sizes, **heads, layer_types=kinds, max_position_embeddings=64)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tinymodel.tokenizer().save_pretrained(tmp_path)
    files = resolve(str(tmp_path))
    plan = make_plan(probe(), files, read_spec(files), {"threads": kernels.info()["threads"]})
    with pytest.raises(Unsupported, match=r"minimax.*cache of its own"):
        loader.load(plan, lambda *_: None)


@pytest.mark.parametrize("name", ["model.layers.1.mlp.gate", "model.layers.0.input_layernorm", "lm_head"])
def test_not_finite_names_the_first_layer(name):
    model = copy.deepcopy(tinymodel.model())
    with torch.no_grad():
        model.get_submodule(name).weight[0] = torch.nan
    with pytest.raises(BadData, match=rf"first in {name}\."):
        try_out(model)


def test_a_failing_router_is_named():
    model = copy.deepcopy(tinymodel.model())
    model.model.layers[1].mlp.gate.top_k = 7  # of 6 experts
    with pytest.raises(Unsupported, match=r"failed in model\.layers\.1\.mlp\.gate\."):
        try_out(model)
