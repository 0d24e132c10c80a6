"""What kt knows of model families beyond sizes: parsers of their answers, methods by format, what is special."""

from collections.abc import Mapping
from typing import Any

from kt_core.messages import t
from kt_core.models.layers import Layer, text_of, whole
from kt_core.types import CachePart

# The way that kt's methods are called (kt_core.kernels.methods), for each stored format
METHODS = {
    "BF16": "BF16",
    "FP8_BLOCK": "FP8",
    "FP8_CHANNEL": "FP8_PERCHANNEL",
    "MXFP8": "MXFP8",
    "MXFP4_HF": "MXFP4",
    "NVFP4": "NVFP4",
    "INT4": "RAWINT4",
    "GPTQ": "GPTQ_INT4",
}
GGUF_METHOD = "LLAMAFILE"

# model_type, as far as the word goes -> (parser of tool calls, of reasoning), the longest that fits. The marks in a
# model's own chat template decide when it runs; this is for models that are not here yet.
_PARSERS = {
    "deepseek_v2": ("", ""),
    "deepseek_v3": ("deepseek-v3", "think"),
    "deepseek_v32": ("deepseek-v3.2", "think"),
    "deepseek_v4": ("deepseek-v3.2", "think"),
    "kimi_k2": ("kimi-k2", "think"),
    "glm4_moe": ("glm", "think"),
    "glm_moe_dsa": ("glm", "think"),
    "glm5_next": ("glm", "think"),
    "minimax_m2": ("minimax-m2", "think"),
    "minimax_m3": ("minimax-m3", "minimax-m3"),
    "qwen2": ("hermes", ""),
    "qwen3": ("hermes", "think"),
    "qwen3_next": ("hermes", ""),
    "qwen3_5": ("qwen3-coder", "think"),
    "nemotron_h": ("qwen3-coder", "think"),
    "gpt_oss": ("harmony", "harmony"),
    "mistral": ("mistral", ""),
    "ministral": ("mistral", ""),
    "mixtral": ("mistral", ""),
    "llama": ("llama", ""),
    "llama4": ("", ""),
    # GGUF architectures that are spelt otherwise
    "deepseek2": ("deepseek-v3", "think"),
    "glm-dsa": ("glm", "think"),
    "gpt-oss": ("harmony", "harmony"),
    "minimax-m2": ("minimax-m2", "think"),
    "qwen35": ("qwen3-coder", "think"),
}


def parsers(family: str) -> tuple[str, str]:
    """(parser of tool calls, parser of reasoning) that a family's models usually need; "" for none."""
    fitting = [name for name in _PARSERS if family.startswith(name)]
    return _PARSERS[max(fitting, key=len)] if fitting else ("", "")


def quirks(
    config: Mapping[str, Any], layers: list[Layer], cache: tuple[CachePart, ...], parts: Mapping[str, int]
) -> list[str]:
    """Names of what is special about a model; each has a message models.quirk_NAME."""
    text = text_of(config)
    kinds = {part.kind for part in cache}
    indexers, feeds = text.get("indexer_types"), text.get("mlp_layer_types")
    found = {
        "vision": "vision_config" in config or bool(parts.get("vision")),
        "mtp": bool(parts.get("mtp") or whole(text, "num_nextn_predict_layers", "mtp_num_hidden_layers")),
        "own_code": "auto_map" in config,
        "state": "linear" in kinds,
        "windows": bool(kinds & {"sliding", "chunked"}),
        "indexer": "indexer" in kinds or any(layer.attention == "compressed" for layer in layers),
        "shared_indexers": isinstance(indexers, list) and "shared" in indexers,
        "hash_router": bool(whole(text, "num_hash_layers")) or (isinstance(feeds, list) and "hash_moe" in feeds),
        "expert_biases": text.get("model_type") == "gpt_oss",
        "zero_experts": bool(whole(text, "zero_expert_num")),
        "streams": whole(text, "hc_mult") > 1,
    }
    return [name for name, holds in found.items() if holds]


def quirk_text(name: str) -> str:
    """What a quirk means, in words."""
    return t(f"models.quirk_{name}")
