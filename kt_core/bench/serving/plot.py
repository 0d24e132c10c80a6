"""The rows of a run as a picture."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kt_core.errors import EnvironmentProblem, NotFound, UsageError

SIZE = (9.0, 5.0)  # inches, at least
CASE = 1.7  # inches of width for each case, in both halves: its words under the axes stay apart


def check(path: Path) -> None:
    """Before anything is measured: raises UsageError, NotFound or EnvironmentProblem where `write` could not work."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UsageError("bench.bad_picture", path=path)
    if not path.absolute().parent.is_dir():
        raise NotFound("bench.no_folder", folder=path.absolute().parent)
    if find_spec("matplotlib") is None:
        raise EnvironmentProblem("bench.no_matplotlib")


def write(path: Path, rows: Sequence[dict[str, Any]], names: dict[str, str]) -> Path:
    """Rates (tokens a second) on the left, times (milliseconds, p50 to p99) on the right, a case each along the bottom.

    `names` are the words: of each figure, `title`, `rates`, `times`, and of the axes `cases`, `rate_unit` and `time_unit`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(SIZE[0], CASE * len(rows) + 2), SIZE[1]), layout="constrained")
    FigureCanvasAgg(figure)
    rates, times = figure.subplots(1, 2)
    places = range(len(rows))
    labels = ["{prompt}+{output}\nx{concurrency} @{depth}".format(**row) for row in rows]
    for name, style in (("prefill_rate", "o-"), ("decode_rate", "s-"), ("output_rate", "^-")):
        rates.plot(places, [row[name] for row in rows], style, label=names[name])
    for name, style in (("first_token", "o-"), ("between_tokens", "s-")):
        middle = [1000 * row[f"{name}_p50"] for row in rows]
        above = [1000 * row[f"{name}_p99"] - center for row, center in zip(rows, middle, strict=True)]
        times.errorbar(places, middle, yerr=[[0] * len(rows), above], fmt=style, capsize=3, label=names[name])
    figure.suptitle(names["title"])
    for axes, title, unit in ((rates, "rates", "rate_unit"), (times, "times", "time_unit")):
        axes.set_title(names[title])
        axes.set_yscale("log")
        axes.set_xlabel(names["cases"])
        axes.set_ylabel(names[unit])
        axes.set_xticks(list(places), labels)
        axes.grid(alpha=0.3)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.3))  # below the axes: no line is hidden
    beside = path.with_name(f".{path.name}.part{path.suffix}")
    figure.savefig(beside, bbox_inches="tight")
    beside.replace(path)
    return path
