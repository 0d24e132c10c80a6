"""Qwen3, dense."""

from typing import Any

from kt_core.formats.gguf import GGUFHeader
from kt_core.models.families import _shared

INTERLEAVED = False


def config(header: GGUFHeader) -> dict[str, Any]:
    """Qwen3Config."""
    found = _shared.base_config(header, "qwen3", "Qwen3ForCausalLM")
    return found | {"attention_bias": False, "use_sliding_window": False}


def layer(config: dict[str, Any], index: int) -> dict[str, str]:
    """q and k are normalised head by head."""
    return _shared.NORMS | _shared.ATTENTION | _shared.QK_NORM | _shared.DENSE


def metadata(config: dict[str, Any]) -> dict[str, Any]:
    """The common keys."""
    return _shared.base_metadata(config)
