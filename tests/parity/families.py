"""Tiny random models of many families, as their publishers' files would hold them.

Each is listed with the settings that make it small and the classes that kt leaves to transformers.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

BASE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "shared_expert_intermediate_size": 32,
    "n_shared_experts": 1,
    "sliding_window": 8,
}
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
MLA = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "head_dim": None,
}
MAMBA = {
    "num_hidden_layers": 3,
    "layer_types": ["mamba", "attention", "mamba"],
    "mamba_n_heads": 8,
    "mamba_d_head": "auto",
    "mamba_d_state": 16,
    "shared_intermediate_size": 32,
}
HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"]}


@dataclass(frozen=True)
class Family:
    """Settings besides BASE, and the names of the classes that stay transformers' own."""

    settings: dict[str, Any] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()


FAMILIES = {
    "afmoe": Family(),
    "deepseek_v2": Family(MLA),
    "dots1": Family(),
    "ernie4_5_moe": Family({"moe_num_shared_experts": 1, "moe_k": 2}),
    "exaone_moe": Family(),
    "falcon_h1": Family({"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16}),
    "gemma3_text": Family(SLIDING, frozenset({"Gemma3TextScaledWordEmbedding"})),
    "glm4_moe": Family(),
    "gpt2": Family({"n_embd": 64, "n_layer": 2, "n_head": 4}),
    "gpt_oss": Family(SLIDING),
    "granitemoe": Family(),
    "granitemoehybrid": Family(MAMBA),
    "hunyuan_v1_moe": Family(),
    "jamba": Family(
        {
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_dt_rank": 8,
            "mamba_d_state": 16,
            "use_mamba_kernels": False,
        }
    ),
    "jetmoe": Family({"kv_channels": 16}, frozenset({"JetMoeParallelExperts"})),
    "llama": Family(),
    "llama4_text": Family({"intermediate_size_mlp": 96}, frozenset({"Llama4TextExperts"})),
    "minimax_m2": Family(),
    "minimax_m3_vl_text": Family(),
    "mixtral": Family(),
    "olmo": Family(),
    "olmoe": Family(),
    "phimoe": Family({}, frozenset({"PhimoeTopKRouter"})),
    "qwen2_moe": Family(),
    "qwen3": Family(),
    "qwen3_next": Family(HYBRID),
}


def save(name: str, folder: Path, dtype: torch.dtype) -> None:
    """A random checkpoint of the family under its published names, its weights exact in `dtype`."""
    torch.manual_seed(11)
    cls = CONFIG_MAPPING[name]
    known = set(vars(cls())) | set(cls.attribute_map)
    small = BASE | dict.fromkeys(EXPERTS, 4) | FAMILIES.get(name, Family()).settings
    config = cls(**{key: value for key, value in small.items() if key in known and value is not None})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.dim() == 2 and parameter.shape[0] == 4:
                parameter *= 20  # a trained router is decided; near ties would flip by any rounding at all
            elif parameter.dim() > 1:
                parameter *= 4  # the usual start is so small that attention does not matter
            elif path.endswith("norm.weight"):
                parameter += torch.randn_like(parameter) * 0.1
        for path, buffer in model.named_buffers():
            if path.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer) * 0.05)
    model.to(dtype).save_pretrained(folder)
