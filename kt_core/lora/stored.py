"""Adapters as programs store them, all under PEFT's names: a PEFT folder, KTransformers' pair of files, a GGUF file."""

import json
import re
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse

from kt_core.errors import BadData, NotFound
from kt_core.lora import gguf, pair

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."
_ADDED = re.compile(r"\.(orig_module|base_layer|default)(?=\.)")  # what wrappers leave in names


@dataclass(frozen=True)
class Stored:
    """`tensors`: `<module>.lora_A.weight` and B, without PREFIX, as they lie there; `digest`: of all that decides what it does."""

    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    digest: bytes


def stored(path: Path) -> Stored:
    """The adapter of a folder or a GGUF file. Raises NotFound where there is none, BadData for a damaged one, Unsupported."""
    if file := gguf.file_of(path):
        config, tensors, data = gguf.read(file)
        return _whole(file, config, tensors, data)
    config = _config(path / CONFIG)
    data = _bytes(path / WEIGHTS)
    tensors = _parsed(path / WEIGHTS, data)
    if (path / pair.FUSED).is_file():
        experts = _bytes(path / pair.FUSED)
        pair.check(path)
        tensors |= pair.expanded(path, _parsed(path / pair.FUSED, experts))
        data += experts
    return _whole(path / WEIGHTS, config, {_plain(name): tensor for name, tensor in tensors.items()}, data)


def _whole(file: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], data: bytes) -> Stored:
    if not tensors:
        raise BadData("lora.damaged", file=file, reason="-")
    digest = blake2b(data + json.dumps(config, sort_keys=True).encode(), digest_size=16).digest()
    return Stored(config, tensors, digest)


def _plain(name: str) -> str:
    name = _ADDED.sub("", name.removeprefix(PREFIX))
    return name.removeprefix("model.") if name.startswith("model.model.") else name


def _config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(_bytes(file))
    except ValueError as error:
        raise BadData("lora.damaged", file=file, reason=error) from None
    if not isinstance(config, dict) or not isinstance(config.get("peft_type"), str):
        raise BadData("lora.damaged", file=file, reason="peft_type")
    return config


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound("lora.none", folder=file.parent) from None
    except OSError as error:
        raise BadData("lora.damaged", file=file, reason=error.strerror or error) from None


def _parsed(file: Path, data: bytes) -> dict[str, torch.Tensor]:
    try:
        found: dict[str, torch.Tensor] = parse(data)
    except (SafetensorError, ValueError) as error:
        raise BadData("lora.damaged", file=file, reason=" ".join(str(error).split())) from None
    return found
