"""Paths must not become slow unnoticed: floors for the share of the roofline, measured on this machine as it is now.

Ratios only, each sample between two looks at the ceilings, and three tries, because machines have neighbours. A
kernel that lost its vectors, its blocking or its streaming falls far below these floors; noise does not reach them
three times.
"""

import pytest

from kt_core.bench import cases, job, shapes
from kt_core.bench.layers import MoeBench
from kt_core.bench.measure import Measured, Prober, measure
from kt_core.kernels import POLICY, SUPPORTED, set_threads, units
from kt_core.kernels.native import set_poison
from kt_core.machine import probe

pytestmark = pytest.mark.alone

SAME_KERNEL = {"GPTQ", "AWQ", "FP8_CHANNEL", "MXFP4_HF"}  # as INT4, FP8_BLOCK and MXFP4, whose panels theirs are
FORMATS = sorted(SUPPORTED - SAME_KERNEL)
SIZE = shapes.Shape("guard", 1024, 768, 8, 2)
# One token reads two experts. 1024 tokens are 256 rows for each: there a thread with tiles is bound by them too, as it
# does some 100 to 200 operations for each byte that it can read, a BF16 weight's two bytes 512. With 32 rows it was
# bound by nothing of the roofline: the memory named the ceiling, and decoding and gathering took the time.
DECODE, PREFILL = 1, 1024
FLOORS = {DECODE: 0.6, PREFILL: 0.4}
# Formats whose decoding is the limit and neither the memory nor the products (docs/benchmarks.md, "Grid formats by byte
# permutes"): what they reach here, less a quarter.
LIMITED = {
    "Q2_K": (0.45, 0.3), "Q3_K": (0.5, 0.33), "IQ3_XXS": (0.28, 0.31), "IQ3_S": (0.22, 0.27), "IQ2_XXS": (0.2, 0.33),
    "IQ2_XS": (0.19, 0.27), "IQ2_S": (0.16, 0.19), "IQ1_S": (0.09, 0.26), "IQ1_M": (0.09, 0.22),
}  # fmt: skip
TILES = 0.08  # the tile kernel reaches a tenth to a fifth of the tiles' peak: gathering and products do not overlap
# The same on Xeons with tiles, whose cores decode IQ4_K at 7 to 8 GB/s of 12 to 16 that they read: 51 to 56 %.
LIMITED_THERE = {"IQ4_K": (0.4, TILES)}
GRIDS = {name for name in LIMITED if name.startswith("IQ")}
WITHOUT_PERMUTES = 0.15  # of that where grids are read from tables: 0.5 to 4 GB/s in place of 5 to 14
# Where AVX2 is all there is: the int8 peak is of one multiply and one add for 32 products, and signed bytes take two of
# each and their sign; E4M3 is decoded for every four rows. What a Zen 3 core reaches, less a quarter: 60 to 80 and 25 to 52 %, FP8
# 40 to 50 % of the read, IQ4_K 15.
WITH_AVX2 = (0.45, 0.18)
LIMITED_WITH_AVX2 = {
    "FP8_BLOCK": (0.3, 0.4),
    "MXFP8": (0.3, 0.4),
    "IQ4_K": (0.11, 0.4),
    "Q2_K": (0.4, 0.2),
    "Q3_K": (0.37, 0.18),
}
TRIES = 3


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    set_threads(1)
    set_poison(False)
    yield
    set_poison(True)


@pytest.fixture(scope="module")
def prober() -> Prober:
    return Prober(job.make(job.MOE, probe(), SIZE, threads=(1,)).probe)


def floor_of(format: str, bench: MoeBench, tokens: int) -> float:
    if bench.path(tokens) == cases.PREFILL and "tile_bf16" in units():
        return TILES
    if format in LIMITED_THERE and "tile_bf16" in units():
        return LIMITED_THERE[format][tokens == PREFILL]
    if bench.path(tokens) == cases.PREFILL:
        return FLOORS[tokens]
    if (
        cases.tiers()[-1] == "avx2"
        and format not in GRIDS
        and (format in LIMITED_WITH_AVX2 or POLICY[format] == "int8")
    ):
        return LIMITED_WITH_AVX2.get(format, WITH_AVX2)[tokens == PREFILL]
    if format not in LIMITED:
        return FLOORS[tokens]
    by_tables = format in GRIDS and "avx512_vbmi" not in cases.tiers()
    return LIMITED[format][tokens == PREFILL] * (WITHOUT_PERMUTES if by_tables else 1)


@pytest.mark.parametrize("format", FORMATS)
def test_share_of_the_ceiling(format: str, prober: Prober) -> None:
    made = job.make(job.MOE, probe(), SIZE, threads=(1,), formats=(format,), tokens=(DECODE, PREFILL))
    job.check_memory(made)
    bench = MoeBench(made, format, None, lambda _: None)
    for tokens in FLOORS:
        floor = floor_of(format, bench, tokens)
        seen: list[Measured] = []
        while len(seen) < TRIES and not any(m.share_of_ceiling >= floor for m in seen):
            seen.append(measure(bench.calls(tokens), prober, None, 3))
        assert seen[-1].share_of_ceiling >= floor, (tokens, [f"{m.share_of_ceiling:.0%}" for m in seen], seen[-1])
