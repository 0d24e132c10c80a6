"""What a text puts into each weight, kept on the disk while a job runs, and the curvature that columns.py rounds with.

An expert has the rows that were sent to it, each weighed by its router's weight. Few rows say little about many columns: the
layer's mean counts as FEW rows more, here more than for importance, since directions without any row would cost nothing.
"""

import hashlib
import json
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kt_core.errors import KTError
from kt_core.operators.experts import Experts
from kt_core.operators.linear import Linear
from kt_core.quantise.columns import Curvature
from kt_core.quantise.importance import hidden, listen, scaled
from kt_core.quantise.job import INPUTS
from kt_core.types import ModelFiles, Progress
from kt_core.weights import Weights

FEW = 64.0
AT_ONCE = 4096  # rows of a product, as float32


@dataclass(frozen=True)
class Rows:
    """A weight's inputs: bfloat16 rows of a file, weighed; of an expert a part of those of its layer."""

    file: str
    columns: int
    first: int = 0
    count: int = -1  # -1: all
    picked: str = ""  # file of the rows' numbers; "": they lie in their order
    shares: str = ""  # file of the rows' weights

    @property
    def layer(self) -> "Rows":
        return Rows(self.file, self.columns, 0, -1, self.picked, self.shares)


@dataclass
class Inputs:
    """Inputs by place (see `kt_core.weights.names.Rows.place`). Threads may ask at once: each curvature is computed once."""

    folder: Path
    places: dict[str, Rows]
    kept: int  # curvatures in memory at a time
    _known: "OrderedDict[Rows, Future[Any]]" = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, place: str, row: int) -> Curvature | None:
        rows = self.places.get(place) or self.places.get(f"{place}:0")
        if rows is None:
            return None
        found: Curvature = self._once(rows, lambda: self._curvature(rows))
        return found

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _once(self, key: Rows, make: Callable[[], Any]) -> Any:
        with self._lock:
            future = self._known.get(key)
            mine = future is None
            if future is None:
                future = self._known[key] = Future()
            self._known.move_to_end(key)
            while len(self._known) > self.kept:
                self._known.popitem(last=False)
        if mine:
            try:
                future.set_result(make())
            except BaseException as error:
                future.set_exception(error)
        return future.result()

    def _curvature(self, rows: Rows) -> Curvature:
        gram, count = self._gram(rows)
        if rows.count >= 0:
            whole, all_rows = self._once(rows.layer, lambda: self._gram(rows.layer))
            gram = (gram + whole * (FEW / max(1, all_rows))) / (count + FEW)
        return Curvature(gram, scaled(gram.diagonal().numpy()))

    def _opened(self, name: str) -> Any:
        """One at a time: the header goes through Python's parser, whose count of its depth threads of 3.11 share."""
        with self._lock:
            return np.load(self.folder / name, mmap_mode="r")

    def _gram(self, rows: Rows) -> tuple[torch.Tensor, int]:
        """The sum of x^T x, and over how many rows."""
        values = self._opened(rows.file)
        count = len(values) if rows.count < 0 and not rows.picked else rows.count
        if rows.picked:
            picked = self._opened(rows.picked)
            count = len(picked) if rows.count < 0 else rows.count
        shares = self._opened(rows.shares) if rows.shares else None
        found = torch.zeros(rows.columns, rows.columns)
        for begin in range(rows.first, rows.first + count, AT_ONCE):
            window = slice(begin, min(begin + AT_ONCE, rows.first + count))
            some = values[picked[window]] if rows.picked else values[window]
            x = torch.from_numpy(np.array(some)).view(torch.bfloat16).float()
            if shares is not None:
                x *= torch.from_numpy(np.array(shares[window]))[:, None]
            found.addmm_(x.T, x)
        return found, count


def of(files: ModelFiles, identity: str, text: Path, folder: Path, threads: int, progress: Progress) -> Inputs:
    """The inputs that a text gives, in `folder`; what a killed job left there is taken up.

    The whole model is loaded for it. Raises UsageError for a text without tokens, KTError when the disk refuses, and what
    loading a model raises.
    """
    content = text.read_bytes()
    wanted = hashlib.sha256(identity.encode() + content).hexdigest()
    try:
        known = json.loads((folder / INPUTS).read_text(encoding="utf-8"))
        if known["of"] != wanted:
            raise ValueError(wanted)
    except (OSError, ValueError, KeyError):
        known = _collected(files, content.decode("utf-8-sig", "replace"), folder, wanted, threads, progress)
    torch.set_num_threads(1)  # the job's threads work beside each other; and one thread's sums have one order
    places = {place: Rows(**rows) for place, rows in known["places"].items()}
    return Inputs(folder, places, 2 * threads + 4)


def _collected(
    files: ModelFiles, text: str, folder: Path, wanted: str, threads: int, progress: Progress
) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        writer = _Writer(folder)
        listen(files, text, threads, progress, writer.heard)
        content = {"of": wanted, "places": {place: vars(rows) for place, rows in writer.places.items()}}
        (folder / INPUTS).write_text(json.dumps(content), encoding="utf-8")
    except OSError as error:
        raise KTError("quantise.disk", folder=folder, reason=error.strerror or error) from error
    except KTError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return content


class _Writer:
    """Writes what operators are given, once for those that are given the same."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places: dict[str, Rows] = {}
        self._last: tuple[torch.Tensor | None, str] = (None, "")

    def heard(self, module: Linear | Experts, weights: Weights, args: tuple[torch.Tensor, ...]) -> None:
        if isinstance(module, Experts):
            self._experts(module, weights, *args)
        else:
            self.places[weights.place(f"{module.key}.weight")] = Rows(self._input(args[0]), args[0].shape[-1])

    def _input(self, x: torch.Tensor) -> str:
        last, name = self._last
        if last is not x:
            name = self._numbers(x.flatten(0, -2))
            self._last = x, name
        return name

    def _numbers(self, x: torch.Tensor) -> str:
        return self._save(x.detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy())

    def _save(self, values: np.ndarray[Any, Any]) -> str:
        name = f"{len(list(self.folder.iterdir())):06}.npy"
        np.save(self.folder / name, values)
        return name

    def _experts(
        self, module: Experts, weights: Weights, x: torch.Tensor, ids: torch.Tensor, weigh: torch.Tensor
    ) -> None:
        tokens, shares, within, counts = [], [], [], []
        for index in range(module.num_experts):
            token, slot = torch.where(ids == index)
            tokens.append(token)
            shares.append(weigh[token, slot].float())
            within.append(hidden(module, weights, index, x[token].float()).to(torch.bfloat16))
            counts.append(len(token))
        given, made = self._numbers(x), self._numbers(torch.cat(within))
        picked, weighed = self._save(torch.cat(tokens).numpy()), self._save(torch.cat(shares).numpy())
        first = 0
        for index, count in enumerate(counts):
            for part in ("gate", "up") if module.orig_module.has_gate else ("up",):
                place = weights.expert_place(module.key, index, part)
                self.places[place] = Rows(given, x.shape[-1], first, count, picked, weighed)
            place = weights.expert_place(module.key, index, "down")
            self.places[place] = Rows(made, within[index].shape[-1], first, count, "", weighed)
            first += count
