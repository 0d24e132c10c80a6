"""What each layer of a model is, read from its configuration under the names that the families use.

A configuration is the text part of config.json as a dictionary. Nothing here raises for odd values: they count as absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MOST = 1 << 40  # beyond any size; keeps nonsense from growing into numbers that take minutes

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "moe_num_primary_experts")
TOP_K = (
    "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts", "moe_top_k",
    "moe_num_active_primary_experts",
)  # fmt: skip
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads")
# Attention of a layer, by the words of `layer_types`; others are themselves
_KINDS = {
    "full_attention": "full", "attention": "full", "global": "full", "hybrid": "full", "sparse": "full",
    "sliding_attention": "sliding", "hybrid_sliding": "sliding", "chunked_attention": "chunked",
    "linear_attention": "linear", "mamba": "linear", "mamba2": "linear", "conv": "conv",
    "indexed_attention": "indexed", "minimax_m3_sparse": "indexed", "deepseek_sparse_attention": "indexed",
    "heavily_compressed_attention": "heavy", "compressed_sparse_attention": "compressed",
}  # fmt: skip
# What the letters of Nemotron-H's pattern and the words of its list stand for: (attention, feed-forward)
_BLOCKS = {
    "M": ("linear", "none"), "linear_attention": ("linear", "none"), "mamba": ("linear", "none"),
    "*": ("full", "none"), "full_attention": ("full", "none"), "attention": ("full", "none"),
    "E": ("none", "experts"), "moe": ("none", "experts"), "-": ("none", "dense"), "mlp": ("none", "dense"),
}  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """`attention`: "full", "sliding", "chunked", "indexed", "heavy", "compressed", "linear", "conv" or "none"; `feed`:
    "dense", "experts", "both" or "none". `config` holds this layer's settings."""

    index: int
    attention: str
    feed: str
    config: Mapping[str, Any]


def whole(config: Mapping[str, Any], *names: str, default: int = 0) -> int:
    """The first of the settings that is a whole number, or the largest of a list of them; `default` where none is."""
    for name in names:
        value = config.get(name)
        values = value if isinstance(value, list) and value else [value]
        if all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < _MOST for v in values):
            return int(max(values))
    return default


def text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of the language model inside those of a larger one."""
    for name in ("text_config", "llm_config", "language_config", "thinker_config"):
        if isinstance(config.get(name), dict):
            return text_of(config[name])
    return config


def expert_count(config: Mapping[str, Any]) -> int:
    """Routed experts of a layer that has them; 0 for a dense model, whatever its class could do."""
    if config.get("is_moe") is False or config.get("enable_moe_block") is False:
        return 0
    ffn = config.get("ffn_config")
    found = whole(config, *EXPERTS) or (whole(ffn, "moe_num_experts") if isinstance(ffn, dict) else 0)
    return 0 if found == 1 else found


def layers_of(config: Mapping[str, Any]) -> list[Layer]:
    """Every layer that the model computes, in order; next-token-prediction layers are not among them."""
    pattern = config.get("hybrid_override_pattern") or config.get("layers_block_type")
    if isinstance(pattern, str | list) and pattern and all(word in _BLOCKS for word in pattern):
        return [Layer(i, *_BLOCKS[word], config) for i, word in enumerate(pattern)]
    count = min(whole(config, *LAYERS), 10_000)
    attention, feed = _attentions(config, count), _feeds(config, count)
    return [Layer(i, attention[i], feed[i], _own(config, i)) for i in range(count)]


def _own(config: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    """The settings with those that hold for one layer alone, and its entry of lists that have one for each layer."""
    more = config.get("per_layer_config")
    own = more.get(f"{index:02}", more.get(str(index))) if isinstance(more, dict) else None
    heads = config.get("num_attention_heads_per_layer")
    if isinstance(heads, list) and index < len(heads):
        own = (own or {}) | {"num_attention_heads": heads[index]}
    return {**config, **own} if isinstance(own, dict) else config


def _attentions(config: Mapping[str, Any], count: int) -> list[str]:
    default = "indexed" if whole(config, "index_topk") and config.get("kv_lora_rank") else "full"
    kinds = _stated_attentions(config, count)
    for name, rule in _ATTENTION_RULES:
        if kinds is None and config.get(name) not in (None, 0, False):
            kinds = rule(config, count)
    if kinds is None or len(kinds) < count:
        window = whole(config, "sliding_window") and config.get("use_sliding_window", True) is not False
        kinds = ["sliding" if window and default == "full" else default] * count
    if config.get("kv_lora_rank") and default == "indexed":
        kinds = ["indexed" if kind == "full" else kind for kind in kinds]
    return kinds[:count]


def _stated_attentions(config: Mapping[str, Any], count: int) -> list[str] | None:
    """By a list with a word for each layer."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and len(kinds) >= count and all(isinstance(kind, str) for kind in kinds):
        return [_KINDS.get(str(kind), str(kind)) for kind in kinds]
    return None


def _compressed(config: Mapping[str, Any], count: int) -> list[str] | None:
    """DeepSeek-V4: 0 for a window alone, a small ratio with an indexer, a large one without."""
    ratios = config.get("compress_ratios")
    if not isinstance(ratios, list) or len(ratios) < count:
        return None
    return ["sliding" if not r else "compressed" if isinstance(r, int) and r < 32 else "heavy" for r in ratios]


def _every(config: Mapping[str, Any], name: str, count: int, others: str) -> list[str]:
    step = whole(config, name, default=1) or 1
    return ["full" if (i + 1) % step == 0 else others for i in range(count)]


def _period(config: Mapping[str, Any], count: int) -> list[str]:
    period, offset = whole(config, "attn_layer_period", default=1) or 1, whole(config, "attn_layer_offset")
    return ["full" if i % period == offset else "linear" for i in range(count)]


def _linear_layers(config: Mapping[str, Any], count: int) -> list[str] | None:
    """Kimi Linear: the numbers of its linear layers, from 1."""
    inner = config.get("linear_attn_config")
    listed = inner.get("kda_layers") if isinstance(inner, dict) else None
    return ["linear" if i + 1 in listed else "full" for i in range(count)] if isinstance(listed, list) else None


def _flags(name: str, kinds: tuple[str, str]) -> Any:
    """A list with 0 or 1 for each layer."""

    def rule(config: Mapping[str, Any], count: int) -> list[str] | None:
        flags = config.get(name)
        return [kinds[bool(flag)] for flag in flags] if isinstance(flags, list) and len(flags) >= count else None

    return rule


_ATTENTION_RULES = (
    ("compress_ratios", _compressed),
    ("full_attention_interval", lambda c, n: _every(c, "full_attention_interval", n, "linear")),
    ("layer_group_size", lambda c, n: _every(c, "layer_group_size", n, "linear")),
    ("attn_layer_period", _period),
    ("linear_attn_config", _linear_layers),
    ("attn_type_list", _flags("attn_type_list", ("linear", "full"))),
    ("sliding_window_layout", _flags("sliding_window_layout", ("full", "sliding"))),
    ("no_rope_layers", _flags("no_rope_layers", ("full", "chunked"))),
    ("sliding_window_pattern", lambda c, n: _every(c, "sliding_window_pattern", n, "sliding")),
    ("global_attn_every_n_layers", lambda c, n: _every(c, "global_attn_every_n_layers", n, "sliding")),
)


def _feeds(config: Mapping[str, Any], count: int) -> list[str]:
    if not expert_count(config):
        return ["dense"] * count
    if config.get("enable_moe_block"):  # Gemma: a dense block beside the experts
        return ["both"] * count
    stated = config.get("mlp_layer_types")
    if isinstance(stated, list) and len(stated) >= count:
        return ["dense" if kind == "dense" else "experts" for kind in stated]
    chosen = [_has_experts(config, i) for i in range(count)]
    return ["experts" if one else "dense" for one in chosen]


def _has_experts(config: Mapping[str, Any], i: int) -> bool:
    """By the rules that say it without a list."""
    if i < whole(config, "first_k_dense_replace", "num_dense_layers") or i in _numbers(config, "mlp_only_layers"):
        return False
    step = whole(config, "decoder_sparse_step", "interleave_moe_layer_step", default=1) or 1
    if isinstance(config.get("moe_layers"), list):
        return i in _numbers(config, "moe_layers")
    if "expert_layer_period" in config:
        return i % (whole(config, "expert_layer_period") or 1) == whole(config, "expert_layer_offset")
    if "moe_layer_start_index" in config:
        first, last = whole(config, "moe_layer_start_index"), whole(config, "moe_layer_end_index", default=_MOST)
        step = whole(config, "moe_layer_interval", default=1) or 1
        if not first <= i <= (last or _MOST):
            return False
    frequency = config.get("moe_layer_freq")
    if isinstance(frequency, list):
        return i < len(frequency) and bool(frequency[i])
    if isinstance(frequency, int) and frequency > 1:
        return i % frequency == 0
    return (i + 1) % step == 0


def _numbers(config: Mapping[str, Any], name: str) -> list[Any]:
    value = config.get(name)
    return value if isinstance(value, list) else []
