"""ModelSpec from headers alone: config.json or GGUF metadata, and the tensor headers where there are any."""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kt_core.errors import BadData, Unsupported
from kt_core.formats import TensorInfo, gguf, safetensors
from kt_core.formats.problems import Problems
from kt_core.formats.quantized import quantised, stored_bytes
from kt_core.models import counting, families, knowledge, storage
from kt_core.models.cache import cache_parts
from kt_core.models.knowledge import GGUF_METHOD, METHODS
from kt_core.models.layers import EXPERTS, HEADS, HIDDEN, LAYERS, TOP_K, layers_of, text_of
from kt_core.models.parts import part_of
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
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "vocab_size": ("vocab_size",),
    "num_attention_heads": HEADS,
    "context": (
        "max_position_embeddings",
        "n_positions",
        "max_sequence_length",
        "seq_length",
        "max_seq_len",
        "model_max_length",
    ),
    "experts": EXPERTS,
    "experts per token": TOP_K,
}
_NEEDED = ("num_hidden_layers",)  # without them no name says in which layer a weight is
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
    spec = _spec(config, tensors, files.format, problems)
    if problems or spec is None:
        raise BadData("models.bad_config", path=described_in(files), problems=problems)
    return replace(spec, chat_template=has_chat_template(files))


def describe(files: ModelFiles) -> ModelSpec:
    """As read_spec, also for a GGUF architecture that kt cannot run, and for a folder quantised in a way that it cannot
    read: sizes are then the configuration's alone. Raises BadData, and what the readers raise."""
    try:
        return read_spec(files)
    except Unsupported:
        if files.format != "gguf":
            spec = from_config(_read_config(described_in(files)), described_in(files))
            return replace(spec, chat_template=has_chat_template(files))
    header = gguf.read_model(Path(files.path))
    problems = Problems()
    found = _spec(families.plain_config(header), header.tensors, files.format, problems)
    if problems or found is None:
        raise BadData("models.bad_config", path=described_in(files), problems=problems)
    return replace(found, chat_template=has_chat_template(files))


def read_config_spec(path: Path) -> ModelSpec:
    """What a config.json says when the weights are not here yet. Raises BadData."""
    return from_config(_read_config(path), path)


def has_chat_template(files: ModelFiles) -> bool:
    """Whether the model's files hold a chat template; unreadable ones do not."""
    if files.format == "gguf":
        return bool(gguf.read_model(Path(files.path)).metadata.get("tokenizer.chat_template"))
    folder = Path(files.path)
    if (folder / "chat_template.jinja").is_file():
        return True
    for name in ("chat_template.json", "tokenizer_config.json"):
        try:
            if json.loads((folder / name).read_bytes()).get("chat_template"):
                return True
        except (OSError, ValueError, AttributeError, RecursionError):
            continue
    return False


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


def check_config(config: dict[str, Any], path: Path) -> None:
    """Raises BadData, with every problem, for a configuration without a model type or a number of layers, and for
    sizes of nonsense: whoever reads weights by their names needs these."""
    problems = Problems()
    text = dict(text_of(config))
    if not isinstance(config.get("model_type"), str) or not config["model_type"]:
        problems.add("models.config_no_type")
    if not isinstance(config.get("text_config", {}), dict):
        problems.add("models.config_no_object", field="text_config")
    for name, aliases in _ALIASES.items():
        if name in _NEEDED or any(text.get(alias) is not None for alias in aliases):
            _size(text, name, problems, optional=name.startswith("experts"))
    for setting in not_finite(config):
        problems.add("models.config_not_finite", setting=setting)
    if problems:
        raise BadData("models.bad_config", path=path, problems=problems)


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
        config = json.loads(path.read_text(encoding="utf-8-sig"))
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


def from_config(
    config: dict[str, Any],
    path: Path = Path("config.json"),
    beside: Mapping[str, int] | None = None,
    formats: Mapping[str, str] | None = None,
) -> ModelSpec:
    """What the configuration alone says: weights counted by the family's shapes, bytes by its quantisation.

    `beside`: weights of the parts "vision" and "mtp", which are not counted. `formats`: part -> stored format, "" -> that of
    the others, where it is not the configuration's. Raises BadData as read_spec does.
    """
    problems = Problems()
    for setting in not_finite(config):
        problems.add("models.config_not_finite", setting=setting)
    found = _Found(config, problems)
    if problems:
        raise BadData("models.bad_config", path=path, problems=problems)
    counted = Counter(counting.counted(found.text) | dict(beside or {}))
    parameters = _ordered(counted)
    formats = formats or storage.stored_formats(config)
    by_part, by_format = storage.stored_by_part(parameters, formats)
    main = formats.get("experts" if parameters.get("experts") else "dense", formats[""])
    return found.spec(parameters, by_part, by_format, METHODS.get(main, ""), exact=False)


def _spec(config: dict[str, Any], tensors: dict[str, TensorInfo], form: str, problems: Problems) -> ModelSpec | None:
    for setting in not_finite(config):
        problems.add("models.config_not_finite", setting=setting)
    found = _Found(config, problems)
    if problems:
        return None
    _compare(tensors, found.sizes, found.experts, problems)
    formats: Counter[str] = Counter()
    by_part: Counter[str] = Counter()
    parameters: Counter[str] = Counter()
    stored: Counter[str] = Counter()  # formats of what the method is about
    main = "experts" if found.experts else "dense"
    for info in tensors.values():
        part = part_of(info.name, found.sizes["num_hidden_layers"])
        formats[info.format] += stored_bytes(info)
        by_part[part] += stored_bytes(info)
        if not info.name.endswith("inv_freq"):  # a table that is computed, not learnt
            parameters[part] += math.prod(info.shape)
        stored[info.format] += stored_bytes(info) if part == main else 0
    method = METHODS.get(max(stored, key=lambda name: stored[name], default=""), "")
    return found.spec(_ordered(parameters), _ordered(by_part), dict(formats), GGUF_METHOD if form == "gguf" else method)


def _ordered(parts: Counter[str]) -> dict[str, int]:
    return {part: parts[part] for part in counting.PARTS if parts[part]}


class _Found:
    """The sizes of a configuration, checked; what is wrong is noted in `problems`."""

    def __init__(self, config: dict[str, Any], problems: Problems) -> None:
        self.config = config
        self.text = dict(text_of(config))
        self.sizes = {name: _size(self.text, name, problems) for name in list(_ALIASES)[:5]}
        self.experts = _size(self.text, "experts", problems, optional=True)
        self.per_token = _size(self.text, "experts per token", problems, optional=True) if self.experts else 0
        if self.experts and not 0 < self.per_token <= self.experts:
            problems.add("models.config_top_k", k=self.per_token, experts=self.experts)
        self.kept = _cache_numbers(self.text, self.sizes, problems)

    def spec(
        self,
        parameters: dict[str, int],
        by_part: dict[str, int],
        formats: dict[str, int],
        method: str,
        exact: bool = True,
    ) -> ModelSpec:
        text, layers = self.text, layers_of(self.text)
        cache = cache_parts(text)
        routed = parameters.get("experts", 0)
        idle = routed - routed * self.per_token // self.experts if self.experts else 0
        total = sum(parameters.values())
        tool, reasoning = knowledge.parsers(str(text.get("model_type") or self.config["model_type"]))
        return ModelSpec(
            family=self.config["model_type"],
            layers=self.sizes["num_hidden_layers"],
            hidden=self.sizes["hidden_size"],
            vocab=self.sizes["vocab_size"],
            context=self.sizes["context"],
            experts=self.experts,
            experts_per_token=self.per_token,
            parameters=total,
            bytes_by_part=by_part,
            kv_bytes_per_token=self.kept * CACHE_BYTES,
            formats=formats,
            parameters_by_part=parameters,
            active_parameters=total - idle - parameters.get("vision", 0) - parameters.get("mtp", 0),
            moe_layers=sum(layer.feed in ("experts", "both") for layer in layers),
            expert_width=counting.expert_width(text) if self.experts else 0,
            heads=self.sizes["num_attention_heads"],
            kv_heads=1 if text.get("kv_lora_rank") else max(map(counting.kv_heads, layers), default=0),
            cache=cache,
            method=method,
            tool_parser=tool,
            reasoning_parser=reasoning,
            quirks=tuple(knowledge.quirks(self.config, layers, cache, parameters)),
            exact=exact,
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
        return layers * (latent + _whole(config.get("qk_rope_head_dim"), "qk_rope_head_dim", 0, limit, problems))
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
