"""Sizes of a GGUF model of any architecture, by the keys that all converters write: enough to plan, not to run."""

from typing import Any

from kt_core.formats.gguf import GGUFHeader

# transformers' name -> the key after "ARCHITECTURE."
_KEYS = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "v_head_dim": "attention.value_length",
    "kv_lora_rank": "attention.kv_lora_rank",
    "q_lora_rank": "attention.q_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
    "sliding_window": "attention.sliding_window",
    "index_n_heads": "attention.indexer.head_count",
    "index_head_dim": "attention.indexer.key_length",
    "index_topk": "attention.indexer.top_k",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "first_k_dense_replace": "leading_dense_block_count",
    "num_nextn_predict_layers": "nextn_predict_layers",
    "full_attention_interval": "full_attention_interval",
}
_DELTA = {  # layers with the gated delta rule
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "linear_key_head_dim": "ssm.state_size",
    "linear_value_head_dim": "ssm.state_size",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
}


def config(header: GGUFHeader) -> dict[str, Any]:
    """A configuration in transformers' words, with `model_type` the file's architecture."""
    architecture = str(header.metadata.get("general.architecture", ""))
    keys = _KEYS | (_DELTA if f"{architecture}.full_attention_interval" in header.metadata else {})
    found = {name: header.metadata.get(f"{architecture}.{key}") for name, key in keys.items()}
    found = {name: value for name, value in found.items() if value is not None}
    if "kv_lora_rank" in found:  # then the lengths are those of the shared latent, and these those of a head
        found["v_head_dim"] = header.metadata.get(f"{architecture}.attention.value_length_mla", 128)
        rotary = found.get("qk_rope_head_dim", 64)
        whole = header.metadata.get(f"{architecture}.attention.key_length_mla", 192)
        found["qk_nope_head_dim"] = whole - rotary if isinstance(whole, int) and isinstance(rotary, int) else 128
        found.pop("head_dim", None)
    embedding = header.tensors.get("token_embd.weight")
    if embedding is not None:
        found["vocab_size"] = embedding.shape[0]
    layers, more = found.get("num_hidden_layers"), found.pop("num_nextn_predict_layers", 0)
    if isinstance(layers, int) and isinstance(more, int):
        found["num_hidden_layers"] = layers - more
        found |= {"num_nextn_predict_layers": more} if more else {}
    return found | {"model_type": architecture, "tie_word_embeddings": "output.weight" not in header.tensors}
