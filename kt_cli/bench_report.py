"""A run of `kt bench` for people: the table, bars, the prediction beside it, and two runs side by side."""

import csv
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kt_cli import output
from kt_core.bench.serving import saved
from kt_core.errors import NotFound
from kt_core.messages import t

COLUMNS = (
    "bench.column_prompt",
    "bench.column_output",
    "bench.column_concurrency",
    "bench.column_depth",
    "bench.column_first",
    "bench.column_between",
    "bench.column_request",
    "bench.column_prefill",
    "bench.column_decode",
    "bench.column_all",
    "bench.column_failed",
)
# Figures of a case, the better way up; times are compared by their median.
COMPARED = {figure: f"bench.figure_{figure}" for figure in saved.FIGURES}
TIMES = ("first_token_p50", "between_tokens_p50")
RATIO_COLUMNS = (
    "bench.column_case",
    "bench.column_figure",
    "bench.column_before",
    "bench.column_after",
    "bench.column_ratio",
)
LIMITS = {
    "quota": "bench.limit_quota",
    "threads": "bench.limit_threads",
    "tier": "bench.limit_tier",
    "node": "bench.limit_node",
    "memory": "bench.limit_memory",
    "bandwidth": "bench.limit_bandwidth",
    "arithmetic": "bench.limit_arithmetic",
    "unknown": "bench.limit_unknown",
    "unmeasured": "bench.limit_unmeasured",
}
BAR = 40  # cells of the longest bar


def text(run: dict[str, Any], before: dict[str, Any] | None) -> str:
    """The whole report of a run, with the run before it where there is one."""
    rows = run["rows"]
    parts = [t("bench.title", model=run["model"], url=run["url"]), ""]
    parts.append(output.table([_cells(row) for row in rows], list(map(t, COLUMNS))))
    if len(rows) > 1:
        parts += ["", t("bench.bars"), *_bars(rows)]
    parts += ["", *_sentences(run)]
    if before:
        parts += ["", comparison(before, run)]
    return "\n".join(parts)


def axes(model: str) -> dict[str, str]:
    """Words of a picture. English alone: the fonts that pictures are drawn with have no others."""
    return {
        "title": f"{model}: speed as clients see it",
        "rates": "Rates",
        "times": "Times",
        "cases": "prompt + output tokens, x requests at once,\n@ tokens in the cache before",
        "prefill_rate": "prefill (one request)",
        "decode_rate": "decode (one request)",
        "output_rate": "output (all requests)",
        "first_token": "first token, p50 to p99",
        "between_tokens": "between tokens, p50 to p99",
        "rate_unit": "rate (tokens a second)",
        "time_unit": "time (milliseconds)",
    }


def comparison(before: dict[str, Any], after: dict[str, Any]) -> str:
    """After over before, case by case; above 1 is better, for times too."""
    table = [
        [
            entry["case"],
            t(COMPARED[entry["figure"]]),
            f"{entry['before']:.3g}",
            f"{entry['after']:.3g}",
            f"{entry['ratio']:.2f}",
        ]
        for entry in ratios(before, after)
    ]
    if not table:
        return t("bench.nothing_common")
    lines = [output.table(table, list(map(t, RATIO_COLUMNS)))]
    if before.get("machine") != after.get("machine"):
        lines.append(t("bench.other_machine"))
    return "\n".join(lines)


def ratios(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """Of the cases that both have: `ratio` above 1 is faster."""
    found = []
    for figure in COMPARED:
        for case, old, new in saved.compared(before["rows"], after["rows"], figure):
            if old and new:
                ratio = old / new if figure in TIMES else new / old
                found.append({"case": case, "figure": figure, "before": old, "after": new, "ratio": round(ratio, 4)})
    return sorted(found, key=lambda entry: str(entry["case"]))


def check(*places: Path | None) -> None:
    """Before anything is measured: raises NotFound or OSError where a file could not be written."""
    for path in places:
        if path is None:
            continue
        if not path.absolute().parent.is_dir():
            raise NotFound("bench.no_folder", folder=path.absolute().parent)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if _is_place(path):
            beside = _beside(path)
            beside.touch()
            beside.unlink()


def write(run: dict[str, Any], table: Path | None, page: Path | None) -> dict[str, Path | None]:
    """The rows as CSV and the report as markdown, where asked for."""
    texts: dict[str, tuple[Path | None, Callable[[], str]]] = {
        "csv": (table, lambda: _csv(run["rows"])),
        "markdown": (page, lambda: _markdown(run)),
    }
    written: dict[str, Path | None] = {}
    for kind, (path, make) in texts.items():
        if path is None:
            continue
        content = make()
        if _is_place(path):
            beside = _beside(path)
            beside.write_text(content, encoding="utf-8")
            beside.replace(path.resolve())
        else:
            path.write_text(content, encoding="utf-8")
        written[kind] = path
    return written


def _is_place(path: Path) -> bool:
    """Whether a file may be put there whole. A device or a pipe is written to: a file in its place would be the end of it."""
    return path.is_file() or not path.exists()


def _beside(path: Path) -> Path:
    """Of what a link points to."""
    path = path.resolve()
    return path.with_name(f".{path.name}.part")


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        str(row["prompt"]),
        str(row["output"]),
        str(row["concurrency"]),
        str(row["depth"]),
        _times(row, "first_token"),
        _times(row, "between_tokens"),
        _times(row, "request"),
        f"{row['prefill_rate']:.1f}",
        f"{row['decode_rate']:.1f}",
        f"{row['output_rate']:.1f}",
        str(row["failed"]),
    ]


def _times(row: dict[str, Any], name: str) -> str:
    """ "12 / 15 / 31": p50, p90, p99 in milliseconds."""
    return " / ".join(_millis(row[f"{name}_p{percent}"]) for percent in (50, 90, 99))


def _millis(seconds: float) -> str:
    """Three digits, or all before the point."""
    value = 1000 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _bars(rows: list[dict[str, Any]]) -> list[str]:
    most = max(row["output_rate"] for row in rows) or 1.0
    table = [
        [saved.case_name(row), f"{row['output_rate']:.1f}", "█" * max(1, round(BAR * row["output_rate"] / most))]
        for row in rows
    ]
    return output.lines(table)


def _sentences(run: dict[str, Any]) -> list[str]:
    found = []
    alone = next((row for row in run["rows"] if row["concurrency"] == 1 and row["depth"] == 0), None)
    expected = run["predicted"].get("decode_tokens_per_second")
    if alone and expected:
        found.append(
            t(
                "bench.beside",
                predicted=f"{expected:.1f}",
                measured=f"{alone['decode_rate']:.1f}",
                share=f"{alone['decode_rate'] / expected:.0%}",
            )
        )
    if run["limit"]:
        numbers = {
            name: f"{value:.3g}" if isinstance(value, float) else value
            for name, value in run["limit"].items()
            if name != "name"
        }
        found.append(t(LIMITS[run["limit"]["name"]], **numbers))
    last = run["rows"][-1]
    if last["resident"]:
        found.append(t("bench.resident", size=output.size(last["resident"])))
    if last["joules"]:
        whole = sum(row["joules"] or 0 for row in run["rows"])
        found.append(t("bench.joules", joules=f"{whole:.0f}"))
    return found


def _csv(rows: list[dict[str, Any]]) -> str:
    sink = io.StringIO()
    writer = csv.DictWriter(sink, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return sink.getvalue()


def _markdown(run: dict[str, Any]) -> str:
    header = list(map(t, COLUMNS))
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in run["rows"]]
    return "\n".join([t("bench.title", model=run["model"], url=run["url"]), "", *lines, "", *_sentences(run), ""])
