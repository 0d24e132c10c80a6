"""Qwen3 mixture-of-experts; every layer has experts, routing weights are always renormalised."""

from typing import Any

from kt_core.formats.gguf import GGUFHeader
from kt_core.models.families import _shared

INTERLEAVED = False


def config(header: GGUFHeader) -> dict[str, Any]:
    """Qwen3MoeConfig."""
    experts = _shared.moe_config(header)
    _shared.Keys(header).refuse(_shared.SOFTMAX_ROUTER)
    return _shared.base_config(header, "qwen3_moe", "Qwen3MoeForCausalLM") | {
        "attention_bias": False,
        "use_sliding_window": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "num_experts": experts["count"],
        "num_experts_per_tok": experts["used"],
        "moe_intermediate_size": experts["width"],
        "norm_topk_prob": True,
    }


def layer(config: dict[str, Any], index: int) -> dict[str, str]:
    """Attention as in Qwen3, experts instead of the dense block."""
    return _shared.NORMS | _shared.ATTENTION | _shared.QK_NORM | _shared.ROUTER | _shared.EXPERTS


def metadata(config: dict[str, Any]) -> dict[str, Any]:
    """The common keys and those of experts."""
    return _shared.base_metadata(config) | _shared.moe_metadata(config)
