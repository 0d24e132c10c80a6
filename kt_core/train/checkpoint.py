"""Complete checkpoints that transformers loads as they are, written part by part.

A layer is in memory at a time, and, while experts that are fused become single ones, a second time.
"""

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5 << 30  # a file has at most this, or one layer
LAYER = re.compile(r"(.*\.layers\.\d+)\.")


def names(model: PreTrainedModel) -> list[str]:
    """Every stored tensor of a model as transformers calls it, those of a layer one after the other; tied ones once.

    Of a skeleton: operators of kt have other parameters.
    """
    tied = model.all_tied_weights_keys or {}
    return [name for name in model.state_dict() if name not in tied]


def write(
    model: PreTrainedModel,
    listed: list[str],
    tensor: Callable[[str], torch.Tensor],
    folder: Path,
    dtype: torch.dtype,
) -> None:
    """Write weights and configuration into `folder`, which is there. `tensor` makes each weight when its turn comes."""
    files: list[Path] = []
    places: dict[str, int] = {}
    waiting: dict[str, torch.Tensor] = {}
    total = 0

    def flush() -> None:
        nonlocal waiting
        files.append(folder / f"part-{len(files) + 1}.safetensors")
        save_file(waiting, files[-1], {"format": "pt"})
        places.update(dict.fromkeys(waiting, len(files)))
        waiting = {}

    for group in _groups(listed):
        part = {name: tensor(name) for name in group}
        part = {name: t.to(dtype) if t.is_floating_point() and t.dtype != dtype else t for name, t in part.items()}
        part = {name: t.contiguous() for name, t in revert_weight_conversion(model, part).items()}
        size = sum(t.nbytes for t in part.values())
        total += size
        if waiting and size + sum(t.nbytes for t in waiting.values()) > SHARD_BYTES:
            flush()
        waiting |= _apart(part)
    flush()
    _name(folder, files, places, total)
    _describe(model, folder, dtype)


def _groups(listed: list[str]) -> Iterator[list[str]]:
    """Names of each layer, and of what lies before, between and behind them."""
    group: list[str] = []
    last = None
    for name in listed:
        layer = LAYER.match(name)
        key = layer[1] if layer else None
        if group and key != last:
            yield group
            group = []
        group.append(name)
        last = key
    if group:
        yield group


def _apart(part: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors that share memory as copies: a file holds each of them whole."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in part.items():
        at = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if at in seen else tensor
        seen.add(at)
    return apart


def _name(folder: Path, files: list[Path], places: dict[str, int], total: int) -> None:
    if len(files) == 1:
        files[0].replace(folder / "model.safetensors")
        return
    called = [f"model-{i:05}-of-{len(files):05}.safetensors" for i in range(1, len(files) + 1)]
    for file, name in zip(files, called, strict=True):
        file.replace(folder / name)
    index = {
        "metadata": {"total_size": total},
        "weight_map": {name: called[place - 1] for name, place in sorted(places.items())},
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2))


def _describe(model: PreTrainedModel, folder: Path, dtype: torch.dtype) -> None:
    config: Any = copy.deepcopy(model.config)
    config.dtype = dtype
    config.architectures = [type(model).__name__]
    config.use_cache = True
    config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)


def dtype_of(config: dict[str, Any]) -> torch.dtype:
    """The float type that a checkpoint of this configuration is written in: its own, bfloat16 for a quantised one."""
    name = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    return {"float32": torch.float32, "float16": torch.float16}.get(name, torch.bfloat16)
