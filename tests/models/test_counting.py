"""Weights by part from a configuration, against transformers' own modules on the meta device, for every family it has."""

import json
import re
from collections import Counter
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModel, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kt_core.models.counting import counted

LAYERS = 8  # of each model: enough for every kind of layer that a family has
SMALL = 1e-5  # of all weights: positions and biases that some families have as matrices

# Family -> settings besides its class's own. Where the class stands for another size or leaves something out, the
# settings are a published model's.
MIXTURES: dict[str, dict[str, Any]] = {
    "afmoe": {}, "aria_text": {}, "axk1": {}, "axk2": {}, "bailing_hybrid": {}, "beam": {},
    "cohere2_moe": {"num_shared_experts": 2}, "deepseek_v2": {"first_k_dense_replace": 1}, "deepseek_v3": {},
    "deepseek_v32": {}, "deepseek_v4": {}, "doge": {}, "dots3_note_text": {}, "ernie4_5_moe": {}, "exaone_moe": {},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1},
    "flex_olmo": {}, "flint": {}, "gemma4_text": {}, "glm4_moe": {}, "glm4_moe_lite": {}, "glm4v_moe_text": {},
    "glm5_next_text": {}, "glm_moe_dsa": {}, "gpt_oss": {}, "granitemoe": {}, "granitemoe_swa": {},
    "granitemoehybrid": {"num_hidden_layers": 8, "layer_types": (["mamba"] * 3 + ["attention"]) * 2}, "granitemoeshared": {"shared_intermediate_size": 512},
    "hunyuan_v1_moe": {"num_experts": 64, "moe_topk": 8, "head_dim": 128, "intermediate_size": 3072}, "hy_v3": {}, "hy_v4": {},
    "hy_v4_vl_text": {}, "inkling2_text": {}, "inkling_text": {}, "jamba": {}, "jetmoe": {}, "kimi_linear": {},
    "kolibri1": {}, "laguna": {}, "lara_mini": {}, "lfm2_moe": {"num_hidden_layers": 8, "layer_types": (["conv"] * 3 + ["full_attention"]) * 2},
    "llama4_text": {"interleave_moe_layer_step": 2}, "longcat_flash": {"num_layers": 2}, "mellum": {}, "mimo_v2_flash": {},
    "minimax": {}, "minimax_m2": {}, "minimax_m3_vl_text": {}, "mistral4": {}, "mistral_large4_text": {}, "mixtral": {},
    "muse_spark_text": {}, "nemotron_h": {}, "olmoe": {}, "openai_privacy_filter": {}, "phimoe": {}, "qwen2_moe": {},
    "qwen3_5_moe_text": {}, "qwen3_moe": {}, "qwen3_next": {}, "qwen3_vl_moe_text": {}, "sarvam_mla": {}, "sarvam_moe": {},
    "solar_open": {}, "zaya": {},
}  # fmt: skip
DENSE: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {}, "qwen2": {}, "qwen3": {}, "qwen3_5_text": {}, "gemma2": {}, "gemma3_text": {}, "phi3": {},
    "olmo2": {}, "granite": {}, "glm4": {}, "cohere": {}, "smollm3": {}, "gpt2": {}, "starcoder2": {}, "phi": {}, "ministral3": {},
}  # fmt: skip

PATTERNS = (  # of a parameter's name -> the part that it is of; the first that is found counts
    (r"embed_tokens|embeddings|wte|wpe", "embedding"),
    (
        r"shared_expert_gate|_hc\.|hc_head|per_layer|layernorm\.mlp|message|attention_input|_convolution|attn_sconv|mlp_sconv",
        "other",
    ),
    (r"shared_expert|shared_mlp|share_expert", "shared"),
    (r"router", "other"),
    (r"experts\.|(self_attn|mlp)\.(in|out)put_linear", "experts"),
    (r"lm_head|embed_out", "head"),
    (r"\.gate\.", "other"),
    (r"attn|attention|mamba|\.conv\.|mixer\.(in_proj|out_proj|conv1d|[qkvo]_proj|A_log)", "attention"),
    (r"mlp|feed_forward|expert_proj|mixer\.(up|down)_proj", "dense"),
)
# Families that hold what no token goes through: 256 rows of zero experts; convolutions beside the layers count there
UNUSED = {
    "longcat_flash": lambda config: (
        config.num_layers * config.zero_expert_num * 2 * config.expert_ffn_hidden_size * config.hidden_size
    )
}


def reference(name: str, changes: dict[str, Any]) -> tuple[dict[str, Any], Counter[str]]:
    """The configuration as a file has it, and the weights of the class's parameters by part."""
    config = CONFIG_MAPPING[name](**changes)
    count = getattr(config, "num_hidden_layers", 0)
    if count > LAYERS and "num_layers" not in changes:
        for key, value in list(vars(config).items()):
            if isinstance(value, list) and len(value) == count:
                setattr(config, key, value[:LAYERS])
        config.num_hidden_layers = LAYERS
    with torch.device("meta"):
        try:
            model = AutoModelForCausalLM.from_config(config)
        except ValueError:  # a part of a larger model: no class of its own with a head
            model = AutoModel.from_config(config)
    parts: Counter[str] = Counter()
    for path, parameter in model.named_parameters():
        if parameter.dim() < 2:  # norms and biases: not counted
            continue
        part = next((part for pattern, part in PATTERNS if re.search(pattern, path)), "other")
        parts[part] += parameter.numel()
    parts["experts"] -= UNUSED[name](config) if name in UNUSED else 0
    return json.loads(config.to_json_string(use_diff=False)), parts


@pytest.mark.parametrize("name", [*MIXTURES, *DENSE])
def test_weights_by_part_are_those_of_the_modules(name: str) -> None:
    if name not in CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    config, wanted = reference(name, MIXTURES.get(name, DENSE.get(name, {})))
    found = Counter(counted(config))
    if not wanted["head"]:
        found.pop("head", None)
    slack = SMALL * sum(wanted.values())
    for part in wanted.keys() | found.keys():
        exact = part in ("experts", "shared", "dense", "embedding", "head")
        assert abs(found[part] - wanted[part]) <= (0 if exact else slack), f"{part}: {found[part]}, not {wanted[part]}"
    assert bool(found["experts"]) == (name in MIXTURES and name not in ("doge", "gemma4_text"))


def test_every_mixture_of_transformers_is_compared() -> None:
    """A family that a new transformers brings must be added above, or named here with the reason."""
    import inspect

    others = {
        "dbrx": "own attributes inside two parts; its class cannot be built from its own defaults",
        "nllb-moe": "encoder and decoder", "switch_transformers": "encoder and decoder", "vitpose_backbone": "vision",
        "qwen4_exp_text": "a table of 20 million n-grams beside the model; unreleased",
        "inkling2_loop_text": "layers that run several times; unreleased",
        "step3p5": "no text class of its own", "ernie4_5_vl_moe_text": "no text class of its own",
        "diffusion_gemma_text": "not autoregressive",
    }  # fmt: skip
    parts = re.compile(
        r"vision|audio|encoder|talker|omni|thinker|sam_|_ocr|transcribe|speechlm|mm_model|_asr|timestamp"
    )
    for name in CONFIG_MAPPING:
        if name in MIXTURES or name in others or parts.search(name):
            continue
        cls = CONFIG_MAPPING[name]
        if "text_config" in getattr(cls, "sub_configs", {}) or f"{name}_text" in CONFIG_MAPPING:
            continue  # its text part is in the list
        source = inspect.getsource(cls).lower()
        assert "num_experts" not in source and "routed_experts" not in source, name
