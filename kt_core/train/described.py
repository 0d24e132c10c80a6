"""What an adapter's folder says of itself; no matrix is read."""

import json
from pathlib import Path
from typing import Any

from kt_core.errors import BadData, NotFound

WEIGHTS, CONFIG, FACTS = "adapter_model.safetensors", "adapter_config.json", "kt_adapter.json"


def describe(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """adapter_config.json, and kt_adapter.json or {} where another program wrote the folder. Raises NotFound, BadData."""
    if not (folder / CONFIG).is_file():
        raise NotFound("train.no_adapter", folder=folder)
    config, facts = (read_json(folder / name) for name in (CONFIG, FACTS))
    if config.get("peft_type") != "LORA" or not isinstance(config.get("r"), int):
        raise BadData("train.bad_adapter", file=folder / CONFIG, reason="peft_type, r")
    return config, facts


def read_json(file: Path) -> dict[str, Any]:
    """The mapping in a file, {} where there is none. Raises BadData."""
    try:
        found = json.loads(file.read_bytes()) if file.is_file() else {}
    except ValueError as error:
        raise BadData("train.bad_adapter", file=file, reason=error) from None
    if not isinstance(found, dict):
        raise BadData("train.bad_adapter", file=file, reason=type(found).__name__)
    return found
