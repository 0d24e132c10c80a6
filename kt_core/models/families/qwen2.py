"""Qwen2 and Qwen2.5, dense."""

from typing import Any

from kt_core.formats.gguf import GGUFHeader
from kt_core.models.families import _shared

INTERLEAVED = False


def config(header: GGUFHeader) -> dict[str, Any]:
    """Qwen2Config."""
    return _shared.base_config(header, "qwen2", "Qwen2ForCausalLM") | {"use_sliding_window": False}


def layer(config: dict[str, Any], index: int) -> dict[str, str]:
    """q, k and v always have a bias."""
    return _shared.NORMS | _shared.ATTENTION | _shared.QKV_BIAS | _shared.DENSE


def metadata(config: dict[str, Any]) -> dict[str, Any]:
    """The common keys."""
    return _shared.base_metadata(config)
