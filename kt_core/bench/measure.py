"""Times a series of calls between two looks at what the machine can do just then.

The ceiling of a call is the roofline: the longer of the time to read its weights at the memory's rate and the time of
its operations at the peaks of their units. Both are measured before and after every sample, with the same threads,
because machines with neighbours change their memory's and their clock's speed within seconds.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kt_core.kernels import ReadProbe, peak_rate

SAMPLE_SECONDS = 0.04  # of calls between two probes; a call that takes longer is a sample
PEAK_SECONDS = 0.02  # long enough to be interrupted by neighbours as often as a sample is
MEMORY, COMPUTE = "memory", "compute"


@dataclass(frozen=True)
class Ceilings:
    """Bytes per second read, and operations per second of the units that were asked for."""

    read: float
    units: dict[str, float]


@dataclass(frozen=True)
class Call:
    """Something to time: what it does, the bytes of weights that it reads, and its operations by unit."""

    run: Callable[[], object]
    nbytes: int
    operations: dict[str, float]

    def memory_seconds(self, ceilings: Ceilings) -> float:
        return self.nbytes / ceilings.read

    def compute_seconds(self, ceilings: Ceilings) -> float:
        return sum(count / ceilings.units[unit] for unit, count in self.operations.items())

    def ceiling_seconds(self, ceilings: Ceilings) -> float:
        return max(self.memory_seconds(ceilings), self.compute_seconds(ceilings))


@dataclass(frozen=True)
class Sample:
    """Some calls after each other. `ceilings` are the better ones of before and after."""

    calls: Sequence[Call]
    seconds: float
    ceilings: Ceilings

    def mean(self, amount: Callable[[Call], float]) -> float:
        return sum(map(amount, self.calls)) / len(self.calls)

    def share(self) -> float:
        """The ceiling's time over the time taken: 1 is as fast as the machine can be."""
        return sum(call.ceiling_seconds(self.ceilings) for call in self.calls) / self.seconds


@dataclass(frozen=True)
class Measured:
    """Medians over the samples, and the lowest and highest time of a call."""

    median_us: float
    low_us: float
    high_us: float
    gbps: float
    tflops: float
    share_of_ceiling: float
    limit: str  # MEMORY or COMPUTE, whichever the roofline names
    touched_bytes: int  # of weights, by a call
    read_gbps: float
    unit_tflops: dict[str, float] = field(default_factory=dict)


class Prober:
    """Looks at the ceilings of the pool's current threads."""

    def __init__(self, nbytes: int) -> None:
        self._memory = ReadProbe(nbytes)

    def look(self, units: Sequence[str], tier: str | None) -> Ceilings:
        return Ceilings(self._memory.rate(), {unit: peak_rate(unit, tier, PEAK_SECONDS) for unit in units})


def measure(calls: Sequence[Call], prober: Prober, tier: str | None, repeats: int) -> Measured:
    """Go through `calls` in turn, again and again, for `repeats` samples after one that warms up."""
    units = sorted({unit for call in calls for unit in call.operations})
    start = time.perf_counter()
    calls[0].run()
    count = max(1, round(SAMPLE_SECONDS / (time.perf_counter() - start)))
    at = 1
    samples = []
    before = prober.look(units, tier)
    for _ in range(repeats):
        chosen = [calls[(at + i) % len(calls)] for i in range(count)]
        at += count
        start = time.perf_counter()
        for call in chosen:
            call.run()
        took = time.perf_counter() - start
        after = prober.look(units, tier)
        samples.append(Sample(chosen, took, _better(before, after)))
        before = after
    return _summary(samples)


def _better(a: Ceilings, b: Ceilings) -> Ceilings:
    return Ceilings(max(a.read, b.read), {unit: max(rate, b.units[unit]) for unit, rate in a.units.items()})


def _summary(samples: Sequence[Sample]) -> Measured:
    median = statistics.median
    times = [1e6 * sample.seconds / len(sample.calls) for sample in samples]
    read = median(s.ceilings.read for s in samples)
    units = {unit: median(s.ceilings.units[unit] for s in samples) for unit in samples[0].ceilings.units}
    last = samples[-1]
    usual = Ceilings(read, units)
    memory, compute = last.mean(lambda c: c.memory_seconds(usual)), last.mean(lambda c: c.compute_seconds(usual))
    return Measured(
        median_us=median(times),
        low_us=min(times),
        high_us=max(times),
        gbps=median(sum(c.nbytes for c in s.calls) / s.seconds for s in samples) / 1e9,
        tflops=median(sum(sum(c.operations.values()) for c in s.calls) / s.seconds for s in samples) / 1e12,
        share_of_ceiling=median(sample.share() for sample in samples),
        limit=MEMORY if memory >= compute else COMPUTE,
        touched_bytes=round(last.mean(lambda c: c.nbytes)),
        read_gbps=read / 1e9,
        unit_tflops={unit: rate / 1e12 for unit, rate in units.items()},
    )
