"""Grids that weights are rounded to: scales of groups with a small error, and the integers that go with them.

Groups are rows: `x` is float32 [n, group] of at most 128 adjacent weights each. `importance` is float32 [columns / group, group],
how much an error of each of a matrix's columns counts, one after another for its rows; None where all count alike.
Every tier finds the same bits, and so does every thread: nothing is shared, and Python's lock is not held.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kt_core.kernels.native import load

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def symmetric(
    x: Floats, levels: int, rounding: str = "", importance: Floats | None = None, tier: str | None = None
) -> tuple[Floats, Bytes]:
    """(scales [n], integers + levels [n, group]) of weight = scale * integer, integers from -levels to levels - 1.

    A scale may be negative, so that the largest weight finds the side with one integer more. `rounding` is what scales are
    rounded to: bf16, f16, or "" for nothing.
    """
    scales, _, codes = _search(x, ("symmetric", rounding, levels, False), importance, tier)
    return scales, codes


def with_zero_point(
    x: Floats, top: int, rounding: str = "", importance: Floats | None = None, tier: str | None = None
) -> tuple[Floats, Floats, Bytes]:
    """(scales [n], zero points [n], integers 0 ... top [n, group]) of weight = scale * (integer - zero point)."""
    return _search(x, ("zero_point", rounding, top, False), importance, tier)


def affine(
    x: Floats,
    top: int,
    rounding: str = "",
    importance: Floats | None = None,
    below_zero: bool = False,
    tier: str | None = None,
) -> tuple[Floats, Floats, Bytes]:
    """(scales [n], minimums [n], integers 0 ... top [n, group]) of weight = scale * integer + minimum.

    With below_zero no minimum is above 0, which formats that store it as a quantity to subtract need.
    """
    return _search(x, ("affine", rounding, top, below_zero), importance, tier)


def uneven(x: Floats, importance: Floats | None = None, tier: str | None = None) -> tuple[Floats, Floats, Bytes]:
    """(scales [n], shifts [n], indices 0 ... 15 [n, group]) of weight = scale * (step[index] + shift) with IQ4_K's sixteen uneven
    steps; a shift is 0 or 4."""
    return _search(x, ("uneven", "", 15, False), importance, tier)


def scales(
    grid: str,
    x: Floats,
    levels: int,
    importance: Floats | None = None,
    below_zero: bool = False,
    tier: str | None = None,
) -> tuple[Floats, Floats]:
    """(scales [n], offsets [n]) that "symmetric", "affine" or "uneven" finds, without the integers: for formats that round
    scales once more, and take the nearest integers of what they became."""
    found = _search(x, (grid, "", levels, below_zero), importance, tier, codes=False)
    return found[:2]


def nearest_uneven(x: Floats, scales: Floats, shifts: Floats, tier: str | None = None) -> Bytes:
    """indices 0 ... 15 [n, group], the nearest for scales and shifts [n] that are there."""
    return _nearest(x, scales, shifts, ("uneven", "", 15, False), tier)


def nearest_symmetric(x: Floats, scales: Floats, levels: int, tier: str | None = None) -> Bytes:
    """integers + levels [n, group], the nearest for scales [n] that are there."""
    return _nearest(x, scales, scales, ("symmetric", "", levels, False), tier)


def nearest_affine(x: Floats, scales: Floats, minimums: Floats, top: int, tier: str | None = None) -> Bytes:
    """integers 0 ... top [n, group], the nearest for scales and minimums [n] that are there."""
    return _nearest(x, scales, minimums, ("affine", "", top, False), tier)


def _search(
    x: Floats, form: tuple[str, str, int, bool], importance: Floats | None, tier: str | None, codes: bool = True
) -> tuple[Floats, Floats, Bytes]:
    count, group = x.shape
    scales, offsets = np.empty(count, np.float32), np.empty(count, np.float32)
    found = np.empty((count if codes else 0, group), np.uint8)
    if importance is not None and importance.shape[1:] != (group,):
        raise ValueError(f"expected importance of groups of {group}, got {importance.shape}")
    weights, period = (0, 1) if importance is None else (_address(importance), len(importance))
    places = (_address(x), weights, _address(scales), _address(offsets), _address(found) if codes else 0)
    load().search_grids((count, group, period), form, places, tier or "")
    return scales, offsets, found


def _nearest(x: Floats, scales: Floats, offsets: Floats, form: tuple[str, str, int, bool], tier: str | None) -> Bytes:
    count, group = x.shape
    if scales.shape != (count,) or offsets.shape != (count,):
        raise ValueError(f"expected a scale and an offset for each of {count} groups")
    codes = np.empty((count, group), np.uint8)
    places = (_address(x), 0, _address(scales), _address(offsets), _address(codes))
    load().nearest_codes((count, group, 1), form, places, tier or "")
    return codes


def _address(array: NDArray[Any]) -> int:
    if not array.flags.c_contiguous or array.dtype not in (np.float32, np.uint8):
        raise ValueError(f"expected adjacent float32, got {array.dtype} of strides {array.strides}")
    address: int = array.ctypes.data
    return address
