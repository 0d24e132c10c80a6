"""ModelSpec from headers alone: config.json or GGUF metadata, and the tensor headers."""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kt_core.errors import BadData
from kt_core.formats import TensorInfo, gguf, safetensors
from kt_core.formats.problems import Problems
from kt_core.formats.quantized import quantised, stored_bytes
from kt_core.models import families
from kt_core.types import ModelFiles, ModelSpec

CACHE_BYTES = 4  # per cached number: the engine keeps float32

# Wider than any published model by two orders of magnitude; beyond these a number is nonsense.
_LIMITS = {
    "num_hidden_layers": 10_000,
    "hidden_size": 1 << 20,
    "vocab_size": 1 << 26,
    "num_attention_heads": 1 << 16,
    "context": 1 << 30,
    "experts": 1 << 16,
    "experts per token": 1 << 16,
}
_ALIASES = {  # field -> names in reading order; the first one present counts
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "vocab_size": ("vocab_size",),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "context": ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "experts per token": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"),
}
_EXPERT = re.compile(r"(^|\.)experts\.|_exps\.|\.ffn_(gate|up|down)\.\d+\.|block_sparse_moe\.(in|out)put_linear\.")
_EXPERT_INDEX = re.compile(r"layers\.(?P<layer>\d+)\..*\bexperts\.(?P<expert>\d+)\.")
_LAYER = re.compile(r"(?:^|\.)(?:layers|blk|h)\.(\d+)\.")
_EMBEDDING = re.compile(r"(^|\.)(token_embd|embed_tokens|wte)\.weight$")


def read_spec(files: ModelFiles) -> ModelSpec:
    """What the headers of `files` say; no tensor data is read.

    Raises BadData when config.json or the metadata is nonsense or contradicts the tensors (every problem
    listed), Unsupported for a GGUF architecture without a family file or a way of quantising that kt does not
    read, and what the readers raise.
    """
    config, tensors = read_headers(files)
    problems = Problems()
    spec = _spec(config, tensors, problems)
    if problems or spec is None:
        raise BadData("models.bad_config", path=described_in(files), problems=problems)
    return spec


def read_headers(files: ModelFiles) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    """(Hugging Face config as a dict, weights by their names in the files; scales are part of the weight they are for)."""
    if files.format == "gguf":
        header = gguf.read_model(Path(files.path))
        return families.gguf_config(header), header.tensors
    config = _read_config(Path(files.path) / "config.json")
    return config, quantised(safetensors.read_folder(files.path), config, files.path)


def examples(files: ModelFiles, formats: Iterable[str], count: int = 2) -> dict[str, list[str]]:
    """For each of the stored formats, the names of the first `count` tensors that have it."""
    found: dict[str, list[str]] = {name: [] for name in formats}
    for name, info in sorted(read_headers(files)[1].items()):
        if info.format in found and len(found[info.format]) < count:
            found[info.format].append(name)
    return found


def described_in(files: ModelFiles) -> Path:
    """The file that holds the model's configuration."""
    return Path(files.path) if files.format == "gguf" else Path(files.path) / "config.json"


def not_finite(config: dict[str, Any], prefix: str = "") -> list[str]:
    """Settings that are NaN or infinite, which Python's JSON reader lets through, with their values.

    Lists may hold Infinity: `time_step_limit` of Mamba layers does.
    """
    found = []
    for name, value in config.items():
        if isinstance(value, dict):
            found += not_finite(value, f"{prefix}{name}.")
        elif isinstance(value, float) and not math.isfinite(value):
            found.append(f"{prefix}{name} = {value}")
    return found


def _read_config(path: Path) -> dict[str, Any]:
    problems = Problems()
    config: Any = None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            problems.add("models.config_not_object")
        elif not isinstance(config.get("model_type"), str) or not config["model_type"]:
            problems.add("models.config_no_type")
    except OSError as error:
        problems.add("models.config_unreadable", reason=error.strerror or str(error))
    except (ValueError, RecursionError) as error:
        problems.add("models.config_not_json", reason=str(error))
    if problems:
        raise BadData("models.bad_config", path=path, problems=problems)
    result: dict[str, Any] = config
    return result


def _spec(config: dict[str, Any], tensors: dict[str, TensorInfo], problems: Problems) -> ModelSpec | None:
    for setting in not_finite(config):
        problems.add("models.config_not_finite", setting=setting)
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    sizes = {name: _size(text, name, problems) for name in list(_ALIASES)[:5]}
    experts = _size(text, "experts", problems, optional=True)
    per_token = _size(text, "experts per token", problems, optional=True) if experts else 0
    if experts and not 0 < per_token <= experts:
        problems.add("models.config_top_k", k=per_token, experts=experts)
    cache = _cache_numbers(text, sizes, problems)
    if problems:
        return None
    _compare(tensors, sizes, experts, problems)
    formats: Counter[str] = Counter()
    parts: Counter[str] = Counter(experts=0, other=0)
    for info in tensors.values():
        formats[info.format] += stored_bytes(info)
        parts["experts" if _EXPERT.search(info.name) else "other"] += stored_bytes(info)
    return ModelSpec(
        family=config["model_type"],
        layers=sizes["num_hidden_layers"],
        hidden=sizes["hidden_size"],
        vocab=sizes["vocab_size"],
        context=sizes["context"],
        experts=experts,
        experts_per_token=per_token,
        parameters=_parameters(tensors.values()),
        bytes_by_part=dict(parts),
        kv_bytes_per_token=cache * CACHE_BYTES,
        formats=dict(formats),
    )


def _size(config: dict[str, Any], field: str, problems: Problems, optional: bool = False) -> int:
    """A positive whole number of the configuration; 0, with a problem noted, when it is none."""
    for name in _ALIASES[field]:
        if config.get(name) is not None:
            return _whole(config[name], name, 0 if optional else 1, _LIMITS[field], problems)
    if not optional:
        problems.add("models.config_missing", field=_ALIASES[field][0])
    return 0


def _whole(value: Any, name: str, low: int, high: int, problems: Problems) -> int:
    values: list[Any] = value if isinstance(value, list) and value else [value]  # a list has one value per layer
    if all(isinstance(v, int) and not isinstance(v, bool) and low <= v <= high for v in values):
        return int(max(values))
    problems.add("models.config_value", field=name, value=str(value), low=low, high=high)
    return 0


def _cache_numbers(config: dict[str, Any], sizes: dict[str, int], problems: Problems) -> int:
    """Numbers cached per token over all layers: the latent and the rotary key for MLA, else keys and values."""
    layers, heads = sizes["num_hidden_layers"], sizes["num_attention_heads"]
    limit = _LIMITS["hidden_size"]
    if config.get("kv_lora_rank") is not None:
        latent = _whole(config["kv_lora_rank"], "kv_lora_rank", 1, limit, problems)
        return layers * (latent + _whole(config.get("qk_rope_head_dim"), "qk_rope_head_dim", 1, limit, problems))
    stated = config.get("num_key_value_heads")
    kv_heads = heads if stated is None else _whole(stated, "num_key_value_heads", 1, 1 << 16, problems)
    head_dim = config.get("head_dim")
    if head_dim is None:
        head_dim = sizes["hidden_size"] // max(heads, 1)
    return layers * 2 * kv_heads * _whole(head_dim, "head_dim", 1, limit, problems)


def _compare(tensors: dict[str, TensorInfo], sizes: dict[str, int], experts: int, problems: Problems) -> None:
    """What the settings say against what the tensor headers say."""
    layers: set[int] = set()
    indexed: dict[int, set[int]] = defaultdict(set)
    for name, info in tensors.items():
        if _EMBEDDING.search(name) and info.shape != (sizes["vocab_size"], sizes["hidden_size"]):
            expected = [sizes["vocab_size"], sizes["hidden_size"]]
            problems.add("models.shape_differs", tensor=name, shape=list(info.shape), expected=expected)
        if match := _LAYER.search(name):
            layers.add(int(match[1]))
        if match := _EXPERT_INDEX.search(name):
            indexed[int(match["layer"])].add(int(match["expert"]))
        if "_exps.weight" in name and info.shape[0] != experts:
            problems.add("models.shape_differs", tensor=name, shape=list(info.shape), expected=[experts, "...", "..."])
    missing = set(range(sizes["num_hidden_layers"])) - layers
    if layers and missing:
        problems.add("models.layers_missing", layers=sizes["num_hidden_layers"], found=len(layers))
    for layer, found in sorted(indexed.items()):
        if layer < sizes["num_hidden_layers"] and found != set(range(experts)):
            problems.add("models.experts_differ", experts=experts, found=len(found), layer=layer)
            break


def _parameters(tensors: Iterable[TensorInfo]) -> int:
    """Weights counted by element; tables that are computed, not learnt, do not count."""
    return sum(math.prod(info.shape) for info in tensors if not info.name.endswith("inv_freq"))
