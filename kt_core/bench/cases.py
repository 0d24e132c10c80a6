"""The one list of kernel cases: every format on every tier by every path, with what each is allowed to be off by.

Correctness tests, the bench and the support table go through it, so a format or tier that is added appears in all.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kt_core.bench.blocks import random_blocks
from kt_core.bench.job import block
from kt_core.bench.scaled import random_matrix
from kt_core.kernels import POLICY, formats, info
from kt_core.kernels.policy import WITH_SCALES
from kt_core.weights import Matrix

DIRECT, PREFILL = "direct", "prefill"

# Largest error allowed, relative to sum |x w|, the size of what is added up. One float32 rounding is 6e-8
# of a partial sum; in random order they average out, and 1e-6 is room for the worst of some 10^5 outputs with
# outliers that come early. int8 groups are exact inside, so only additions between groups and the products
# with two scales round; where a format adds a minimum, that and q cancel, so partial sums exceed |x w|.
# bf16 tiers may flush subnormal products.
WITH_MINIMUM = {"Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"}
TOLERANCE = {format: 2e-6 if format in WITH_MINIMUM else 1e-6 for format in POLICY}

# Of an expert's results, relative to a row's largest. h passes through the policy of `down`, whose rounding errs by at
# most half the distance of two neighbours: 1/254 of a group's largest value (int8), 2^-8 of a value (bfloat16, with 8
# significant bits: neighbours from 2^e on are 2^(e-7) apart). A kernel's h and the reference's differ by float32
# roundings, so where h lies between two neighbours they may become one each, which is the whole distance, twice as
# much. Few of a row's values lie so, but random int8 blocks have minimums and outliers of their own, so that one of
# their values may make up most of a row: a whole step.
EXPERTS_TOLERANCE = {"f32": 5e-6, "bf16": 1e-3, "int8": 1 / 127}


@dataclass(frozen=True)
class Case:
    """How a format's products are made on a tier, for as many rows as `path` takes."""

    format: str
    tier: str
    path: str
    first_row: int  # rows from which the path is taken
    policy: str  # what activations become
    served_by: str  # the tier whose kernel it is


def cases(tier: str, assumed: bool = False) -> Iterator[Case]:
    """A tier's cases, formats in the kernels' order. `assumed`: as a CPU with all of the tier's features has them."""
    for format, entry in formats(tier, assumed).items():
        from_row = entry["prefill_from"]
        if from_row is None or from_row > 1:
            yield Case(format, tier, DIRECT, 1, entry["policy"], entry["tier"])
        if from_row is not None:
            policy = "f32" if entry["policy"] == "f32" else "bf16"
            yield Case(format, tier, PREFILL, from_row, policy, entry["prefill_tier"])


def tiers() -> list[str]:
    """Names of the tiers that run here, lowest first."""
    return [tier["name"] for tier in info()["tiers"] if tier["runnable"]]


def compiled_tiers() -> list[str]:
    """Names of the tiers in this build, lowest first, whether this CPU runs them or not."""
    return [tier["name"] for tier in info()["tiers"] if tier["compiled"]]


def unit(policy: str, path: str, present: tuple[str, ...]) -> str:
    """The arithmetic unit that limits a case, of those that the tier computes with."""
    return "tile_bf16" if path == PREFILL and "tile_bf16" in present else policy


def weight(format: str, rows: int, cols: int, seed: int = 0) -> Matrix:
    """A random valid weight in its stored form, with ordinary values. Raises ValueError where blocks do not divide cols.

    Integers with group scales have one for 128 weights where those divide a row, else for 32.
    """
    size = block(format)
    if cols % size:
        raise ValueError(f"{cols} columns are no whole number of {format} blocks of {size}")
    if format in WITH_SCALES:
        return random_matrix(format, rows, cols, seed, 32 if cols % 128 else 128)
    return Matrix(format, rows, cols, random_blocks(format, rows * cols // size, seed).reshape(rows, -1))
