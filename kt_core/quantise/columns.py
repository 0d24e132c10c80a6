"""Rounding one column after another, what each one loses made good by those that are still to come: GPTQ's step.

The columns' Gram matrix H says what an error costs: e H e^T. With H^-1 = U^T U, U upper triangular, the error that is left of
column j is least when every later column k moves by -e_j U[j, k] / U[j, j]. Groups with large inputs come first, while there
are many columns that can still move; a group's scale is chosen when its turn comes, for where its columns have moved to.
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kt_core.quantise import rounding

Floats = npt.NDArray[np.float32]
# float32 [rows, group] and how much its columns count [1, group] -> scales and zero points [rows]
Search = Callable[[Floats, Floats], tuple[Floats, Floats]]

DAMPING = 0.01  # of the mean of H's diagonal is added to it: no column may move without bounds


class Curvature:
    """H of a weight's columns; `diagonal` [columns] is its diagonal in importance's words, with a mean of 1."""

    def __init__(self, gram: torch.Tensor, diagonal: Floats) -> None:
        self.diagonal = diagonal
        self._gram = gram
        self._known: dict[int, tuple[npt.NDArray[Any], Floats]] = {}
        self._lock = threading.Lock()

    def factored(self, group: int) -> tuple[npt.NDArray[Any], Floats]:
        """(columns in the order in which they are rounded, groups staying together; U for that order)."""
        with self._lock:
            if group not in self._known:
                order = _order(self.diagonal, group)
                self._known[group] = order, _factor(self._gram, order)
            return self._known[group]


def _order(diagonal: Floats, group: int) -> npt.NDArray[Any]:
    groups = diagonal.reshape(-1, group)
    inside = np.argsort(-groups, axis=1, kind="stable") + np.arange(len(groups))[:, None] * group
    found: npt.NDArray[Any] = inside[np.argsort(-groups.sum(1), kind="stable")].reshape(-1)
    return found


def _factor(gram: torch.Tensor, order: npt.NDArray[Any]) -> Floats:
    """U of H = U^-1 U^-T: the Cholesky factor from the far corner, inverted."""
    index, one, damping = torch.from_numpy(order), torch.eye(len(order)), DAMPING
    mean = float(gram.diagonal().mean())
    ordered = gram.float()[index][:, index] / mean if 0 < mean < np.inf else one
    while True:
        lower, failed = torch.linalg.cholesky_ex((ordered + damping * one).flip(0, 1))
        if not failed:
            factor: Floats = torch.linalg.solve_triangular(lower.flip(0, 1), one, upper=True).numpy()
            return factor
        damping *= 10


def rounded(
    values: Floats, group: int, search: Search, limits: tuple[int, int], known: Curvature
) -> tuple[npt.NDArray[np.int16], Floats, Floats]:
    """(integers [rows, columns], scales and zero points [rows, groups]) of weight = scale * (integer - zero point)."""
    rows, cols = values.shape
    order, factor = known.factored(group)
    left = np.ascontiguousarray(values.T[order])
    codes = np.empty((rows, cols), np.int16)
    scales, zeros = np.empty((2, rows, cols // group), np.float32)
    for first in range(0, cols, group):
        last, at = first + group, order[first] // group
        place = slice(at * group, (at + 1) * group)
        now = np.empty((rows, group), np.float32)
        now[:, order[first:last] - place.start] = left[first:last].T
        scales[:, at], zeros[:, at] = scale, zero = search(now, known.diagonal[None, place])
        part, lost = _group(left[first:last], scale, zero, limits, factor[first:last, first:last])
        codes[:, order[first:last]] = part.T
        left[last:] -= _product(factor[first:last, last:].T, lost)
    return codes, scales, zeros


def _group(
    left: Floats, scale: Floats, zero: Floats, limits: tuple[int, int], factor: Floats
) -> tuple[npt.NDArray[np.int16], Floats]:
    """Integers of a group's columns, and what each column lost, in the factor's measure."""
    inverse = rounding.divided(np.ones_like(scale), scale)
    codes, lost = np.empty(left.shape, np.int16), np.empty_like(left)
    for column, values in enumerate(left):
        q = np.clip(np.rint(values * inverse) + zero, *limits)
        codes[column], lost[column] = q, (values - scale * (q - zero)) / factor[column, column]
        left[column + 1 :] -= factor[column, column + 1 :, None] * lost[column]
    return codes, lost


def _product(a: Floats, b: Floats) -> Floats:
    found: Floats = torch.mm(torch.from_numpy(a), torch.from_numpy(b)).numpy()  # torch keeps to one thread here
    return found
