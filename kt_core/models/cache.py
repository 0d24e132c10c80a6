"""What a model keeps of the tokens that it has read: keys and values, latents, states; by the kind of attention."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from kt_core.models.counting import delta_sizes, has_indexer, head_dim, kda_sizes, kv_heads, mamba_sizes
from kt_core.models.layers import HEADS, HIDDEN, Layer, layers_of, whole
from kt_core.types import CachePart

_COMPRESSED, _HEAVY = 4, 128  # tokens that DeepSeek-V4's two compressors make one entry of
_BLOCK_WINDOW = 128  # tokens beside them that it keeps as they are, where the file does not say


def cache_parts(config: Mapping[str, Any]) -> tuple[CachePart, ...]:
    """The parts over all layers, layers that keep the same together."""
    found: Counter[tuple[str, float, int, int]] = Counter()
    for layer in layers_of(config):
        for part in _of(layer):
            found[part] += 1
    return tuple(CachePart(kind, layers, *rest) for (kind, *rest), layers in found.items())  # type: ignore[arg-type]


def _of(layer: Layer) -> list[tuple[str, float, int, int]]:
    """(kind, numbers a token, window, numbers of a state) of one layer."""
    config = layer.config
    if layer.attention == "none":
        return []
    if config.get("model_type") == "deepseek_v4":
        return _compressing(layer)
    if layer.attention == "linear":
        return [("linear", 0, 0, _state(config))]
    if layer.attention == "conv":
        return [("linear", 0, 0, whole(config, *HIDDEN) * max(0, whole(config, "conv_L_cache") - 1))]
    window = whole(config, "sliding_window", "sliding_window_size") if layer.attention == "sliding" else 0
    window = whole(config, "attention_chunk_size") if layer.attention == "chunked" else window
    parts: list[tuple[str, float, int, int]]
    if rank := whole(config, "kv_lora_rank"):
        times = 2 if config.get("model_type") == "longcat_flash" else 1
        parts = [("latent", times * (rank + whole(config, "qk_rope_head_dim")), window, 0)]
    else:
        width = head_dim(config)
        if layer.attention == "full" and (wide := whole(config, "global_head_dim")):
            width = wide
        kind = layer.attention if window else "full"
        parts = [(kind, kv_heads(layer) * (width + (whole(config, "v_head_dim") or width)), window, 0)]
    return parts + ([("indexer", whole(config, "index_head_dim"), 0, 0)] if has_indexer(layer) else [])


def _compressing(layer: Layer) -> list[tuple[str, float, int, int]]:
    """DeepSeek-V4: a window of shared keys and values in every layer, and entries for groups of tokens."""
    config, width = layer.config, head_dim(layer.config)
    parts: list[tuple[str, float, int, int]] = []
    parts.append(("sliding", width, whole(config, "sliding_window", default=_BLOCK_WINDOW), 0))
    if layer.attention == "compressed":
        parts.append(("compressed", (width + whole(config, "index_head_dim")) / _COMPRESSED, 0, 0))
    if layer.attention == "heavy":
        parts.append(("compressed", width / _HEAVY, 0, 0))
    return parts


def _state(config: Mapping[str, Any]) -> int:
    """Numbers of a linear layer's state, with the last inputs of its convolution."""
    if whole(config, "linear_num_value_heads"):
        keys, values, state = delta_sizes(config)
        return state + (2 * keys + values) * max(0, whole(config, "linear_conv_kernel_dim") - 1)
    if kda := kda_sizes(config):
        heads, width, kernel = kda
        return heads * width * width + 3 * heads * width * (kernel - 1)
    if mamba := mamba_sizes(config):
        inner, _, state, groups, kernel = mamba
        return inner * state + (inner + 2 * groups * state) * (kernel - 1)
    if state := whole(config, "mamba_d_state"):
        inner = whole(config, "mamba_expand", default=2) * whole(config, *HIDDEN)
        return inner * (state + whole(config, "mamba_d_conv", default=4) - 1)
    return whole(config, *HEADS) * head_dim(config) ** 2


def cache_numbers(parts: tuple[CachePart, ...], tokens: int) -> int:
    """Numbers that one sequence of `tokens` keeps in all layers."""
    total = 0.0
    for part in parts:
        kept = min(tokens, part.window) if part.window else tokens
        total += part.layers * (part.numbers * kept + part.state)
    return int(total)
