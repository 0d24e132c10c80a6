"""A base model and an adapter as one checkpoint."""

import re
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kt_core import models
from kt_core.engine.loader import build
from kt_core.engine.tokenizer import load_tokenizer
from kt_core.errors import BadData, UsageError
from kt_core.train import adapter, described, fused
from kt_core.types import Progress
from kt_core.weights import open_weights

PLAIN = Path(__file__).with_name("plain.yaml")
EXPERT = re.compile(r"(.+)\.(\d+)\.(gate|up|down)_proj$")


def merge(base: str, folder: Path, to: Path, progress: Progress) -> Path:
    """Write base + adapter to the folder `to`, which must not be there or be empty, as a checkpoint that transformers
    loads, in the base's own float type (bfloat16 for a quantised one).

    Raises what opening both raises, UsageError for a folder in use, BadData for an adapter of another model.
    """
    if to.exists() and any(to.iterdir()):
        raise UsageError("train.folder_in_use", folder=to)
    config, facts = described.describe(folder)
    tensors = fused.read(folder) if (folder / fused.FUSED).is_file() else adapter.read(folder)
    files = models.resolve(base)
    weights = open_weights(files)
    known = facts.get("base_fingerprint")
    if known and known != adapter.fingerprint(weights):
        raise BadData("train.other_base", base=base, made_from=config.get("base_model_name_or_path"))
    dtype = _dtype(weights.config())
    model = build(weights, progress, PLAIN)
    add(model, tensors, scale(config))
    partial = to.with_name(f"{to.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.to(dtype).save_pretrained(partial)
    load_tokenizer(files).save_pretrained(partial)
    partial.replace(to)
    return to


def scale(config: dict[str, Any]) -> float:
    """The factor of B A that an adapter_config.json asks for."""
    rank = int(config["r"])
    return float(config.get("lora_alpha", rank)) / (rank**0.5 if config.get("use_rslora") else rank)


def add(model: nn.Module, tensors: dict[str, torch.Tensor], factor: float) -> None:
    """Add factor B A to the weights of a transformers model. Raises BadData for a name that it has not."""
    for name in sorted(n for n in tensors if n.endswith(".lora_A.weight")):
        path = name.removeprefix(adapter.PREFIX).removesuffix(".lora_A.weight")
        a = tensors[name].float()
        b = tensors[name.replace(".lora_A.", ".lora_B.")].float()
        try:
            found = EXPERT.match(path)
            weight = _expert(model, *found.groups()) if found else model.get_submodule(path).weight.data
            weight += (factor * (b @ a)).to(weight.dtype)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError) as error:
            raise BadData("train.adapter_names", folder=path, count=1, first=name) from error


def _expert(model: nn.Module, path: str, index: str, part: str) -> torch.Tensor:
    """The [out, in] weight of one expert's projection, as a view of the fused parameter."""
    experts: Any = model.get_submodule(path)
    if part == "down" or not experts.has_gate:
        fused = experts.down_proj if part == "down" else experts.up_proj
        weight = fused.data[int(index)]
        return weight.T if experts.is_transposed else weight
    both = experts.gate_up_proj.data[int(index)]
    both = both.T if experts.is_transposed else both
    which = ("gate", "up").index(part)
    rows: torch.Tensor = both.chunk(2)[which] if experts.is_concatenated else both[which::2]
    return rows


def _dtype(config: dict[str, Any]) -> torch.dtype:
    name = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    return {"float32": torch.float32, "float16": torch.float16}.get(name, torch.bfloat16)
