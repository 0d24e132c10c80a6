"""The one list of kernel cases, and the data for them. Weights are written by an independent package."""

from dataclasses import dataclass
from functools import cache

import gguf
import numpy as np

from kt_core.kernels import info

# Largest error allowed, relative to sum |x w|, the size of what is added up. One float32 rounding is 6e-8
# of a partial sum; in random order they average out, and 1e-6 is room for the worst of some 10^5 outputs with
# outliers that come early. int8 groups are exact inside, so only additions between groups and the products
# with two scales round; q and m of Q4_1 cancel, so its partial sums exceed |x w|. bf16 tiers may flush
# subnormal products.
TOLERANCE = {"F32": 1e-6, "F16": 1e-6, "BF16": 1e-6, "Q8_0": 1e-6, "Q4_1": 2e-6}

# The contract that a user may rely on for every format but F32.
CONTRACT = 2e-3


@dataclass(frozen=True)
class Case:
    format: str
    rows: int  # output rows of the weight, N
    cols: int  # K
    tokens: int

    def __str__(self) -> str:
        return f"{self.format}-{self.rows}x{self.cols}-{self.tokens}"


# Around every edge: a panel has 16 rows, kernels take 4 or 8 tokens at once, bf16 pairs, groups of 32.
SHAPES = {
    "free": [(1, 1), (1, 33), (15, 7), (16, 64), (17, 31), (33, 129), (70, 97), (300, 515)],
    "grouped": [(1, 32), (15, 64), (16, 96), (17, 32), (33, 160), (70, 96), (300, 512)],
}
FORMATS = {"F32": "free", "F16": "free", "BF16": "free", "Q8_0": "grouped", "Q4_1": "grouped"}
TOKENS = 40  # every row count from 1 to this is tried
CASES = [Case(f, n, k, TOKENS) for f, kind in FORMATS.items() for n, k in SHAPES[kind]]


@dataclass(frozen=True)
class Stored:
    """A weight as kt_core.weights.Matrix has it, and its values."""

    format: str
    rows: int
    cols: int
    data: np.ndarray
    values: np.ndarray


def stored(format: str, rows: int, cols: int, seed: int = 0) -> Stored:
    """A random weight, quantised and decoded by the gguf package."""
    kind = gguf.GGMLQuantizationType[format]
    dense = np.random.default_rng(seed).standard_normal((rows, cols), dtype=np.float32) * np.float32(0.1)
    raw = np.ascontiguousarray(gguf.quants.quantize(dense, kind))
    values = np.asarray(gguf.quants.dequantize(raw, kind), np.float32).reshape(rows, cols)
    return Stored(format, rows, cols, raw.view(np.uint8).reshape(rows, -1), values)


@cache
def weight(case: Case) -> Stored:
    return stored(case.format, case.rows, case.cols)


def inputs(tokens: int, cols: int, seed: int = 1) -> np.ndarray:
    """Random activations with what real ones have: outliers, exact zeros, an all-zero token."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, cols), dtype=np.float32)
    x[rng.random(x.shape) < 0.02] *= 50
    x[rng.random(x.shape) < 0.1] = 0
    if tokens > 3:
        x[3] = 0
    return x


def tiers() -> list[str]:
    return [tier["name"] for tier in info()["tiers"] if tier["runnable"]]


def worst(got: np.ndarray, expected: np.ndarray, size: np.ndarray | None = None) -> tuple[float, str]:
    """Largest error relative to `size` (default: the row's largest value), and a line that says where."""
    got = got.astype(np.float64)
    if not np.isfinite(got).all():
        return np.inf, f"not finite: {np.count_nonzero(~np.isfinite(got))} of {got.size}"
    size = np.abs(expected).max(axis=-1, keepdims=True) if size is None else size
    error = np.abs(got - expected) / np.where(size == 0, 1, size)
    at = np.unravel_index(error.argmax(), error.shape)
    place = tuple(int(i) for i in at)
    return float(error.max()), f"max {error.max():.2e} mean {error.mean():.2e} at {place}: {got[at]} for {expected[at]}"
