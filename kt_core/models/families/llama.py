"""Llama, Mistral and SmolLM (dense), and Mixtral (the same architecture name with experts)."""

from typing import Any

from kt_core.formats.gguf import GGUFHeader
from kt_core.models.families import _shared

INTERLEAVED = True


def config(header: GGUFHeader) -> dict[str, Any]:
    """LlamaConfig, or MixtralConfig when the file has experts."""
    if not _shared.Keys(header).integer("expert_count", 0, low=0):
        found = _shared.base_config(header, "llama", "LlamaForCausalLM")
        return found | {"attention_bias": "blk.0.attn_q.bias" in header.tensors, "mlp_bias": False}
    experts = _shared.moe_config(header)
    _shared.Keys(header).refuse(_shared.SOFTMAX_ROUTER)
    return _shared.base_config(header, "mixtral", "MixtralForCausalLM") | {
        "intermediate_size": experts["width"],
        "num_local_experts": experts["count"],
        "num_experts_per_tok": experts["used"],
        "sliding_window": None,
    }


def layer(config: dict[str, Any], index: int) -> dict[str, str]:
    """Every layer is alike."""
    names = _shared.NORMS | _shared.ATTENTION
    if config.get("attention_bias"):
        names |= _shared.QKV_BIAS | _shared.OUTPUT_BIAS
    return names | (_shared.ROUTER | _shared.EXPERTS if _shared.expert_count(config) else _shared.DENSE)


def metadata(config: dict[str, Any]) -> dict[str, Any]:
    """Of LlamaConfig or MixtralConfig."""
    experts = _shared.moe_metadata(config) if _shared.expert_count(config) else {}
    return _shared.base_metadata(config) | experts
