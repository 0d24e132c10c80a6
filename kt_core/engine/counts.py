"""How often experts were asked, in a file: what placement by frequency begins with."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from kt_core.errors import BadData
from kt_core.paths import state_dir

log = logging.getLogger(__name__)


def file_of(name: str) -> Path:
    """Where a model's counts are kept."""
    return state_dir() / "experts" / f"{name.replace('/', '--')}.pt"


def write(path: Path, layers: int, found: dict[str, Any]) -> None:
    """`found` as Engine.experts has it, of a model with so many layers, as {"logical_count": int64 [1, layers, experts]}; layers
    without experts have zeros. What an earlier run has counted there of the same layers stays as a stretch of its own, 16 at most.
    """
    width = max(map(len, found["asked"]), default=0)
    counts = torch.zeros(1, layers, width, dtype=torch.int64)
    for layer, asked in zip(found["layers"], found["asked"], strict=True):
        counts[0, layer, : len(asked)] = torch.tensor(asked)
    if not counts.any():
        return
    try:
        before = _stretches(path)[-15:] if path.exists() else counts[:0]
    except BadData:
        before = counts[:0]
    if before.shape[1:] == counts.shape[1:]:
        counts = torch.cat((before.to(torch.int64), counts))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    torch.save({"logical_count": counts}, part)
    part.replace(path)
    log.info("how often experts were asked is in %s", path)


def read(path: str, layers: Sequence[int], total: int, experts: int) -> torch.Tensor:
    """float64 [layers, experts] of the layers of these numbers, of a model with `total`: files count all of them, or those with
    experts alone. Raises BadData for a file of another kind or another model."""
    counts = _stretches(Path(path)).double().sum(0)
    if counts.shape == (total, experts):
        counts = counts[list(layers)]
    if counts.shape != (len(layers), experts):
        raise BadData("device.statistics", path=path, found=list(counts.shape), expected=[len(layers), experts])
    return counts


def _stretches(path: Path) -> torch.Tensor:
    """[stretches, layers, experts]"""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        counts: torch.Tensor = found["logical_count"] if isinstance(found, dict) else found
        if counts.dim() != 3:
            raise ValueError(f"it has {counts.dim()} dimensions")
    except Exception as e:  # whatever reading a file of another kind raises
        raise BadData("device.statistics_file", path=path, reason=f"{type(e).__name__}: {e}".splitlines()[0]) from e
    return counts
