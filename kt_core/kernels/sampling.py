"""The choice of a token from its logits: rows of float32 numbers as numpy has them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kt_core.kernels.native import load
from kt_core.types import Sampling

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


def choose(rows: Sequence[tuple[Floats, Sampling, float]], tier: str | None = None) -> list[tuple[int, float]]:
    """Of each row the token and the largest logit; where that is NaN or infinite the token means nothing.

    A row is logits [vocab], of which only temperature, top_k, top_p, min_p and typical_p are used, and a number in [0, 1), at which the distribution is inverted: a row's
    token depends on nothing else. All rows are of one length. Raises ValueError for other shapes or types.
    """
    if not rows:
        return []
    count = rows[0][0].size
    native = [(_address(logits, count), _how(sampling), uniform) for logits, sampling, uniform in rows]
    chosen: list[tuple[int, float]] = load().choose(native, count, tier or "")
    return chosen


def candidates(logits: Floats, sampling: Sampling, tier: str | None = None) -> tuple[Ids, Floats]:
    """(ids [n], weights [n]) that a token is drawn from at a temperature above 0, in the order in which their weights, which
    are in proportion to probabilities, are added up; none where the largest logit is not finite."""
    ids, weights = np.empty(logits.size, np.int64), np.empty(logits.size, np.float32)
    places = (ids.ctypes.data, weights.ctypes.data)
    left = load().candidates(_address(logits, logits.size), logits.size, _how(sampling), *places, tier or "")
    return ids[:left], weights[:left]


def largest(values: Floats, k: int, tier: str | None = None) -> Ids:
    """Ids of the k largest, largest first, without those that are -inf; of equal ones the lower id comes first."""
    ids = np.empty(min(k, values.size), np.int64)
    found = load().largest(_address(values, values.size), values.size, len(ids), ids.ctypes.data, tier or "")
    return ids[:found]


def log_total(logits: Floats, tier: str | None = None) -> float:
    """log(sum(exp(logits))), to 1e-6."""
    return float(load().log_total(_address(logits, logits.size), logits.size, tier or ""))


def _how(sampling: Sampling) -> tuple[float, int, float, float, float]:
    return (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.typical_p)


def _address(values: Any, count: int) -> int:
    if values.dtype != np.float32 or values.shape != (count,) or not values.flags.c_contiguous:
        raise ValueError(f"expected adjacent float32 [{count}], got {values.shape} of {values.dtype}")
    address: int = values.ctypes.data
    return address
