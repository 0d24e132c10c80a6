"""How much an error of each column of a weight counts: the mean square of what the column is multiplied with in a text.

A routed expert's figure is of the rows that were sent to it, each weighed by its router's weight. An expert that the text
hardly uses has few of them: the layer's mean counts as FEW rows more.
"""

import bisect
import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kt_core import paths
from kt_core.engine.loader import build
from kt_core.engine.tokenizer import load_tokenizer
from kt_core.errors import UsageError
from kt_core.formats import gguf
from kt_core.kernels import reference
from kt_core.operators.experts import Experts, gating
from kt_core.operators.linear import Linear
from kt_core.types import ModelFiles, Progress
from kt_core.weights import Matrix, Weights, decode_matrix, open_weights

Floats = npt.NDArray[np.float32]
# (operator, its checkpoint, what it is called with)
Heard = Callable[[Linear | Experts, Weights, tuple[torch.Tensor, ...]], None]

TOKENS = 8192  # of the text, at most
WINDOW = 512  # tokens that see each other
FEW = 32.0
LEAST = 0.02  # of the mean: no column may be rounded to anything at all
KEPT = 8  # files of statistics in the cache


class Importance:
    """Vectors by place: where in the checkpoint a weight's rows begin, see `kt_core.weights.names.Rows.place`."""

    def __init__(self, vectors: dict[str, Floats]) -> None:
        self._vectors = vectors
        self._firsts: dict[str, list[int]] = {}
        for place in vectors:
            tensor, first, *columns = place.rsplit(":")
            if not columns:
                self._firsts.setdefault(tensor, []).append(int(first))
        for firsts in self._firsts.values():
            firsts.sort()

    def find(self, place: str, row: int) -> Floats | None:
        """float32 [columns] with a mean of 1 for a weight at `place`, or, where that is a whole tensor's name, for its row
        `row`. None where nothing is known."""
        if place in self._vectors:
            return self._vectors[place]
        firsts = self._firsts.get(place, [])
        at = bisect.bisect(firsts, row) - 1
        return self._vectors[f"{place}:{firsts[at]}"] if at >= 0 else None


def of(files: ModelFiles, identity: str, text: Path, threads: int, progress: Progress) -> Importance:
    """The statistics of a text; what was collected of this model and text before is read from the cache.

    The whole model is loaded for it. Raises UsageError for a text without tokens, and what loading a model raises.
    """
    content = paths.content(text)
    folder = paths.cache_dir() / "importance"
    path = folder / f"{hashlib.sha256(identity.encode() + content).hexdigest()}.npz"
    try:
        with np.load(path) as stored:
            return Importance({name: stored[name] for name in stored.files})
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error):
        pass  # not there, or not whole
    vectors = collect(files, content.decode("utf-8-sig", "replace"), threads, progress)
    folder.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.part")
    with beside.open("wb") as file:
        np.savez(file, **vectors)  # type: ignore[arg-type]
        os.fsync(file.fileno())
    beside.replace(path)
    for old in sorted(folder.glob("*.npz"), key=lambda file: file.stat().st_mtime)[:-KEPT]:
        old.unlink(missing_ok=True)
    return Importance(vectors)


def collect(files: ModelFiles, text: str, threads: int, progress: Progress) -> dict[str, Floats]:
    """Place -> float32 [columns] with a mean of 1, of every linear layer and expert that kt computes."""
    sums: dict[str, Floats] = {}

    def heard(module: Linear | Experts, weights: Weights, args: tuple[torch.Tensor, ...]) -> None:
        if isinstance(module, Experts):
            sums.update(_experts(module, weights, *args))
        else:
            sums[weights.place(f"{module.key}.weight")] = scaled(_square(args[0]).flatten(0, -2).mean(0).numpy())

    listen(files, text, threads, progress, heard)
    return sums


def listen(files: ModelFiles, text: str, threads: int, progress: Progress, heard: Heard) -> None:
    """Run the text through the model; `heard` is told what goes into each linear layer and expert layer that kt computes.

    Raises UsageError for a text without tokens.
    """
    header = gguf.read_model(files.path) if files.format == "gguf" else None
    ids = load_tokenizer(files, header).encode(text[: 16 * TOKENS], add_special_tokens=False)[:TOKENS]
    if not ids:
        raise UsageError("quantise.no_text", model=files.name)
    window = min(WINDOW, len(ids))
    rows = torch.tensor(ids[: len(ids) // window * window]).view(-1, window)
    torch.set_num_threads(threads)
    weights = open_weights(files, header)
    model = build(weights, progress)
    operators = [module for module in model.modules() if isinstance(module, Linear | Experts)]
    seen = 0

    def told(module: Any, args: tuple[torch.Tensor, ...]) -> None:
        nonlocal seen
        heard(module, weights, args)
        seen += 1
        progress("importance", min(seen, len(operators)), len(operators), "modules")

    handles = [operator.register_forward_pre_hook(told) for operator in operators]
    try:
        with torch.no_grad():
            model.base_model(input_ids=rows, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()


def _experts(
    module: Experts, weights: Weights, x: torch.Tensor, ids: torch.Tensor, weigh: torch.Tensor
) -> dict[str, Floats]:
    """Vectors of every expert's gate, up and down. x [T, hidden], ids and weigh [T, K]."""
    inside, within, counts = [], [], []
    for index in range(module.num_experts):
        token, slot = torch.where(ids == index)
        given, share = x[token].float(), weigh[token, slot].float().square()[:, None]
        counts.append(len(token))
        inside.append((_square(given) * share).sum(0).numpy())
        within.append((_square(hidden(module, weights, index, given)) * share).sum(0).numpy())
    found = {}
    for index, (gates, downs) in enumerate(zip(_filled(inside, counts), _filled(within, counts), strict=True)):
        for part in ("gate", "up") if module.orig_module.has_gate else ("up",):
            found[weights.expert_place(module.key, index, part)] = gates
        found[weights.expert_place(module.key, index, "down")] = downs
    return found


def hidden(module: Experts, weights: Weights, index: int, x: torch.Tensor) -> torch.Tensor:
    """float32 [rows, intermediate]: what an expert's down projection is given. Biases are left out."""

    def product(part: str) -> npt.NDArray[np.float64]:
        matrix: Matrix = weights.expert(module.key, index, part)
        found: npt.NDArray[np.float64] = (x @ torch.from_numpy(decode_matrix(matrix)).T).double().numpy()
        return found

    if not len(x):
        return torch.zeros(0, weights.expert(module.key, index, "down").cols)
    up = product("up")
    gate = product("gate") if module.orig_module.has_gate else up
    return torch.from_numpy(reference.hidden(gate, up, *gating(module.orig_module))).float()


def _filled(sums: list[Floats], counts: list[int]) -> Iterator[Floats]:
    """Each expert's mean, with FEW rows of the layer's mean."""
    mean = np.sum(sums, axis=0) / max(1, sum(counts))
    for sum_, count in zip(sums, counts, strict=True):
        yield scaled(((sum_ + FEW * mean) / (count + FEW)).astype(np.float32))


def _square(x: torch.Tensor) -> torch.Tensor:
    return x.detach().float().square()


def scaled(means: Floats) -> Floats:
    """With a mean of 1, none far below it; all 1 where everything is 0."""
    mean = float(means.mean())
    if not 0 < mean < np.inf:
        return np.ones_like(means)
    found: Floats = np.maximum(means / np.float32(mean), np.float32(LEAST))
    return found
