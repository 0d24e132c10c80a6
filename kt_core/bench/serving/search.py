"""A short search over a plan's settings: one knob after the other, each at the best of those before it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

Settings = dict[str, Any]
Rates = Mapping[str, float]  # figures of a trial, the more the better; the same names in each


@dataclass(frozen=True)
class Trial:
    """`score`: the geometric mean of the figures over the default's; 0 for settings that do not fit."""

    settings: Settings
    score: float
    rates: Rates


@dataclass(frozen=True)
class Repeat:
    """The default and the fastest settings, measured one right after the other; `gain`: the fastest's score over the default's."""

    default: Rates
    fastest: Rates
    gain: float


def search(
    knobs: Mapping[str, Sequence[Any]], measure: Callable[[Settings], Rates | None], rounds: int = 2
) -> list[Trial]:
    """Trials in their order, the first with no settings at all: the default. None of `measure`: it does not fit.

    Knobs meet each other little, so that one after the other finds what all combinations would: rounds go on until one
    changes nothing, at most `rounds`.
    """
    base = measure({})
    if base is None:
        raise ValueError("the default does not fit")
    trials = [Trial({}, 1.0, base)]
    for _ in range(rounds):
        before = best(trials).settings
        for name, values in knobs.items():
            for value in values:
                settings = {**best(trials).settings, name: value}
                if any(settings == trial.settings for trial in trials):
                    continue
                rates = measure(settings)
                trials.append(Trial(settings, score(rates, base) if rates else 0.0, rates or {}))
        if best(trials).settings == before:
            break
    return trials


def best(trials: Sequence[Trial]) -> Trial:
    """The fastest; of equals the first, and so the one nearest to the default."""
    return max(trials, key=lambda trial: trial.score)


def score(rates: Rates, base: Rates) -> float:
    """How many times as fast, over all figures alike."""
    ratios = [rates[name] / base[name] for name in base if base[name] > 0]
    return float(prod(ratios) ** (1 / len(ratios))) if ratios else 0.0
