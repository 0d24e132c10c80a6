"""What an adapter's folder says of itself; no matrix is read."""

import json
from pathlib import Path
from typing import Any

from kt_core.errors import BadData, NotFound

WEIGHTS, CONFIG, FACTS = "adapter_model.safetensors", "adapter_config.json", "kt_adapter.json"


def base_of(folder: Path) -> str:
    """The model that an adapter was made for, "" where nobody says. Raises NotFound, BadData."""
    if folder.suffix == ".gguf" and folder.is_file():
        return ""
    if not (folder / CONFIG).is_file():
        if any(folder.glob("*.gguf")):
            return ""
        raise NotFound("train.no_adapter", folder=folder)
    config = read_json(folder / CONFIG)
    if config.get("peft_type") != "LORA":
        raise BadData("train.bad_adapter", file=folder / CONFIG, reason="peft_type")
    return str(config.get("base_model_name_or_path") or "")


def facts(folder: Path) -> dict[str, Any]:
    """kt_adapter.json, {} where another program wrote the adapter. Raises BadData."""
    return read_json(folder / FACTS) if folder.is_dir() else {}


def read_json(file: Path) -> dict[str, Any]:
    """The mapping in a file, {} where there is none. Raises BadData."""
    try:
        found = json.loads(file.read_bytes()) if file.is_file() else {}
    except ValueError as error:
        raise BadData("train.bad_adapter", file=file, reason=error) from None
    if not isinstance(found, dict):
        raise BadData("train.bad_adapter", file=file, reason=type(found).__name__)
    return found
