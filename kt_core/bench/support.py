"""docs/support.md, generated from the kernels' own tables.

`python -m kt_core.bench.support --write` writes it; a test fails when it is out of date.
"""

import sys
from pathlib import Path

from kt_core.bench.cases import DIRECT, PREFILL, Case, cases, compiled_tiers

FILE = Path(__file__).parents[2] / "docs" / "support.md"
_HEAD = """# Weight formats and kernel tiers

What computes each stored weight format on each tier. A cell names the tier whose kernel serves it, which is a lower one where
the tier brings nothing for the format; "N+" is the number of rows (tokens of one expert, or of one call of a linear layer)
from which the prefill path takes over, and the tier that it comes from. Paths and their rounding: [kernels.md](kernels.md).
"""
_FOOT = """`kt doctor` shows the tier of a machine, `kt microbench` measures any cell of this table and, with `--check`, compares it with
a float64 reference.
"""


def table(tiers: list[str]) -> list[list[str]]:
    """Header and rows: format, what its activations become, and a cell for each tier."""
    columns = {tier: list(cases(tier, assumed=True)) for tier in tiers}
    header = ["format", "activations", *tiers]
    formats = {case.format: case.policy for case in columns[tiers[0]] if case.path == DIRECT}
    return [header, *([f, p, *(_cell(f, columns[tier]) for tier in tiers)] for f, p in formats.items())]


def _cell(format: str, column: list[Case]) -> str:
    mine = {case.path: case for case in column if case.format == format}
    direct, prefill = mine[DIRECT].served_by, mine.get(PREFILL)
    return direct if prefill is None else f"{direct}, {prefill.first_row}+ {prefill.served_by}"


def page(tiers: list[str]) -> str:
    header, *body = table(tiers)
    lines = [header, ["---"] * len(header), *body]
    return "\n".join([_HEAD, *("| " + " | ".join(line) + " |" for line in lines), "", _FOOT])


def parse(text: str) -> list[list[str]]:
    """The table of a page."""
    lines = [line for line in text.splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m kt_core.bench.support --write")
    FILE.write_text(page(compiled_tiers()), encoding="utf-8")
