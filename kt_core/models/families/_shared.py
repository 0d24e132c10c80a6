"""What the families have in common: typed access to metadata, the usual config, names and shapes."""

import struct
from pathlib import Path
from typing import Any

from kt_core.errors import BadData, Unsupported
from kt_core.formats.gguf import GGUFHeader
from kt_core.formats.problems import shown

INT_LIMIT = (1 << 31) - 1

NORMS = {"input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "ffn_norm.weight"}
ATTENTION = {
    f"self_attn.{hf}_proj.weight": f"attn_{gguf}.weight"
    for hf, gguf in zip("qkvo", ("q", "k", "v", "output"), strict=True)
}
QKV_BIAS = {f"self_attn.{part}_proj.bias": f"attn_{part}.bias" for part in "qkv"}
OUTPUT_BIAS = {"self_attn.o_proj.bias": "attn_output.bias"}
QK_NORM = {f"self_attn.{part}_norm.weight": f"attn_{part}_norm.weight" for part in "qk"}
DENSE = {f"mlp.{part}_proj.weight": f"ffn_{part}.weight" for part in ("gate", "up", "down")}
ROUTER = {"mlp.gate.weight": "ffn_gate_inp.weight"}
EXPERTS = {f"mlp.experts.{part}_proj": f"ffn_{part}_exps.weight" for part in ("gate", "up", "down")}
SHARED = {f"mlp.shared_experts.{part}_proj.weight": f"ffn_{part}_shexp.weight" for part in ("gate", "up", "down")}


# Settings that change the arithmetic in ways no family here has, and the values that leave it alone.
_NEUTRAL: dict[str, tuple[float, ...]] = {
    "logit_scale": (0, 1),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
    "attention.scale": (0,),
    "attention.clamp_kqv": (0,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "rope.scaling.attn_factor": (0, 1),
    "rope.scaling.yarn_attn_factor": (1,),
    "rope.scaling.yarn_ext_factor": (-1, 1),
    "rope.scaling.yarn_log_multiplier": (0,),
}


class Keys:
    """Typed metadata of the header's own architecture. A wrong type or range raises BadData with the key's name."""

    def __init__(self, header: GGUFHeader) -> None:
        self.header = header
        self.architecture = header.metadata.get("general.architecture", "")

    def name(self, key: str) -> str:
        return key if key.startswith("tokenizer.") else f"{self.architecture}.{key}"

    def integer(self, key: str, default: int | None = None, low: int = 1, high: int = INT_LIMIT) -> int:
        value = self._get(key, default)
        if isinstance(value, list) and value and all(v == value[0] for v in value):
            value = value[0]  # one number a layer, all the same
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(key, value, f"{low} .. {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise self._wrong(key, value, "> 0")
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true, false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "text")
        return value

    def refuse(self, neutral: dict[str, tuple[float, ...]]) -> None:
        """Raises Unsupported for a key of `neutral` that is present with another value."""
        for key, values in neutral.items():
            value = self.header.metadata.get(self.name(key), values[0])
            if value not in values:
                path = shown(self.header.path)
                raise Unsupported("formats.setting", path=path, name=self.name(key), value=shown(repr(value)))

    def has(self, key: str) -> bool:
        return self.name(key) in self.header.metadata

    def _get(self, key: str, default: Any) -> Any:
        value = self.header.metadata.get(self.name(key), default)
        if value is None:
            raise BadData("formats.key_missing", path=shown(self.header.path), name=shown(self.name(key)))
        return value

    def _wrong(self, key: str, value: Any, wanted: str) -> BadData:
        path = shown(self.header.path)
        return BadData("formats.key_value", path=path, name=self.name(key), value=shown(repr(value)), wanted=wanted)


def shape(header: GGUFHeader, name: str, dims: int) -> tuple[int, ...]:
    """The shape of a tensor that must be there. Raises BadData."""
    tensor = header.tensors.get(name)
    if tensor is None or len(tensor.shape) != dims:
        found = list(tensor.shape) if tensor else "-"
        raise BadData("formats.tensor_dims", path=shown(header.path), tensor=name, dims=dims, found=found)
    return tensor.shape


def base_config(header: GGUFHeader, model_type: str, architecture: str) -> dict[str, Any]:
    """The config fields that all decoder families share."""
    keys = Keys(header)
    keys.refuse(_NEUTRAL)
    vocab, hidden = shape(header, "token_embd.weight", 2)
    heads = keys.integer("attention.head_count")
    kv_heads = keys.integer("attention.head_count_kv", heads, high=heads)
    head_dim = keys.integer("attention.key_length", max(1, hidden // heads))
    if heads % kv_heads or head_dim % 2:
        sizes = f"{heads} / {kv_heads}, {head_dim}"
        raise BadData("formats.heads", path=shown(header.path), sizes=sizes)
    if keys.integer("attention.value_length", head_dim) != head_dim:
        raise Unsupported("formats.value_length", path=shown(header.path))
    tokens = header.metadata.get("tokenizer.ggml.tokens", [])
    if not isinstance(tokens, list) or len(tokens) > vocab:
        raise BadData("formats.vocabulary", path=shown(header.path), tokens=len(tokens), rows=vocab)
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": vocab,
        "hidden_size": keys.integer("embedding_length"),
        "intermediate_size": keys.integer("feed_forward_length", 0, low=0),
        "num_hidden_layers": keys.integer("block_count") - keys.integer("nextn_predict_layers", 0, low=0),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": keys.integer("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_parameters": rope(keys, head_dim),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **_token_ids(keys, vocab),
    }


def _token_ids(keys: Keys, vocab: int) -> dict[str, Any]:
    """bos, eos and pad ids; eos is a list when the file names further tokens that end a turn."""

    def read(name: str) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        return keys.integer(key, low=0, high=vocab - 1) if keys.has(key) else None

    ends = [token for name in ("eos", "eot", "eom") if (token := read(name)) is not None]
    ends = list(dict.fromkeys(ends))
    return {
        "bos_token_id": read("bos"),
        "eos_token_id": ends if len(ends) > 1 else ends[0] if ends else None,
        "pad_token_id": read("padding"),
    }


# llama.cpp's number for softmax gating is 1; 0 stands for the family's own.
SOFTMAX_ROUTER: dict[str, tuple[float, ...]] = {"expert_gating_func": (0, 1), "expert_weights_scale": (0, 1)}


def moe_config(header: GGUFHeader) -> dict[str, int]:
    """count, used, width of the routed experts. Without a key of its own, the width is the tensors' or the dense one."""
    keys = Keys(header)
    count = keys.integer("expert_count")
    width = keys.integer("expert_feed_forward_length", _expert_width(header) or keys.integer("feed_forward_length"))
    return {"count": count, "used": keys.integer("expert_used_count", high=count), "width": width}


def _expert_width(header: GGUFHeader) -> int | None:
    """Rows of the first gate matrix of a routed expert."""
    for name, tensor in header.tensors.items():
        if name.endswith(".ffn_gate_exps.weight") or (name.endswith(".weight") and ".ffn_gate.0." in name):
            return tensor.shape[-2] if len(tensor.shape) > 1 else None
    return None


def expert_count(config: dict[str, Any]) -> int:
    """Routed experts a layer, 0 for a dense model, whatever the family calls them."""
    for key in ("num_local_experts", "n_routed_experts", "num_experts"):
        if key in config:
            return int(config[key])
    return 0


def rope(keys: Keys, head_dim: int) -> dict[str, Any]:
    """transformers' `rope_parameters`.

    A `rope_freqs.weight` tensor divides each rotary frequency by its own factor. transformers' "longrope" with equal
    short and long factors and an attention factor of 1 is that same formula, whatever rule the factors came from.
    """
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": keys.number("rope.freq_base", 10000.0)}
    rotated = keys.integer("rope.dimension_count", head_dim, high=head_dim)
    if rotated != head_dim:
        parameters["partial_rotary_factor"] = rotated / head_dim
    kind = keys.text("rope.scaling.type", "linear" if keys.has("rope.scale_linear") else "none")
    factors = _rope_factors(keys.header, rotated // 2)
    if factors:
        if kind != "none":
            raise Unsupported("formats.rope", path=shown(keys.header.path), kind=f"{kind} + rope_freqs.weight")
        context = keys.integer("context_length")
        parameters |= {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "factor": 1.0}
        parameters |= {"attention_factor": 1.0, "original_max_position_embeddings": context}
    elif kind in ("linear", "yarn"):
        parameters |= {"rope_type": kind, "factor": keys.number("rope.scaling.factor", _linear(keys))}
    elif kind != "none":
        raise Unsupported("formats.rope", path=shown(keys.header.path), kind=shown(kind))
    if kind == "yarn":
        parameters["original_max_position_embeddings"] = keys.integer("rope.scaling.original_context_length")
        for ours, theirs in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
            if keys.has(f"rope.scaling.{theirs}"):
                parameters[ours] = keys.number(f"rope.scaling.{theirs}")
    return parameters


def _linear(keys: Keys) -> float | None:
    return keys.number("rope.scale_linear") if keys.has("rope.scale_linear") else None


def _rope_factors(header: GGUFHeader, count: int) -> list[float]:
    """The numbers in `rope_freqs.weight`; empty when there is none or all are 1."""
    tensor = header.tensors.get("rope_freqs.weight")
    if tensor is None:
        return []
    if tensor.format != "F32" or tensor.shape != (count,):
        raise Unsupported("formats.rope", path=shown(header.path), kind=f"{tensor.format} {list(tensor.shape)}")
    with Path(tensor.file).open("rb") as file:
        file.seek(tensor.offset)
        factors = list(struct.unpack(f"<{count}f", file.read(tensor.nbytes)))
    if not all(0 < factor < float("inf") for factor in factors):
        raise BadData("formats.rope_factors", path=shown(header.path))
    return [] if all(factor == 1 for factor in factors) else factors


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """GGUF name (inside a block for block tensors) -> the shape that the config asks for."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head = config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    count = expert_count(config)
    width = config.get("moe_intermediate_size", inner)
    shared = width * config.get("n_shared_experts", 0)
    found: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab, hidden),
        "output.weight": (vocab, hidden),
        "output_norm.weight": (hidden,),
        "attn_q.weight": (q, hidden),
        "attn_q.bias": (q,),
        "attn_output.weight": (hidden, q),
        "attn_output.bias": (hidden,),
        "ffn_gate_inp.weight": (count, hidden),
        "exp_probs_b.bias": (count,),
    }
    found |= {f"attn_{part}.weight": (kv, hidden) for part in "kv"} | {f"attn_{part}.bias": (kv,) for part in "kv"}
    found |= {f"{norm}.weight": (hidden,) for norm in ("attn_norm", "ffn_norm", "post_attention_norm")}
    found |= {f"attn_{part}_norm.weight": (head,) for part in "qk"}
    for part in ("gate", "up"):
        found[f"ffn_{part}.weight"] = (inner, hidden)
        found[f"ffn_{part}_shexp.weight"] = (shared, hidden)
        found[f"ffn_{part}_exps.weight"] = (count, width, hidden)
        found[f"ffn_{part}.#.weight"] = (width, hidden)
    found |= {"ffn_down.weight": (hidden, inner), "ffn_down_shexp.weight": (hidden, shared)}
    return found | {"ffn_down_exps.weight": (count, hidden, width), "ffn_down.#.weight": (hidden, width)}


def base_metadata(config: dict[str, Any]) -> dict[str, Any]:
    """What base_config reads, from a complete configuration: keys without the architecture's name.

    Raises Unsupported for rotary embeddings that GGUF has no keys for.
    """
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    parameters = config.get("rope_parameters") or {}
    found = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.dimension_count": int(head * parameters.get("partial_rotary_factor", 1.0)),
        "rope.freq_base": float(parameters.get("rope_theta", 10000.0)),
        "vocab_size": config["vocab_size"],
    }
    kind = parameters.get("rope_type", "default")
    if kind not in ("default", "linear", "yarn"):
        raise Unsupported("formats.rope", path=config["model_type"], kind=shown(str(kind)))
    if kind != "default":
        found |= {"rope.scaling.type": kind, "rope.scaling.factor": float(parameters["factor"])}
    if kind == "yarn":
        found["rope.scaling.original_context_length"] = int(parameters["original_max_position_embeddings"])
        for ours in ("beta_fast", "beta_slow"):
            if parameters.get(ours):
                found[f"rope.scaling.yarn_{ours}"] = float(parameters[ours])
    return found


def moe_metadata(config: dict[str, Any]) -> dict[str, Any]:
    """What moe_config reads."""
    return {
        "expert_count": expert_count(config),
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config.get("moe_intermediate_size", config["intermediate_size"]),
    }
