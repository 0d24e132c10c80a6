"""How a checkpoint stores its weights, by its configuration alone, and how many bytes they take."""

from collections.abc import Mapping
from typing import Any

from kt_core.formats.blocks import FORMATS

# Bits of a weight with its scales: 32 bits for 128 x 128, 8 for 32, 8 for 16, 16 for a group, and zeros of 4 bits there
_BITS = {
    "FP8_BLOCK": 8 + 32 / 128**2,
    "FP8_CHANNEL": 8.0,
    "INT8_CHANNEL": 8.0,
    "MXFP8": 8 + 8 / 32,
    "MXFP4_HF": 4 + 8 / 32,
    "NVFP4": 4 + 8 / 16,
}
_GROUPED = {"INT4": (16, 32), "GPTQ": (20, 128), "AWQ": (20, 128)}  # bits beside a group's numbers, usual group
PLAIN = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_LINEAR = ("experts", "shared", "dense", "attention", "mtp")  # parts that quantisers take; the rest stays as it is
# What others make of a published model, by the name that their repositories have: part -> format, "" -> all others
REPACKED = {
    "BF16": {"": "BF16"},
    "FP8": {"": "BF16"} | dict.fromkeys(_LINEAR, "FP8_BLOCK"),
    "MXFP8": {"": "BF16"} | dict.fromkeys(_LINEAR, "MXFP8"),
    "MXFP4": {"": "BF16", "experts": "MXFP4_HF"},
    "NVFP4": {"": "BF16", "experts": "NVFP4"},
    "INT4": {"": "BF16", "experts": "INT4"},
    "GPTQ": {"": "F16"} | dict.fromkeys(_LINEAR, "GPTQ"),
    "AWQ": {"": "F16"} | dict.fromkeys(_LINEAR, "AWQ"),
}


def bits(form: str, group: int = 0) -> float:
    """Of one weight with all that belongs to it. Raises KeyError for an unknown format."""
    if form in _GROUPED:
        beside, usual = _GROUPED[form]
        return 4 + beside / (group or usual)
    if form in _BITS:
        return _BITS[form]
    block = FORMATS[form]
    return 8 * block.block_bytes / block.block_size


def stored_formats(config: Mapping[str, Any]) -> dict[str, str]:
    """Part -> format of its matrices, for every part that is not plain; "" -> the plain type of all others."""
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else config
    plain = next((PLAIN[t] for t in _types(config, inner) if t in PLAIN), "BF16")
    settings = config.get("quantization_config") or inner.get("quantization_config")
    if not isinstance(settings, dict):
        return {"": plain}
    form, parts = _quantised(settings)
    found = dict.fromkeys(parts, form) if form else {}
    if config.get("expert_dtype") == "fp4" or inner.get("expert_dtype") == "fp4":  # DeepSeek-V4
        found |= {"experts": "MXFP4_HF", "mtp": "MXFP4_HF"}  # a layer that predicts further is experts above all
    return {"": plain} | found


def _types(config: Mapping[str, Any], inner: Mapping[str, Any]) -> list[str]:
    return [str(settings.get(name)) for settings in (inner, config) for name in ("dtype", "torch_dtype")]


def _quantised(settings: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """(format, parts that have it) of a quantization_config; "" for one that is not known."""
    method = str(settings.get("quant_method", "modelopt" if "quant_algo" in settings else "")).casefold()
    if method == "mxfp4":
        return "MXFP4_HF", ("experts",)
    if method in ("gptq", "awq"):
        return (method.upper(), _LINEAR) if settings.get("bits") == 4 else ("", ())
    if method in ("fp8", "fbgemm_fp8"):
        blocks = settings.get("weight_block_size")
        return ("MXFP8" if blocks == [1, 32] else "FP8_BLOCK" if blocks else "FP8_CHANNEL"), _LINEAR
    if method == "mxfp8":
        return "MXFP8", _LINEAR
    if method == "modelopt":
        algorithm = str(settings.get("quant_algo", "NVFP4"))
        return ("NVFP4" if "FP4" in algorithm else "FP8_CHANNEL"), _kept(
            settings.get("exclude_modules") or settings.get("ignore")
        )
    if method == "compressed-tensors":
        return _groups(settings), _kept(settings.get("ignore"))
    return "", ()


def _groups(settings: Mapping[str, Any]) -> str:
    """The format of compressed-tensors' first group."""
    groups = settings.get("config_groups")
    first = next((g for g in groups.values() if isinstance(g, dict)), {}) if isinstance(groups, dict) else {}
    weights = first.get("weights") or {}
    number, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    if number == 4:
        return "NVFP4" if kind == "float" else "INT4"
    if number == 8 and kind == "float":
        return "FP8_BLOCK" if strategy == "block" else "FP8_CHANNEL"
    if number == 8:
        return "INT8_CHANNEL" if strategy != "group" else "Q8_0"
    return ""


def _kept(ignored: Any) -> tuple[str, ...]:
    """The linear parts without those that the names of an ignore list leave out."""
    words = " ".join(map(str, ignored)) if isinstance(ignored, list) else ""
    left = {"attention": "attn", "shared": "shared_expert", "dense": "mlp"}
    return tuple(part for part in _LINEAR if part not in left or left[part] not in words)


def stored_by_part(parameters: Mapping[str, int], formats: Mapping[str, str]) -> tuple[dict[str, int], dict[str, int]]:
    """(bytes by part, bytes by format) of so many weights; `formats` as stored_formats gives them."""
    by_part: dict[str, int] = {}
    by_format: dict[str, int] = {}
    for part, count in parameters.items():
        form = formats.get(part, formats[""])
        by_part[part] = round(count * bits(form) / 8)
        by_format[form] = by_format.get(form, 0) + by_part[part]
    return by_part, by_format
