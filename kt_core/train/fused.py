"""KTransformers' pair of adapter files: additions to experts fused by layer, all others as PEFT has them.

`fused_expert_lora.safetensors` has six bfloat16 tensors for a layer, `layers.{L}.experts.{gate,up,down}_lora_{a,b}`, all experts in one:
a [experts, rank, in], b [experts, out, rank]. `kt_adapter_manifest.json` is written last; without it, or with another status
than ready, the pair is not whole.
"""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from kt_core.errors import BadData, Unsupported, UsageError
from kt_core.train import adapter, described

FUSED, MANIFEST = "fused_expert_lora.safetensors", "kt_adapter_manifest.json"
EXPERT = re.compile(r"(.*\.layers\.(\d+)\..*experts)\.(\d+)\.(gate|up|down)_proj\.lora_([AB])\.weight$")
NAME = re.compile(r"layers\.(\d+)\.experts\.(gate|up|down)_lora_([ab])$")
PREFIX = f"{adapter.PREFIX}model.layers."


def export(folder: Path, to: Path) -> None:
    """Write the adapter of `folder` as the pair into `to`, which must be new or empty.

    Raises UsageError for a folder in use, Unsupported for an adapter without additions to experts, and what reading raises.
    """
    if to.exists() and any(to.iterdir()):
        raise UsageError("train.folder_in_use", folder=to)
    config, _ = described.describe(folder)
    tensors = adapter.read(folder)
    matrices: dict[str, dict[int, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if found := EXPERT.match(name):
            _, layer, expert, part, side = found.groups()
            fused = f"layers.{layer}.experts.{part}_lora_{side.lower()}"
            matrices.setdefault(fused, {})[int(expert)] = tensor
    if not matrices:
        raise Unsupported("train.no_experts", folder=folder)
    fused_tensors = {
        name: torch.stack([by[i] for i in range(len(by))]).to(torch.bfloat16) for name, by in matrices.items()
    }
    others = {name: tensor for name, tensor in tensors.items() if not EXPERT.match(name)}
    partial = to.with_name(f"{to.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file(fused_tensors, partial / FUSED, {"format": "pt"})
    save_file(others, partial / described.WEIGHTS, {"format": "pt"})
    (partial / described.CONFIG).write_text(json.dumps(config, indent=2))
    names = (FUSED, described.WEIGHTS, described.CONFIG)
    manifest = {"version": 1, "status": "ready", "artifacts": {name: _stamp(partial / name) for name in names}}
    (partial / MANIFEST).write_text(json.dumps(manifest, indent=2))
    if to.exists():
        to.rmdir()
    partial.replace(to)


def read(folder: Path) -> dict[str, torch.Tensor]:
    """The pair's matrices under the names of an adapter of kt. Raises BadData for one that is not whole."""
    manifest = described.read_json(folder / MANIFEST)
    if manifest.get("status") != "ready":
        raise BadData("train.bad_adapter", file=folder / MANIFEST, reason=f"status: {manifest.get('status')}")
    for name, stamp in (manifest.get("artifacts") or {}).items():
        if (folder / name).is_file() and _stamp(folder / name) != stamp:
            raise BadData("train.bad_adapter", file=folder / name, reason="sha256")
    tensors: dict[str, torch.Tensor] = load_file(folder / described.WEIGHTS)
    for name, fused in load_file(folder / FUSED).items():
        found = NAME.search(name)
        if not found:
            raise BadData("train.bad_adapter", file=folder / FUSED, reason=name)
        layer, part, side = found.groups()
        for expert, matrix in enumerate(fused):
            tensors[f"{PREFIX}{layer}.mlp.experts.{expert}.{part}_proj.lora_{side.upper()}.weight"] = matrix
    return tensors


def _stamp(file: Path) -> dict[str, Any]:
    data = file.read_bytes()
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
