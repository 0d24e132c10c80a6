"""GLM-4.5 and its kin: dense first layers, then a sigmoid router with a correction bias and shared experts."""

from typing import Any

from kt_core.errors import Unsupported
from kt_core.formats.gguf import GGUFHeader
from kt_core.formats.problems import shown
from kt_core.models.families import _shared

INTERLEAVED = False
_SIGMOID = 2  # llama.cpp's number for the gating function


def config(header: GGUFHeader) -> dict[str, Any]:
    """Glm4MoeConfig. The converter counts next-token-prediction blocks as blocks; transformers does not."""
    keys = _shared.Keys(header)
    experts = _shared.moe_config(header)
    gating = keys.integer("expert_gating_func", _SIGMOID, low=0)
    if gating not in (0, _SIGMOID):
        raise Unsupported("formats.gating", path=shown(header.path), found=gating)
    found = _shared.base_config(header, "glm4_moe", "Glm4MoeForCausalLM")
    found["rope_parameters"].setdefault("partial_rotary_factor", 1.0)  # the class's own default is 0.5
    return found | {
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in header.tensors,
        "partial_rotary_factor": found["rope_parameters"]["partial_rotary_factor"],
        "n_routed_experts": experts["count"],
        "num_experts_per_tok": experts["used"],
        "moe_intermediate_size": experts["width"],
        "n_shared_experts": keys.integer("expert_shared_count", 0, low=0),
        "first_k_dense_replace": keys.integer("leading_dense_block_count", 0, low=0),
        "routed_scaling_factor": keys.number("expert_weights_scale", 1.0),
        "norm_topk_prob": keys.boolean("expert_weights_norm"),
        "n_group": keys.integer("expert_group_count", 1),
        "topk_group": keys.integer("expert_group_used_count", 1),
        "num_nextn_predict_layers": keys.integer("nextn_predict_layers", 0, low=0),
    }


def layer(config: dict[str, Any], index: int) -> dict[str, str]:
    """The norm before the feed-forward block is called post_attention_norm in this architecture."""
    names = {
        "input_layernorm.weight": "attn_norm.weight",
        "post_attention_layernorm.weight": "post_attention_norm.weight",
    }
    names |= _shared.ATTENTION
    if config["attention_bias"]:
        names |= _shared.QKV_BIAS
    if config["use_qk_norm"]:
        names |= _shared.QK_NORM
    if index < config["first_k_dense_replace"]:
        return names | _shared.DENSE
    names |= _shared.ROUTER | _shared.EXPERTS | {"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"}
    return names | (_shared.SHARED if config["n_shared_experts"] else {})


def metadata(config: dict[str, Any]) -> dict[str, Any]:
    """Without the layers that predict further tokens, which are left out of the file."""
    return (
        _shared.base_metadata(config)
        | _shared.moe_metadata(config)
        | {
            "expert_shared_count": config["n_shared_experts"],
            "expert_gating_func": _SIGMOID,
            "expert_weights_scale": float(config["routed_scaling_factor"]),
            "expert_weights_norm": bool(config["norm_topk_prob"]),
            "expert_group_count": config["n_group"],
            "expert_group_used_count": config["topk_group"],
            "leading_dense_block_count": config["first_k_dense_replace"],
        }
    )
