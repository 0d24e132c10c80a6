"""Tiny random models of every family, as transformers folders and as GGUF files made by the gguf package.

Names and permutations come from llama.cpp's converter rules (`gguf.get_tensor_name_map`, `LlamaModel.permute`), not
from kt's own tables, so that a file reads back equal only when both agree.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

HIDDEN, HEADS, KV_HEADS, LAYERS, EXPERTS, USED, VOCAB = 64, 4, 2, 2, 6, 3, 96
_COMMON = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 96, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
}  # fmt: skip
_MOE = {"moe_intermediate_size": 32, "num_experts_per_tok": USED}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "head_dim": 16},
    "mixtral": {"model_type": "mixtral", "num_local_experts": EXPERTS, "num_experts_per_tok": USED, "head_dim": 16},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "qwen3moe": {"model_type": "qwen3_moe", "num_experts": EXPERTS, "norm_topk_prob": True, "head_dim": 32, **_MOE},
    "glm4moe": {
        "model_type": "glm4_moe", "n_routed_experts": EXPERTS, "n_shared_experts": 2, "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.5, "norm_topk_prob": True, "attention_bias": True, "use_qk_norm": True,
        "head_dim": 32, "partial_rotary_factor": 0.5, "n_group": 1, "topk_group": 1, **_MOE,
    },
}  # fmt: skip
ARCH = {name: "llama" if name == "mixtral" else name for name in CONFIGS}


def model(family: str, **changes: Any) -> PreTrainedModel:
    """A float32 model with random weights, norms, biases and correction bias included."""
    torch.manual_seed(3)
    config = AutoConfig.for_model(**_COMMON | CONFIGS[family] | changes)
    built = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, value in built.state_dict().items():
            scale = 0.1 if "norm" in name or "bias" in name else 0.2
            value.copy_(torch.randn_like(value) * scale + (1.0 if "norm" in name else 0.0))
    return built


def permute(weights: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's `LlamaModel.permute`: from one half after the other to alternating rows."""
    return (
        weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
        .swapaxes(1, 2)
        .reshape(weights.shape)
    )


def gguf_tensors(family: str, built: PreTrainedModel, per_expert: bool = False) -> dict[str, np.ndarray]:
    """GGUF name -> array, as the converter writes them."""
    arch = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == ARCH[family])
    table = gguf.get_tensor_name_map(arch, built.config.num_hidden_layers)

    def named(hf: str) -> str:
        hf = hf.replace("e_score_correction_bias", "e_score_correction.bias")
        found = table.get_name(hf, try_suffixes=(".weight", ".bias"))
        assert found, hf
        return found

    tensors = {}
    for hf, value in built.state_dict().items():
        array = value.numpy()
        if hf.endswith("experts.gate_up_proj"):
            gate, up = np.split(array, 2, axis=1)
            parts = {"gate_proj": gate, "up_proj": up}
        elif hf.endswith("experts.down_proj"):
            parts = {"down_proj": array}
        else:
            heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(hf.split(".")[-2])
            tensors[named(hf)] = permute(array, heads) if heads and ARCH[family] == "llama" else array
            continue
        for part, stack in parts.items():
            name = named(f"{hf.rsplit('.', 1)[0]}.{part}.weight")
            if per_expert:
                tensors |= {name.replace("_exps", f".{e}"): matrix for e, matrix in enumerate(stack)}
            else:
                tensors[name] = stack
    return tensors


def add_metadata(writer: gguf.GGUFWriter, family: str, config: Any) -> None:
    """The keys that llama.cpp's converter writes."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(int(head * config.rope_parameters.get("partial_rotary_factor", 1.0)))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if family in ("mixtral", "qwen3moe", "glm4moe"):
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(USED)
    if family in ("qwen3moe", "glm4moe"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if family == "glm4moe":
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)


def write_gguf(
    path: Path, family: str, tensors: dict[str, np.ndarray], config: Any, extra: dict[str, Any] | None = None
) -> Path:
    """A GGUF file; matrices of a type in `extra["types"]` (name -> GGMLQuantizationType) are quantised."""
    writer = gguf.GGUFWriter(str(path), ARCH[family])
    add_metadata(writer, family, config)
    types = (extra or {}).get("types", {})
    for key, value in (extra or {}).get("keys", {}).items():
        if key in writer.kv_data[0]:
            del writer.kv_data[0][key]
        getattr(writer, {int: "add_uint32", float: "add_float32", str: "add_string", bool: "add_bool"}[type(value)])(
            key, value
        )
    for name, array in tensors.items():
        if name in types:
            packed = gguf.quants.quantize(np.ascontiguousarray(array), types[name])
            writer.add_tensor(name, packed, raw_dtype=types[name])
        else:
            writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
