"""The native search against a plain one in numpy, and against every scale there is; tiers give the same bits."""

import numpy as np
import plain_search
import pytest

from kt_core import kernels
from kt_core.kernels import grids

TIERS = [tier["name"] for tier in kernels.info()["tiers"] if tier["runnable"]]
ROUNDINGS = {"": lambda x: x, "bf16": plain_search.bf16, "f16": plain_search.f16}


def weights(count: int, group: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, group), np.float32)


def importance(group: int, period: int = 3) -> np.ndarray:
    return np.random.default_rng(9).random((period, group)).astype(np.float32) + np.float32(0.05)


def error(x: np.ndarray, found: np.ndarray, counts: np.ndarray | None) -> float:
    off = (found - x).astype(np.float64) ** 2
    return float((off if counts is None else off * np.resize(counts, x.shape)).sum())


CASES = {
    "symmetric": lambda x, rounding, w, tier=None: grids.symmetric(x, 8, rounding, w, tier),
    "zero_point": lambda x, rounding, w, tier=None: grids.with_zero_point(x, 15, rounding, w, tier),
    "affine": lambda x, rounding, w, tier=None: grids.affine(x, 15, rounding, w, False, tier),
    "below_zero": lambda x, rounding, w, tier=None: grids.affine(x, 31, rounding, w, True, tier),
}
UNEVEN = {"uneven": lambda x, rounding, w, tier=None: grids.uneven(x, w, tier)}


def values(case: str, found: tuple[np.ndarray, ...]) -> np.ndarray:
    scales, codes = found[0][:, None], found[-1].astype(np.float32)
    if case == "symmetric":
        return scales * (codes - 8)
    return scales * (codes - found[1][:, None]) if case == "zero_point" else scales * codes + found[1][:, None]


def plain(case: str, x: np.ndarray, rounding: str, w: np.ndarray | None) -> np.ndarray:
    columns, counts = np.ascontiguousarray(x.T), None if w is None else np.resize(w, x.shape).T
    how = ROUNDINGS[rounding]
    if case == "symmetric":
        scale, q = plain_search.symmetric(columns, 8, how, counts)
        return (scale * q).T
    if case == "zero_point":
        scale, zero, q = plain_search.with_zero_point(columns, 15, how, counts)
        return (scale * (q - zero)).T
    top = 31 if case == "below_zero" else 15
    scale, low = plain_search.affine(columns, top, how, counts, case == "below_zero")
    return (scale * np.clip(np.rint(plain_search.divided(columns - low, scale)), 0, top) + low).T


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("case", CASES)
def test_as_good_as_the_plain_search(case, rounding, weighted):
    """At an odd number of groups, so that lanes are left over and importance begins anew inside of a vector."""
    x, w = weights(1001, 32), importance(32) if weighted else None
    found = CASES[case](x, rounding, w)
    assert error(x, values(case, found), w) <= 1.01 * error(x, plain(case, x, rounding, w), w)
    for kept in found[: 2 if case in ("affine", "below_zero") else 1]:
        np.testing.assert_array_equal(kept, ROUNDINGS[rounding](kept))
    if case == "below_zero":
        assert (found[1] <= 0).all()


def test_close_to_every_scale_and_zero_point():
    """The least error over 60 scales and all zero points, each scale fitted; the search tries 15 of them."""
    x = weights(500, 32)
    high, low = np.maximum(x.max(1), 0), np.minimum(x.min(1), 0)
    least = np.full(len(x), np.inf)
    for spread in np.linspace(0.6, 1.1, 60, dtype=np.float32):
        scaled = x / ((high - low) * spread / 15)[:, None]
        for zero in range(16):
            q = np.clip(np.rint(scaled), -zero, 15 - zero)
            scale = plain_search.bf16(plain_search.divided((q * x).sum(1), (q * q).sum(1)))
            least = np.fmin(least, ((scale[:, None] * q - x) ** 2).sum(1))
    assert error(x, values("zero_point", grids.with_zero_point(x, 15, "bf16")), None) <= 1.03 * least.sum()


@pytest.mark.parametrize("group", [1, 16, 128])
@pytest.mark.parametrize("case", CASES | UNEVEN)
def test_tiers_find_the_same_bits(case, group):
    x = weights(37, group)
    x[3] = 0
    x[4] *= 1e-36
    x[5] = 7
    first, *others = [(CASES | UNEVEN)[case](x, "f16", importance(group), tier) for tier in TIERS]
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("tier", TIERS)
def test_the_nearest_codes(tier):
    x, scales = weights(33, 16), weights(33, 1)[:, 0]
    offsets = weights(33, 1, 2)[:, 0]
    found = grids.nearest_symmetric(x, scales, 32, tier)
    exact = np.clip(np.rint(x.astype(np.float64) / scales[:, None]), -32, 31) + 32
    assert (np.abs(found - exact) <= 1).all() and (found != exact).mean() < 0.001  # halves, in float32
    found = grids.nearest_affine(x, scales, offsets, 15, tier)
    exact = np.clip(np.rint((x.astype(np.float64) - offsets[:, None]) / scales[:, None]), 0, 15)
    assert (np.abs(found - exact) <= 1).all() and (found != exact).mean() < 0.001


def steps(codes: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    table = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
    return table[codes] + shifts[:, None]


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_uneven_steps_beat_even_ones_and_come_close_to_all_scales(weighted):
    """Against 40 scales for either end of either set of steps, each fitted once."""
    x, w = weights(400, 16), importance(16) if weighted else None
    scales, shifts, codes = grids.uneven(x, w)
    found = error(x, scales[:, None] * steps(codes, shifts), w)
    counts = np.ones_like(x) if w is None else np.resize(w, x.shape)
    extreme = np.take_along_axis(x, np.abs(x).argmax(1, keepdims=True), 1)
    least = np.full(len(x), np.inf)
    for shift in (0, 4):
        table = steps(np.arange(16), np.full(16, shift))[0]
        for end in (table[0], table[15]):
            for share in np.linspace(0.7, 1.2, 40, dtype=np.float32):
                q = table[np.abs((x / extreme * end * share)[..., None] - table).argmin(-1)]
                scale = (counts * q * x).sum(1) / (counts * q * q).sum(1)
                least = np.fmin(least, (counts * (scale[:, None] * q - x) ** 2).sum(1))
    assert found <= 1.03 * least.sum()
    assert found < 0.9 * error(x, values("symmetric", grids.symmetric(x, 8, "", w)), w)
    nearest = grids.nearest_uneven(x, scales, shifts)
    np.testing.assert_array_equal(nearest, codes)


def test_wrong_arrays_are_refused():
    x = weights(4, 32)
    with pytest.raises(ValueError, match="adjacent"):
        grids.symmetric(x[:, ::2], 8)
    with pytest.raises(ValueError, match="adjacent"):
        grids.symmetric(x.astype(np.float64), 8)
    with pytest.raises(ValueError, match="importance"):
        grids.symmetric(x, 8, importance=importance(16))
    with pytest.raises(ValueError, match="weights"):
        grids.symmetric(weights(2, 129), 8)
    with pytest.raises(ValueError, match="levels"):
        grids.symmetric(x, 128)
    with pytest.raises(ValueError, match="each"):
        grids.nearest_symmetric(x, np.ones(3, np.float32), 8)
