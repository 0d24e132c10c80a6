"""A folder of one wide layer, with random bfloat16 weights."""

import json
from pathlib import Path
from typing import Any

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 32,
    "tie_word_embeddings": True,
}


def save(path: Path, dtypes: dict[str, str] | None = None, **settings: Any) -> Path:
    """`dtypes`: weight -> the torch dtype that it has instead; `settings` are the configuration's."""
    import torch
    from safetensors.torch import save_file

    path.mkdir()
    torch.manual_seed(0)
    parts = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", *(f"self_attn.{part}_proj" for part in "qkvo"))
    tensors = {f"model.layers.0.{name}.weight": torch.randn(64, 64).bfloat16() for name in parts}
    norms = ("norm", "layers.0.input_layernorm", "layers.0.post_attention_layernorm")
    tensors |= {f"model.{name}.weight": torch.ones(64).bfloat16() for name in norms}
    tensors["model.embed_tokens.weight"] = torch.randn(32, 64).bfloat16()
    for name, dtype in (dtypes or {}).items():
        tensors[name] = tensors[name].to(getattr(torch, dtype))
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIG | settings))
    return path
