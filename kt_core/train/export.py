"""An adapter written in other programs' forms: PEFT's folder, KTransformers' pair of files, SGLang's folder.

SGLang's, as KTransformers' converter makes it, is PEFT's without the prefix of names, all in one file, or additions to experts
and the others in one folder each.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from kt_core import lora
from kt_core.errors import Unsupported, UsageError
from kt_core.lora import pair
from kt_core.lora.folder import CONFIG, PREFIX, WEIGHTS
from kt_core.train import adapter
from kt_core.train.settings import EXPORTS, PARTS

Matrices = dict[str, tuple[torch.Tensor, torch.Tensor]]  # path -> A [rank, in] and B [out, rank]


def export(folder: Path, to: Path, form: str = "pair", part: str = "all") -> None:
    """Write the adapter of `folder`, whatever its form, as `form`, one of EXPORTS, into `to`, which must be new or empty; of PARTS
    that part alone.

    Raises UsageError for a folder in use, Unsupported for an adapter without what is asked for, and what reading raises.
    """
    assert form in EXPORTS and part in PARTS
    if to.exists() and any(to.iterdir()):
        raise UsageError("train.folder_in_use", folder=to)
    found = lora.read(folder)
    experts, others, config = _matrices(found)
    if (part == "experts" or (form == "pair" and part == "all")) and not experts:
        raise Unsupported("train.no_experts", folder=folder)
    if part == "others" and not others:
        raise Unsupported("train.no_others", folder=folder)
    experts, others = ({} if part == other else these for other, these in (("others", experts), ("experts", others)))
    config["target_modules"] = sorted({path.rpartition(".")[2] for path in (*experts, *others)})
    partial = to.with_name(f"{to.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / CONFIG).write_text(json.dumps(config, indent=2))
    if form == "pair":
        _write_pair(partial, experts, others)
    else:
        prefix = PREFIX if form == "peft" else ""
        save_file(_named(experts | others, prefix), partial / WEIGHTS, {"format": "pt"})
    if to.exists():
        to.rmdir()
    partial.replace(to)


def _matrices(found: lora.Adapter) -> tuple[Matrices, Matrices, dict[str, Any]]:
    """Those of experts and all others, of one rank and one factor of B A, and the configuration that says so: smaller ranks are
    filled with zeros, and where factors differ B has them."""
    paths = {f"{path}.{i}.{part}_proj": p for path, ps in found.experts.items() for (i, part), p in ps.items()}
    every = [*paths.values(), *found.linears.values()]
    rank, scales = adapter.rank_of(found), {p.scale for p in every}
    scale = scales.pop() if len(scales) == 1 else 1.0

    def whole(p: lora.Pair) -> tuple[torch.Tensor, torch.Tensor]:
        more = rank - p.a.shape[0]
        a = torch.nn.functional.pad(p.a, (0, 0, 0, more))
        return a, torch.nn.functional.pad(p.b * (p.scale / scale), (0, more))

    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": found.base or None, "r": rank,
        "lora_alpha": scale * rank, "lora_dropout": 0.0, "bias": "none", "inference_mode": True,
    }  # fmt: skip
    experts, others = ({path: whole(p) for path, p in ps.items()} for ps in (paths, found.linears))
    return experts, others, config


def _named(matrices: Matrices, prefix: str) -> dict[str, torch.Tensor]:
    sides = (("A", 0), ("B", 1))
    return {f"{prefix}{path}.lora_{s}.weight": ab[i].contiguous() for path, ab in matrices.items() for s, i in sides}


def _write_pair(folder: Path, experts: Matrices, others: Matrices) -> None:
    """The manifest comes last, with the sizes and hashes of the others."""
    layers: dict[str, dict[int, torch.Tensor]] = {}
    for path, (a, b) in experts.items():
        module, number, leaf = path.rsplit(".", 2)
        layer = module.split(".layers.")[1].split(".")[0]
        for side, matrix in (("a", a), ("b", b)):
            name = f"layers.{layer}.experts.{leaf.removesuffix('_proj')}_lora_{side}"
            layers.setdefault(name, {})[int(number)] = matrix
    stacked = {
        name: torch.stack([by.get(i, torch.zeros_like(by[max(by)])) for i in range(max(by) + 1)]).to(torch.bfloat16)
        for name, by in layers.items()
    }
    save_file(stacked, folder / pair.FUSED, {"format": "pt"})
    save_file(_named(others, PREFIX), folder / WEIGHTS, {"format": "pt"})
    stamps = {name: pair.stamp(folder / name) for name in (pair.FUSED, WEIGHTS, CONFIG)}
    manifest = {"version": 1, "status": "ready", "artifacts": stamps}
    (folder / pair.MANIFEST).write_text(json.dumps(manifest, indent=2))
