"""Random adapters for transformers models, as PEFT writes them, and the models with them merged in float32."""

import copy
import json
import re

import torch
from safetensors.torch import save_file
from torch import nn

PARTS = ("gate", "up", "down")


def targets(model):
    """path -> (out, in) of what can be adapted: linear layers but the head, and experts' projections."""
    head, found = model.get_output_embeddings(), {}
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear) and module is not head:
            found[path] = tuple(module.weight.shape)
        elif path.endswith(".experts") and hasattr(module, "gate_up_proj"):
            for index in range(module.num_experts):
                for part in PARTS:
                    found[f"{path}.{index}.{part}_proj"] = tuple(_expert(module, index, part).shape)
    return found


def save(folder, shapes, seed, rank=3, alpha=6.0, size=0.3, **config):
    """An adapter of those shapes in `folder`; returns path -> the change of its weight, B A alpha / rank."""
    torch.manual_seed(seed)
    tensors, changes = {}, {}
    for path, (rows, cols) in shapes.items():
        # Values that bfloat16 has: experts keep the factors in it.
        a = (torch.randn(rank, cols) / cols**0.5).bfloat16().float()
        b = (torch.randn(rows, rank) * size / rank**0.5).bfloat16().float()
        tensors[f"base_model.model.{path}.lora_A.weight"], tensors[f"base_model.model.{path}.lora_B.weight"] = a, b
        changes[path] = alpha / rank * b @ a
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    described = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": ["x"], **config}
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return changes


def merged(model, changes):
    """A copy with the changes in its weights."""
    new = copy.deepcopy(model)
    with torch.no_grad():
        for path, change in changes.items():
            if match := re.fullmatch(r"(.+)\.(\d+)\.(gate|up|down)_proj", path):
                _expert(new.get_submodule(match[1]), int(match[2]), match[3]).add_(change)
            else:
                new.get_submodule(path).weight.add_(change)
    return new


def _expert(module, index, part):
    """The [out, in] weight, as a view."""
    if part == "down":
        return module.down_proj.data[index]
    return module.gate_up_proj.data[index].chunk(2)[("gate", "up").index(part)]
