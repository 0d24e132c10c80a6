"""KTransformers' pair of adapter files: additions to experts fused by layer, all others as PEFT has them.

`fused_expert_lora.safetensors` has six bfloat16 tensors for a layer, `layers.{L}.experts.{gate,up,down}_lora_{a,b}`, all experts in one:
a [experts, rank, in], b [experts, out, rank]. `kt_adapter_manifest.json` is written last; without it, or with another status
than ready, the pair is not whole.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import torch

from kt_core.errors import BadData

FUSED, MANIFEST = "fused_expert_lora.safetensors", "kt_adapter_manifest.json"
_NAME = re.compile(r"layers\.(\d+)\.experts\.(gate|up|down)_lora_([ab])$")


def check(folder: Path) -> None:
    """Raises BadData for a pair that is not whole."""
    file = folder / MANIFEST
    try:
        manifest: Any = json.loads(file.read_bytes()) if file.is_file() else {}
    except ValueError as error:
        raise BadData("lora.damaged", file=file, reason=error) from None
    if not isinstance(manifest, dict) or manifest.get("status") != "ready":
        status = manifest.get("status") if isinstance(manifest, dict) else type(manifest).__name__
        raise BadData("lora.damaged", file=file, reason=f"status: {status}")
    for name, known in (manifest.get("artifacts") or {}).items():
        if (folder / name).is_file() and stamp(folder / name) != known:
            raise BadData("lora.damaged", file=folder / name, reason="sha256")


def expanded(folder: Path, fused: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The fused file's matrices, each expert's under a name of its own. Raises BadData."""
    tensors = {}
    for name, stack in fused.items():
        found = _NAME.search(name)
        if not found or stack.dim() != 3:
            raise BadData("lora.damaged", file=folder / FUSED, reason=name)
        layer, part, side = found.groups()
        for expert, matrix in enumerate(stack):
            tensors[f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.lora_{side.upper()}.weight"] = matrix
    return tensors


def stamp(file: Path) -> dict[str, Any]:
    """Of a file, as the manifest has it."""
    data = file.read_bytes()
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
