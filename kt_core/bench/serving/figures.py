"""The figures of a case from the times of its requests."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kt_core.bench.serving.requests import Sample
from kt_core.bench.serving.workload import Case

PERCENTS = (50, 90, 99)


@dataclass(frozen=True)
class Figures:
    """One row. Times in seconds, rates in tokens a second; percentiles are p50, p90, p99.

    `prefill_rate`: new prompt tokens of a request over its time to the first token, the median. `decode_rate`: tokens behind
    the first of a request over their time, the median. `output_rate`: all answers' tokens over the time of the whole case.
    """

    prompt: str
    output: str
    concurrency: int
    depth: int
    requests: int
    failed: int
    first_token: tuple[float, ...]
    between_tokens: tuple[float, ...]
    request: tuple[float, ...]
    prefill_rate: float
    decode_rate: float
    output_rate: float
    resident: int = 0  # bytes that the server holds; 0 where it does not tell
    joules: float | None = None  # of the CPU packages; None where they cannot be read

    def data(self) -> dict[str, Any]:
        """For JSON and CSV: percentiles under names of their own."""
        flat: dict[str, Any] = {}
        for name, value in asdict(self).items():
            if isinstance(value, tuple):
                flat |= {f"{name}_p{percent}": figure for percent, figure in zip(PERCENTS, value, strict=True)}
            else:
                flat[name] = value
        return flat


def summary(case: Case, samples: Sequence[Sample], resident: int = 0, joules: float | None = None) -> Figures:
    """Of the requests that got their answer."""
    good = [sample for sample in samples if not sample.error]
    gaps = [gap for sample in good for gap in sample.gaps]
    wall = max(sample.ended for sample in samples) - min(sample.sent for sample in samples)
    return Figures(
        prompt=str(case.prompt),
        output=str(case.output),
        concurrency=case.concurrency,
        depth=case.depth,
        requests=len(samples),
        failed=len(samples) - len(good),
        first_token=_percentiles([sample.first for sample in good]),
        between_tokens=_percentiles(gaps),
        request=_percentiles([sample.ended - sample.sent for sample in good]),
        prefill_rate=_median([(s.prompt_tokens - s.cached_tokens) / s.first for s in good]),
        decode_rate=_median([sample.decode_rate for sample in good if sample.decode_rate]),
        output_rate=sum(sample.tokens for sample in good) / wall if wall > 0 else 0.0,
        resident=resident,
        joules=joules,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """By linear interpolation between the nearest ranks, as numpy's default; 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _percentiles(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(percentile(values, percent) for percent in PERCENTS)


def _median(values: Sequence[float]) -> float:
    return percentile(values, 50)
