"""The other side of each comparison: transformers' eager float32 over the dequantised weights.

Nothing here uses kt's readers: tensors come from `gguf.quants` or transformers' own loaders.
"""

from pathlib import Path

import gguf
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

TINY = {
    "qwen3_moe": {
        "hidden_size": 96,
        "num_hidden_layers": 3,
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "mlp_only_layers": [0],
        "norm_topk_prob": True,
        "vocab_size": 301,
    },
    "deepseek_v3": {
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 48,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "first_k_dense_replace": 1,
        "n_group": 2,
        "topk_group": 1,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 24,
        "vocab_size": 301,
    },
    "gpt_oss": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 8,
        "swiglu_limit": 0.5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "vocab_size": 301,
    },
}


def save_tiny(family: str, folder: Path, dtype: torch.dtype) -> None:
    """A random checkpoint with the published per-expert names, its weights exact in `dtype`."""
    torch.manual_seed(11)
    config = AutoConfig.for_model(family, **TINY[family], initializer_range=0.15)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer) * 0.05)
        for name, parameter in model.named_parameters():
            if name.endswith(("mlp.gate.weight", "mlp.router.weight")):
                parameter *= 6  # a trained router is decided; near ties would flip by any rounding at all
            if name.endswith(("bias", "sinks")):
                parameter.copy_(torch.randn_like(parameter) * 0.2)
    model.to(dtype).save_pretrained(folder)


def from_folder(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()


def dense_from_gguf(path: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()


GLM_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
}


def demo_from_gguf(path: Path) -> PreTrainedModel:
    """Glm4MoeForCausalLM filled from the demo file with the gguf package's reader and decoder."""
    stored = {t.name: t for t in gguf.GGUFReader(path).tensors}

    def tensor(name: str) -> torch.Tensor:
        return torch.from_numpy(gguf.quants.dequantize(stored[name].data, stored[name].tensor_type).copy()).float()

    config = AutoConfig.for_model(
        "glm4_moe",
        vocab_size=49152,
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        intermediate_size=1536,
        moe_intermediate_size=128,
        n_routed_experts=16,
        num_experts_per_tok=8,
        n_shared_experts=4,
        routed_scaling_factor=8.0,
        norm_topk_prob=True,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        attention_bias=False,
        use_qk_norm=False,
        rms_norm_eps=1e-5,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0, "partial_rotary_factor": 1.0},
        tie_word_embeddings=True,
    )
    config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    state = {
        "model.embed_tokens.weight": tensor("token_embd.weight"),
        "model.norm.weight": tensor("output_norm.weight"),
    }
    state["lm_head.weight"] = (
        tensor("output.weight") if "output.weight" in stored else state["model.embed_tokens.weight"]
    )
    for layer in range(30):
        for ours, theirs in GLM_LAYER.items():
            if f"blk.{layer}.{theirs}" in stored:
                state[f"model.layers.{layer}.{ours}"] = tensor(f"blk.{layer}.{theirs}")
        if layer:
            gate, up = (tensor(f"blk.{layer}.ffn_{part}_exps.weight") for part in ("gate", "up"))
            state[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = torch.cat((gate, up), dim=1)
    model.load_state_dict(state, strict=True)
    return model
