"""The one list of kernel cases, and the data for them. Weights are read by an independent package."""

from dataclasses import dataclass
from functools import cache

import gguf
import numpy as np
from blocks import random_blocks

from kt_core.formats import FORMATS as BLOCKS
from kt_core.kernels import POLICY, info
from kt_core.weights import Matrix

# Largest error allowed, relative to sum |x w|, the size of what is added up. One float32 rounding is 6e-8
# of a partial sum; in random order they average out, and 1e-6 is room for the worst of some 10^5 outputs with
# outliers that come early. int8 groups are exact inside, so only additions between groups and the products
# with two scales round; where a format adds a minimum, that and q cancel, so partial sums exceed |x w|.
# bf16 tiers may flush subnormal products.
WITH_MINIMUM = {"Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"}
TOLERANCE = {format: 2e-6 if format in WITH_MINIMUM else 1e-6 for format in POLICY}

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
    "grouped": [(1, 32), (15, 64), (17, 96), (33, 160), (70, 512)],
    "super": [(1, 256), (17, 512), (35, 768)],
}
KINDS = {1: "free", 32: "grouped", 256: "super"}
TOKENS = 40
COUNTS = [*range(1, 18), 39]  # rows taken alone: every remainder of 8, once and twice
CASES = [Case(f, n, k, TOKENS) for f in POLICY for n, k in SHAPES[KINDS[BLOCKS[f].block_size]]]


@dataclass(frozen=True, kw_only=True)
class Stored(Matrix):
    """A weight and its values."""

    values: np.ndarray


QUANTISED = {"F32", "F16", "BF16", "Q8_0", "Q4_1"}  # the rest are random blocks


def columns(format: str, cols: int) -> int:
    """cols, or the next multiple of the format's block."""
    size = BLOCKS[format].block_size
    return -(-cols // size) * size


def stored(format: str, rows: int, cols: int, seed: int = 0) -> Stored:
    """A random weight: numbers quantised by the gguf package, or random blocks; decoded by it in any case."""
    kind = gguf.GGMLQuantizationType[format]
    if format in QUANTISED:
        dense = np.random.default_rng(seed).standard_normal((rows, cols), dtype=np.float32) * np.float32(0.1)
        raw = np.ascontiguousarray(gguf.quants.quantize(dense, kind)).view(np.uint8)
    else:
        raw = random_blocks(format, rows * cols // BLOCKS[format].block_size, seed)
    raw = raw.reshape(rows, -1)
    values = np.asarray(gguf.quants.dequantize(raw, kind), np.float32).reshape(rows, cols)
    return Stored(format, rows, cols, raw, values=values)


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
