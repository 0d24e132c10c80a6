"""How many weights a model has, by part, from its configuration alone.

Counted are matrices and convolutions: what is a vector (norms, most biases) adds less than a thousandth and is left
out. The test compares every family with transformers' own modules.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from kt_core.models.layers import HEADS, HIDDEN, Layer, expert_count, layers_of, whole

Config = Mapping[str, Any]

# The parts, in the order in which they are shown
PARTS = ("experts", "shared", "dense", "attention", "embedding", "head", "vision", "mtp", "other")
_GATED_QUERIES = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen4_exp")  # half of the query's rows gate the output
_UNGATED = (
    "gpt2",
    "gpt_neox",
    "phi",
    "starcoder2",
    "falcon",
    "opt",
    "bloom",
    "mpt",
    "gptj",
    "codegen",
    "nemotron",
    "arcee",
)
_TIED = ("gemma", "cohere", "command")  # families whose class ties embedding and head where the file does not say


def counted(config: Config) -> dict[str, int]:
    """Weights by part, without vision and next-token prediction; parts that the model lacks are left out."""
    parts: Counter[str] = Counter()
    hidden, vocab = whole(config, *HIDDEN), whole(config, "vocab_size")
    parts["embedding"] = hidden * (vocab + (whole(config, "n_positions") if config.get("model_type") == "gpt2" else 0))
    parts["head"] = 0 if tied(config) else hidden * (whole(config, "unpadded_vocab_size") or vocab)
    for layer in layers_of(config):
        for part, count in (*attention(layer).items(), *feed(layer).items()):
            parts[part] += count
        parts["other"] += _between(layer)
    for part, count in _beside(config).items():
        parts[part] += count
    return {part: parts[part] for part in PARTS if parts[part]}


def tied(config: Config) -> bool:
    """Whether the head is the embedding."""
    stated = config.get("tie_word_embeddings")
    if isinstance(stated, bool):
        return stated
    return str(config.get("model_type", "")).startswith(_TIED)


def _beside(config: Config) -> dict[str, int]:
    """What is outside the layers: Gemma's embeddings for each layer, the end of hyper-connections."""
    width, layers = whole(config, "hidden_size_per_layer_input"), whole(config, "num_hidden_layers")
    streams, hidden = whole(config, "hc_mult"), whole(config, *HIDDEN)
    embeddings = whole(config, "vocab_size_per_layer_input") * layers * width
    return {"embedding": embeddings, "other": hidden * layers * width + streams * streams * hidden}


def _between(layer: Layer) -> int:
    """Hyper-connections, Gemma's per-layer inputs, norms with a gate of low rank."""
    config, hidden = layer.config, whole(layer.config, *HIDDEN)
    streams, width = whole(config, "hc_mult"), whole(config, "hidden_size_per_layer_input")
    norms = (2 if layer.feed == "experts" else 1) * 2 * hidden * whole(config, "gated_norm_rank")
    mixes = 2 * streams if "hc_magnitude" in config else streams * streams + 2 * streams
    return 2 * mixes * streams * hidden + 2 * hidden * width + norms


# ---- feed-forward


def feed(layer: Layer) -> dict[str, int]:
    """Weights of the feed-forward part: "dense", or "experts", "shared" and the router as "other"."""
    config, hidden = layer.config, whole(layer.config, *HIDDEN)
    found: Counter[str] = Counter()
    if layer.feed in ("dense", "both"):
        found["dense"] = matrices(config) * hidden * dense_width(config)
    if layer.feed not in ("experts", "both"):
        return dict(found)
    count = expert_count(config)
    inner = whole(config, "moe_latent_size", "moe_hidden_size") or hidden
    found["experts"] = count * expert_weights(config)
    found["shared"] = matrices(config) * hidden * shared_width(config)
    found["other"] = (count + whole(config, "zero_expert_num")) * hidden
    if inner != hidden:
        found["dense"] += 2 * inner * hidden
    if config.get("model_type") == "longcat_flash":  # two dense blocks beside the experts of each layer
        found["dense"] += 2 * 3 * hidden * whole(config, "ffn_hidden_size")
    if config.get("model_type") == "zaya":
        found["other"] = _zaya_router(config, count, hidden)
    return dict(found)


def _zaya_router(config: Config, count: int, hidden: int) -> int:
    width = whole(config, "router_hidden_size")
    return hidden * width + 2 * width * width + (count + 1) * width


def matrices(config: Config) -> int:
    """Of a feed-forward block: three with a gate, two without."""
    return 2 if config.get("mlp_hidden_act") == "relu2" or config.get("model_type") in _UNGATED else 3


def expert_weights(config: Config) -> int:
    """Weights of one routed expert, its biases included where it has some."""
    hidden, width = whole(config, *HIDDEN), expert_width(config)
    inner = whole(config, "moe_latent_size", "moe_hidden_size") or hidden
    biases = 2 * width + inner if config.get("model_type") in ("gpt_oss", "openai_privacy_filter") else 0
    return matrices(config) * inner * width + biases


def expert_width(config: Config) -> int:
    ffn = config.get("ffn_config")
    if isinstance(ffn, dict):
        return whole(ffn, "ffn_hidden_size")
    return whole(config, "moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size", "intermediate_size")


def dense_width(config: Config) -> int:
    """Of the layers without experts."""
    return whole(
        config,
        "dense_intermediate_size",
        "intermediate_size_mlp",
        "prefix_dense_intermediate_size",
        "ffn_hidden_size",
        "intermediate_size",
        "n_inner",
        default=4 * whole(config, "n_embd"),
    )


def shared_width(config: Config) -> int:
    """Of all shared experts of a layer together; 0 where there are none."""
    if config.get("model_type") in ("llama4_text", "llama4"):
        return expert_width(config)
    stated = whole(
        config,
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "share_expert_dim",
        "moe_shared_expert_intermediate_size",
    )
    count = whole(config, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
    if config.get("model_type") == "hunyuan_v1_moe":
        count = count or 1
    if stated:
        return stated
    return count * (whole(config, "shared_experts_intermediate_size") or expert_width(config))


# ---- attention


def head_dim(config: Config) -> int:
    stated = whole(config, "head_dim", "kv_channels", "attention_head_dim")
    return stated or whole(config, *HIDDEN) // max(1, whole(config, *HEADS))


def kv_heads(layer: Layer) -> int:
    """Key and value heads of a layer with full or sliding attention."""
    config = layer.config
    inner = config.get("attn_config")
    if isinstance(inner, dict):
        return whole(inner, "kv_n_heads", default=1)
    if layer.attention == "sliding":
        own = whole(config, "swa_num_key_value_heads")
        twice = config.get("model_type") == "mimo_v2_flash"  # its windows have twice the heads
        return own or whole(config, "num_key_value_heads", *HEADS) * (2 if twice else 1)
    return whole(config, "num_key_value_heads", *HEADS)


def attention(layer: Layer) -> dict[str, int]:
    """Weights of the token mixer as "attention"; experts of attention (JetMoE) as "experts"."""
    config = layer.config
    if layer.attention == "none":
        return {}
    if config.get("model_type") == "jetmoe":
        return _jetmoe(layer)
    if config.get("model_type") == "deepseek_v4":
        return {"attention": _compressing(layer)}
    if layer.attention == "linear":
        return {"attention": _linear(config)}
    if layer.attention == "conv":
        hidden = whole(config, *HIDDEN)
        return {"attention": 4 * hidden * hidden + hidden * whole(config, "conv_L_cache")}
    count = _latent(layer) if config.get("kv_lora_rank") else _grouped(layer)
    if config.get("model_type") == "longcat_flash":  # two attentions a layer
        count *= 2
    return {"attention": count + _indexer(layer)}


def _grouped(layer: Layer) -> int:
    """Queries, keys, values and output of grouped heads, with what gates them."""
    config, hidden = layer.config, whole(layer.config, *HIDDEN)
    heads, width = whole(config, *HEADS), head_dim(config)
    if layer.attention == "full" and (wide := whole(config, "global_head_dim")):
        width = wide
    values = whole(config, "v_head_dim") or width
    keys = kv_heads(layer)
    family = str(config.get("model_type", "")).removesuffix("_text")
    queries = heads * width * (2 if config.get("attn_output_gate") or family in _GATED_QUERIES else 1)
    total = hidden * (queries + keys * width + keys * values) + heads * values * hidden
    if family in ("afmoe", "beam", "muse_spark"):
        total += hidden * heads * values
    if config.get("gating") is True or family == "step3p5":
        total += hidden * heads
    if family == "doge":
        total += heads * keys * width
    return total + _EXTRA.get(family, _nothing)(config)


def _nothing(config: Config) -> int:
    return 0


def _inkling(config: Config) -> int:
    """Relative positions and gates of Inkling's heads, and its short convolutions."""
    hidden, heads, width = whole(config, *HIDDEN), whole(config, *HEADS), head_dim(config)
    relative = whole(config, "d_rel")
    second = heads * width * hidden + heads * hidden if "n_layers_per_attn_res_block" in config else 0
    convolutions = (2 * hidden + 2 * whole(config, "num_key_value_heads") * width) * whole(config, "conv_kernel_size")
    return hidden * heads * relative + relative * whole(config, "rel_extent") + second + convolutions


def _zaya(config: Config) -> int:
    """Convolutions over queries and keys, one of them by groups of a head."""
    heads, keys, width = whole(config, *HEADS), whole(config, "num_key_value_heads"), head_dim(config)
    rows = (heads + keys) * width
    return rows * whole(config, "cca_time0") + rows * width * whole(config, "cca_time1")


_EXTRA: dict[str, Callable[[Config], int]] = {
    "inkling": _inkling,
    "inkling2": _inkling,
    "inkling2_loop": _inkling,
    "zaya": _zaya,
}


def _latent(layer: Layer) -> int:
    """Multi-head latent attention: low-rank queries (where they are), keys and values from a shared latent."""
    config, hidden = layer.config, whole(layer.config, *HIDDEN)
    heads, rank = whole(config, *HEADS), whole(config, "kv_lora_rank")
    plain, rotary = whole(config, "qk_nope_head_dim"), whole(config, "qk_rope_head_dim")
    if layer.attention == "indexed" and _without_positions(layer):  # Mistral Large 4 keeps the width of its queries
        plain, rotary = plain + rotary, 0
    values, query_rank = whole(config, "v_head_dim"), whole(config, "q_lora_rank")
    width = heads * (plain + rotary)
    queries = (hidden + width) * query_rank if query_rank else hidden * width
    total = queries + hidden * (rank + rotary) + rank * heads * (plain + values) + heads * values * hidden
    family = str(config.get("model_type", "")).removesuffix("_text").removesuffix("_vl")
    if family == "hy_v4":
        total += hidden * heads * values
    if family == "axk2":  # queries and a gate of the output come from twice the rank
        total += query_rank * (heads * (2 * (plain + rotary + values)) - width)
    if family in ("dots3_note", "bailing_hybrid"):
        total += hidden * heads
    return total


def _without_positions(layer: Layer) -> bool:
    flags = layer.config.get("no_rope_layers")
    return isinstance(flags, list) and layer.index < len(flags) and flags[layer.index] == 0


def _indexer(layer: Layer) -> int:
    """What chooses the tokens that sparse attention reads; layers may share another's."""
    config, hidden = layer.config, whole(layer.config, *HIDDEN)
    if not has_indexer(layer):
        return 0
    heads, width = whole(config, "index_n_heads"), whole(config, "index_head_dim")
    if whole(config, "index_topk_blocks"):  # over blocks, from the layer's own input
        return hidden * (heads + 1) * width
    pooled = width * hidden + whole(config, "index_kpool") * width if whole(config, "index_kpool") else 0
    source = whole(config, "q_lora_rank") or hidden
    return source * heads * width + hidden * (width + heads) + pooled


def has_indexer(layer: Layer) -> bool:
    """Whether the layer has an indexer of its own."""
    kinds = layer.config.get("indexer_types")
    own = not isinstance(kinds, list) or layer.index >= len(kinds) or kinds[layer.index] == "full"
    return layer.attention in ("indexed", "compressed") and own and whole(layer.config, "index_head_dim") > 0


def _compressing(layer: Layer) -> int:
    """DeepSeek-V4: one shared key and value head, output by groups, compressors of two kinds."""
    config, hidden = layer.config, whole(layer.config, *HIDDEN)
    heads, width, rank = whole(config, *HEADS), head_dim(config), whole(config, "q_lora_rank")
    out = whole(config, "o_groups") * whole(config, "o_lora_rank")
    total = hidden * rank + rank * heads * width + hidden * width + whole(config, "o_lora_rank") * heads * width
    total += hidden * out
    if layer.attention == "heavy":
        return total + 2 * hidden * width + 128 * width
    if layer.attention == "compressed":
        chosen, size = whole(config, "index_n_heads"), whole(config, "index_head_dim")
        total += 4 * hidden * width + 8 * width
        return total + 4 * hidden * size + 8 * size + rank * chosen * size + hidden * chosen
    return total


def _jetmoe(layer: Layer) -> dict[str, int]:
    config, hidden = layer.config, whole(layer.config, *HIDDEN)
    width = whole(config, "num_key_value_heads") * head_dim(config)
    count = expert_count(config)
    return {"attention": 2 * hidden * width, "experts": 2 * count * hidden * width, "other": count * hidden}


# ---- layers with a state instead of keys and values


def _linear(config: Config) -> int:
    hidden = whole(config, *HIDDEN)
    if whole(config, "linear_num_value_heads"):
        keys, values, _ = delta_sizes(config)
        rows = 2 * keys + values
        heads = whole(config, "linear_num_value_heads")
        return hidden * (rows + values + 2 * heads) + rows * whole(config, "linear_conv_kernel_dim") + values * hidden
    if kda := kda_sizes(config):
        heads, width, kernel = kda
        inner = heads * width
        full = config.get("model_type") == "bailing_hybrid"  # its gates have full rank
        gates = 2 * hidden * inner if full else 2 * (hidden * width + width * inner)
        return 4 * hidden * inner + gates + hidden * heads + 3 * inner * kernel
    if mamba := mamba_sizes(config):
        inner, heads, state, groups, kernel = mamba
        rows = inner + 2 * groups * state
        return hidden * (inner + rows + heads) + rows * kernel + inner * hidden
    if whole(config, "mamba_d_state"):
        inner, state, rank = whole(config, "mamba_expand", default=2) * hidden, whole(config, "mamba_d_state"), 0
        rank = whole(config, "mamba_dt_rank") or -(-hidden // 16)
        kernel = whole(config, "mamba_d_conv", default=4)
        return 3 * hidden * inner + inner * (2 * rank + 3 * state + kernel)
    return 5 * hidden * whole(config, *HEADS) * head_dim(config)  # lightning: q, k, v, gate, output


def delta_sizes(config: Config) -> tuple[int, int, int]:
    """Gated delta rule: (width of all keys, of all values, numbers of the state)."""
    keys, width = whole(config, "linear_num_key_heads"), whole(config, "linear_key_head_dim")
    heads, size = whole(config, "linear_num_value_heads"), whole(config, "linear_value_head_dim")
    return keys * width, heads * size, heads * width * size


def kda_sizes(config: Config) -> tuple[int, int, int] | None:
    """Kimi's delta attention: (heads, width of one, kernel)."""
    inner = config.get("linear_attn_config")
    if isinstance(inner, dict):
        return whole(inner, "num_heads"), whole(inner, "head_dim"), whole(inner, "short_conv_kernel_size", default=4)
    heads, width = whole(config, "linear_num_heads"), whole(config, "linear_head_dim")
    kernel = whole(config, "linear_conv_kernel_dim", "short_conv_kernel_size", default=4)
    return (heads, width, kernel) if heads and width else None


def mamba_sizes(config: Config) -> tuple[int, int, int, int, int] | None:
    """Mamba-2: (inner width, heads, state, groups, kernel)."""
    heads = whole(config, "mamba_n_heads", "mamba_num_heads")
    width = whole(config, "mamba_d_head", "mamba_head_dim")
    if not heads:
        return None
    inner = heads * width or whole(config, "mamba_expand", "expand", default=2) * whole(config, *HIDDEN)
    state = whole(config, "mamba_d_state", "ssm_state_size")
    groups = whole(config, "mamba_n_groups", "n_groups", default=1)
    return inner, heads, state, groups, whole(config, "mamba_d_conv", "conv_kernel", default=4)
