"""GGUF architectures in transformers' terms: one module here for each, found by its file name.

A family module has
- `config(header)`: the model's config.json as transformers reads it, from metadata and tensor shapes;
- `layer(config, index)`: HF name -> GGUF name of one layer's tensors, without `model.layers.N.` and `blk.N.`;
  routed experts are `mlp.experts.{gate,up,down}_proj` -> `ffn_{gate,up,down}_exps.weight`;
- `metadata(config)`: the reverse of `config`, keys without the architecture's name, from a complete configuration;
- `INTERLEAVED`: whether the rows of q and k alternate between the two halves that rotary embedding pairs
  (llama's own order), where transformers wants one half after the other.
"""

import importlib
import pkgutil
from types import ModuleType
from typing import Any

from kt_core.errors import BadData, Unsupported
from kt_core.formats.gguf import GGUFHeader
from kt_core.formats.problems import Problems, shown
from kt_core.models.families import _plain, _shared

# transformers' model_type -> architecture
_ARCHITECTURES = {
    "llama": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "glm4_moe": "glm4moe",
}  # fmt: skip


def known() -> list[str]:
    """The GGUF architectures that kt can run, by name."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def gguf_config(header: GGUFHeader) -> dict[str, Any]:
    """transformers' config for the model, `model_type` and `architectures` included.

    Raises Unsupported for an unknown architecture or setting, BadData for missing or impossible metadata and for
    a block count that the tensor list contradicts.
    """
    module = _family(header)
    _check_blocks(header)
    config: dict[str, Any] = module.config(header)
    return config


def plain_config(header: GGUFHeader) -> dict[str, Any]:
    """Sizes of a model of any architecture, known here or not, to plan with; values are as the file has them."""
    return _plain.config(header)


def gguf_names(header: GGUFHeader) -> dict[str, str]:
    """HF name -> GGUF name of every tensor that the model needs.

    Stacked experts are `model.layers.N.mlp.experts.gate_proj` -> one 3-D tensor; files that keep one tensor an
    expert give `model.layers.N.mlp.experts.E.gate_proj.weight`. A tied `lm_head.weight` is not listed.
    Raises as gguf_config does, and BadData when tensors are missing or their shapes contradict the metadata.
    """
    config = gguf_config(header)
    names = _outer_names(config)
    for index in range(config["num_hidden_layers"]):
        for hf, gguf in _family(header).layer(config, index).items():
            if gguf.endswith("_exps.weight") and _has_single_experts(header, config, index):
                for expert in range(_shared.expert_count(config)):
                    name = hf.replace("experts.", f"experts.{expert}.") + ".weight"
                    names[f"model.layers.{index}.{name}"] = f"blk.{index}.{gguf.replace('_exps', f'.{expert}')}"
            else:
                names[f"model.layers.{index}.{hf}"] = f"blk.{index}.{gguf}"
    _check_tensors(header, config, names)
    return names


def architecture(config: dict[str, Any]) -> str:
    """The GGUF architecture of a transformers configuration. Raises Unsupported for a family that has none here."""
    family = str(config.get("model_type"))
    name = _ARCHITECTURES.get(family, "")
    if not name:
        raise Unsupported("formats.architecture", name=shown(family), known=", ".join(known()))
    return name


def metadata(config: dict[str, Any]) -> dict[str, Any]:
    """The metadata of a GGUF file of the model, without its tokenizer; the configuration must be complete.

    Raises Unsupported for an unknown family, and for settings that GGUF has no keys for.
    """
    name = architecture(config)
    found: dict[str, Any] = importlib.import_module(f"{__name__}.{name}").metadata(config)
    return {"general.architecture": name} | {f"{name}.{key}": value for key, value in found.items()}


def names_of(config: dict[str, Any]) -> dict[str, str]:
    """gguf_names for a file that is to be written, with stacked experts. Raises Unsupported for an unknown family."""
    family = importlib.import_module(f"{__name__}.{architecture(config)}")
    names = _outer_names(config)
    for index in range(config["num_hidden_layers"]):
        names |= {
            f"model.layers.{index}.{hf}": f"blk.{index}.{gguf}" for hf, gguf in family.layer(config, index).items()
        }
    return names


def heads_of(config: dict[str, Any], hf: str) -> int:
    """Heads of a transformers parameter whose rows alternate within each head in GGUF; 0 for all others."""
    if not importlib.import_module(f"{__name__}.{architecture(config)}").INTERLEAVED:
        return 0
    counts = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    return int(counts.get(hf.split(".")[-2], 0)) if hf.count(".") else 0


def _outer_names(config: dict[str, Any]) -> dict[str, str]:
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    return names if config["tie_word_embeddings"] else names | {"lm_head.weight": "output.weight"}


def gguf_heads(header: GGUFHeader, config: dict[str, Any]) -> dict[str, int]:
    """GGUF name -> number of heads, for the tensors whose rows alternate within each head."""
    if not _family(header).INTERLEAVED:
        return {}
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    return {
        name: heads[part]
        for name in header.tensors
        if name.startswith("blk.") and (part := name.split(".")[-2]) in heads
    }


def gguf_skipped(header: GGUFHeader, config: dict[str, Any]) -> set[str]:
    """Tensors that are known and not needed: rope factors (the config has them) and next-token-prediction blocks."""
    layers = config["num_hidden_layers"]
    return {
        name
        for name in header.tensors
        if name == "rope_freqs.weight"
        or name.endswith((".attn_rot_embd.weight", ".rope_freqs.weight"))
        or (name.startswith("blk.") and _block(name) >= layers)
    }


def _family(header: GGUFHeader) -> ModuleType:
    name = header.metadata.get("general.architecture")
    if name not in known():
        raise Unsupported("formats.architecture", name=shown(str(name)), known=", ".join(known()))
    return importlib.import_module(f"{__name__}.{name}")


def _block(name: str) -> int:
    number = name.split(".")[1] if name.startswith("blk.") else ""
    return int(number) if number.isdecimal() and len(number) < 10 else -1


def _check_blocks(header: GGUFHeader) -> None:
    """The block count fits the tensor list; the last `nextn` blocks may have been left out."""
    keys = _shared.Keys(header)
    count, optional = keys.integer("block_count"), keys.integer("nextn_predict_layers", 0, low=0)
    present = {_block(name) for name in header.tensors} - {-1}
    highest = max(present, default=-1) + 1
    if len(present) != highest or not count - optional <= highest <= count:
        raise BadData(
            "formats.block_count",
            path=shown(header.path),
            name=keys.name("block_count"),
            count=count,
            found=len(present),
        )


def _has_single_experts(header: GGUFHeader, config: dict[str, Any], index: int) -> bool:
    """Whether the block keeps one tensor an expert, as files of early 2024 do; their number is bounded by the file's."""
    return f"blk.{index}.ffn_gate.0.weight" in header.tensors and _shared.expert_count(config) <= len(header.tensors)


def _check_tensors(header: GGUFHeader, config: dict[str, Any], names: dict[str, str]) -> None:
    problems = Problems()
    shapes = _shared.shapes(config)
    for name in names.values():
        if name not in header.tensors:
            problems.add("formats.tensor_missing", tensor=name)
            continue
        suffix = name.split(".", 2)[2] if name.startswith("blk.") else name
        wanted, found = shapes.get(_without_expert(suffix)), header.tensors[name].shape
        if wanted and found != wanted:
            problems.add("formats.shape", tensor=name, found=list(found), wanted=list(wanted))
    problems.raise_for(header.path, "GGUF")


def _without_expert(suffix: str) -> str:
    """`ffn_gate.3.weight` -> `ffn_gate.#.weight`; other names as they are."""
    parts = suffix.split(".")
    return f"{parts[0]}.#.{parts[2]}" if len(parts) == 3 and parts[1].isdecimal() else suffix
