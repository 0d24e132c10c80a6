"""Paths must not become slow unnoticed: floors for the share of the roofline, measured on this machine as it is now.

Ratios only, each sample between two looks at the ceilings, and three tries, because machines have neighbours. A
kernel that lost its vectors, its blocking or its streaming falls far below these floors; noise does not reach them
three times.
"""

import pytest

from kt_core.bench import job, shapes
from kt_core.bench.layers import MoeBench
from kt_core.bench.measure import Measured, Prober, measure
from kt_core.kernels import set_threads
from kt_core.machine import probe

FORMATS = ("BF16", "Q8_0", "Q4_K")
FLOORS = {1: 0.6, 64: 0.4}  # tokens of a call: one, which reads 8 experts, and 32 rows for each of 16
TRIES = 3
SIZE = shapes.Shape("guard", 2048, 768, 16, 8)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    set_threads(1)
    yield
    set_threads(2)


@pytest.fixture(scope="module")
def prober() -> Prober:
    return Prober(job.make(job.MOE, probe(), SIZE, threads=(1,)).probe)


@pytest.mark.parametrize("format", FORMATS)
def test_share_of_the_ceiling(format: str, prober: Prober) -> None:
    made = job.make(job.MOE, probe(), SIZE, threads=(1,), formats=(format,), tokens=tuple(FLOORS))
    job.check_memory(made)
    bench = MoeBench(made, format, None, lambda _: None)
    for tokens, floor in FLOORS.items():
        seen: list[Measured] = []
        while len(seen) < TRIES and not any(m.share_of_ceiling >= floor for m in seen):
            seen.append(measure(bench.calls(tokens), prober, None, 5))
        assert seen[-1].share_of_ceiling >= floor, (tokens, [f"{m.share_of_ceiling:.0%}" for m in seen], seen[-1])
