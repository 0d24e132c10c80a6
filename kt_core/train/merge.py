"""A base model and an adapter as one checkpoint."""

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kt_core import lora, models
from kt_core.engine.loader import skeleton
from kt_core.engine.tokenizer import load_tokenizer
from kt_core.errors import BadData, UsageError
from kt_core.train import adapter, checkpoint, described
from kt_core.types import Progress
from kt_core.weights import open_weights


def merge(base: str, folder: Path, to: Path, progress: Progress) -> Path:
    """Write base + adapter to the folder `to`, which must not be there or be empty, as a checkpoint that transformers
    loads, in the base's own float type (bfloat16 for a quantised one). A layer is in memory at a time.

    Raises what opening both raises, UsageError for a folder in use, BadData for an adapter of another model.
    """
    if to.exists() and any(to.iterdir()):
        raise UsageError("train.folder_in_use", folder=to)
    added = lora.read(folder)
    facts = described.facts(folder)
    files = models.resolve(base)
    weights = open_weights(files)
    known = facts.get("base_fingerprint")
    if known and known != adapter.fingerprint(weights):
        raise BadData("train.other_base", base=base, made_from=added.base or "-")
    model = skeleton(weights)
    dtype, empty = checkpoint.dtype_of(weights.config()), model.state_dict()
    places = _by_parameter(model, added)
    listed = checkpoint.names(model)
    done = 0

    def tensor(name: str) -> torch.Tensor:
        nonlocal done
        progress("weights", done, len(listed), "tensors")
        done += 1
        floats = empty[name].is_floating_point()
        whole = weights.tensor(name, dtype if floats else empty[name].dtype)
        module = model.get_submodule(name.rpartition(".")[0])
        for path, place, pair in places.get(name, ()):
            view = _expert(whole, module, *place) if place else whole
            if view.shape != (pair.b.shape[0], pair.a.shape[1]):
                raise BadData("train.adapter_names", folder=folder, count=1, first=path)
            view.copy_(view.float() + pair.scale * (pair.b @ pair.a))
        weights.forget_pages()
        return whole

    partial = to.with_name(f"{to.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    checkpoint.write(model, listed, tensor, partial, dtype)
    load_tokenizer(files).save_pretrained(partial)
    if to.exists():
        to.rmdir()
    partial.replace(to)
    return to


Place = tuple[int, str]  # an expert and its projection


def _by_parameter(model: nn.Module, added: lora.Adapter) -> dict[str, list[tuple[str, Place | None, lora.Pair]]]:
    """What is added to each parameter: the adapter's path of it, where in fused experts it belongs, and the pair. Raises BadData for
    a path that the model lacks."""
    known = model.state_dict().keys()
    found: dict[str, list[tuple[str, Place | None, lora.Pair]]] = {}
    for path, pair in added.linears.items():
        found.setdefault(f"{path}.weight", []).append((path, None, pair))
    for path, pairs in added.experts.items():
        for (expert, part), pair in sorted(pairs.items()):
            names = ("down_proj",) if part == "down" else ("gate_up_proj", "up_proj")
            name = next((n for leaf in names if (n := f"{path}.{leaf}") in known), path)
            found.setdefault(name, []).append((f"{path}.{expert}.{part}_proj", (expert, part), pair))
    odd = sorted(places[0][0] for name, places in found.items() if name not in known)
    if odd:
        raise BadData("train.adapter_names", folder=added.folder, count=len(odd), first=odd[0])
    return found


def _expert(whole: torch.Tensor, experts: Any, index: int, part: str) -> torch.Tensor:
    """The [out, in] weight of one expert's projection, as a view of the fused parameter. Raises BadData."""
    if index >= len(whole):
        raise BadData("train.adapter_names", folder=part, count=1, first=str(index))
    matrix = whole[index].T if experts.is_transposed else whole[index]
    if part == "down" or not experts.has_gate:
        return matrix
    which = ("gate", "up").index(part)
    rows: torch.Tensor = matrix.chunk(2)[which] if experts.is_concatenated else matrix[which::2]
    return rows
