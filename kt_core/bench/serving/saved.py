"""Runs kept for comparison: one JSON file each in the state folder."""

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kt_core import paths
from kt_core.errors import BadData, NotFound, UsageError
from kt_core.messages import t

NAME = re.compile(r"[\w][\w.-]{0,99}")
VERSION = 1
MOST = 1e12  # of a figure; NaN is not below it
FIGURES = ("prefill_rate", "decode_rate", "output_rate", "first_token_p50", "between_tokens_p50")  # what is compared
KEY = ("prompt", "output", "concurrency", "depth")  # what makes two rows of two runs the same case


def folder() -> Path:
    return paths.state_dir() / "bench"


def save(name: str, run: dict[str, Any]) -> Path:
    """Write the run beside and rename. Raises UsageError for a name that cannot be a file's."""
    path = place(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps({"version": VERSION, "saved": time.time(), **run}, indent=1), encoding="utf-8")
    beside.replace(path)
    return path


def load(name: str) -> dict[str, Any]:
    """A run by its name, or by a path to a file. Raises NotFound, naming those that exist, and BadData."""
    path = paths.expanded(Path(name)) if name.endswith(".json") else place(name)
    try:
        run = json.loads(path.read_text(encoding="utf-8-sig"))
        rows = run["rows"]
        if run["version"] != VERSION or not isinstance(rows, list) or not all(_is_row(row) for row in rows):
            raise ValueError(t("bench.no_rows"))
    except FileNotFoundError as error:
        if name.endswith(".json"):
            raise NotFound("bench.no_run_file", path=path) from error
        known = t("output.comma").join(names())
        raise NotFound("bench.no_run" if known else "bench.no_runs", name=name, known=known) from error
    except (KeyError, TypeError, RecursionError) as error:
        raise BadData("bench.bad_run", path=path, reason=t("bench.no_rows")) from error
    except (OSError, ValueError) as error:
        raise BadData("bench.bad_run", path=path, reason=getattr(error, "strerror", None) or error) from error
    return dict(run)


def _is_row(row: Any) -> bool:
    if not isinstance(row, dict) or not {*KEY, *FIGURES} <= row.keys():
        return False
    if not all(isinstance(row[name], str | int) and str(row[name]).isprintable() for name in KEY):
        return False
    figures = [row[figure] for figure in FIGURES if row[figure] is not None]
    return all(type(figure) in (int, float) and 0 <= figure <= MOST for figure in figures)


def names() -> list[str]:
    return sorted(file.stem for file in folder().glob("*.json")) if folder().is_dir() else []


def compared(
    before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]], rate: str
) -> list[tuple[str, float, float]]:
    """(case, before, after) of every case that both runs have, by the figure `rate`."""
    old = {case_name(row): row for row in before}
    return [(case, old[case][rate], row[rate]) for row in after if (case := case_name(row)) in old]


def case_name(row: dict[str, Any]) -> str:
    """ "512+128 x4 @0": prompt and output lengths, clients, depth."""
    return "{prompt}+{output} x{concurrency} @{depth}".format(**{key: row[key] for key in KEY})


def place(name: str) -> Path:
    """The file of a saved run. Raises UsageError for a name that cannot be a file's."""
    if not NAME.fullmatch(name):
        raise UsageError("bench.bad_name", name=name)
    return folder() / f"{name}.json"
