"""The one list of kernel cases, and the data for them. Weights are read by an independent package."""

from dataclasses import dataclass
from functools import cache

import gguf
import numpy as np
from plain_blocks import dequantize

from kt_core.bench.blocks import random_blocks
from kt_core.bench.cases import TOLERANCE as TOLERANCE
from kt_core.bench.cases import tiers as tiers
from kt_core.bench.scaled import random_matrix
from kt_core.formats import FORMATS as BLOCKS
from kt_core.kernels import POLICY
from kt_core.kernels.policy import WITH_SCALES
from kt_core.weights import Matrix, decode_matrix

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


def block(format: str) -> int:
    """K is a multiple of it."""
    return 32 if format in WITH_SCALES else BLOCKS[format].block_size


# Around every edge: a panel has 16 rows, kernels take 4 or 8 tokens at once, bf16 pairs, groups of 32.
SHAPES = {
    "free": [(1, 1), (1, 33), (15, 7), (16, 64), (17, 31), (33, 129), (70, 97), (300, 515)],
    "grouped": [(1, 32), (15, 64), (17, 96), (33, 160), (70, 512)],
    "super": [(1, 256), (17, 512), (35, 768)],
}
KINDS = {1: "free", 32: "grouped", 256: "super"}
# 2 x 16 blocks of 128 columns, and 130 rows, are more than a line and a block of scales.
MORE = {"FP8_BLOCK": [(130, 160), (17, 2208)], "MXFP8": [(17, 288)]}
# Words of rows: GPTQ's with zero points, AWQ's.
EIGHTS = [(8, 32), (16, 64), (24, 96), (40, 160), (72, 512)]


def shapes(format: str) -> list[tuple[int, int]]:
    return EIGHTS if format == "AWQ" else SHAPES[KINDS[block(format)]] + MORE.get(format, [])


TOKENS = 40
COUNTS = [*range(1, 18), 39]  # rows taken alone: every remainder of 8, once and twice
CASES = [Case(f, n, k, TOKENS) for f in POLICY for n, k in shapes(f)]


@dataclass(frozen=True, kw_only=True)
class Stored(Matrix):
    """A weight and its values."""

    values: np.ndarray


QUANTISED = {"F32", "F16", "BF16", "Q8_0", "Q4_1"}  # the rest are random blocks


def columns(format: str, cols: int) -> int:
    """cols, or the next multiple of the format's block."""
    size = block(format)
    return -(-cols // size) * size


def rows_of(format: str, rows: int) -> int:
    """rows, or the next number of them that the format can have."""
    return -(-rows // 8) * 8 if format == "AWQ" else rows


def stored(format: str, rows: int, cols: int, seed: int = 0) -> Stored:
    """A random weight: numbers quantised by the gguf package, or random blocks; decoded by it in any case. With
    scales beside the data: random bits, by the decoders that tests/weights/test_scaled.py compares with others.
    AWQ gets a multiple of 8 rows."""
    if format in WITH_SCALES:
        rows = rows_of(format, rows)
        matrix = random_matrix(format, rows, cols, seed)
        return Stored(**vars(matrix), values=decode_matrix(matrix))
    if format in QUANTISED:
        kind = gguf.GGMLQuantizationType[format]
        dense = np.random.default_rng(seed).standard_normal((rows, cols), dtype=np.float32) * np.float32(0.1)
        raw = np.ascontiguousarray(gguf.quants.quantize(dense, kind)).view(np.uint8)
    else:
        raw = random_blocks(format, rows * cols // BLOCKS[format].block_size, seed)
    raw = raw.reshape(rows, -1)
    values = np.asarray(dequantize(format, raw), np.float32).reshape(rows, cols)
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


def layer_tiers() -> list[str]:
    """Runnable tiers with attention, norms or routing of their own; the others fall through to these."""
    return [name for name in tiers() if name in ("scalar", "avx2", "avx512", "avx512_bf16")]


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
