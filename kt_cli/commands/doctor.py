"""`kt doctor`: is this machine and this installation fit to run models?"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kt_cli import checks, names, output
from kt_cli.check import ERROR, OK, WARN, Check
from kt_cli.help import Command, new_app
from kt_core import paths
from kt_core.errors import KTError, NotFound
from kt_core.messages import t

app = new_app("doctor.help")
MARKS = {
    OK: ("doctor.ok", "green"),
    WARN: ("doctor.warn", "yellow"),
    ERROR: ("doctor.error", "red"),
}


@app.command(cls=Command, help="doctor.help", epilog="doctor.examples")
def doctor(
    sysroot: Annotated[Path, typer.Option("--sysroot", help="doctor.sysroot", metavar="DIR")] = Path("/"),
) -> None:
    if not paths.exists(sysroot) or not sysroot.is_dir():
        raise NotFound("doctor.no_sysroot", folder=sysroot)
    from kt_core.machine import probe

    with output.progress() as report:
        report(t("doctor.checking"), 0, 0, "")  # the imports take seconds
        machine = probe(sysroot)
        found = checks.run_all(machine)
    counts = {status: sum(check.status == status for check in found) for status in MARKS}
    faulty = [check.name for check in found if check.status != OK]
    data = {"checks": [asdict(check) for check in found], "counts": counts, "machine": asdict(machine)}
    output.result(data, lambda: _report(found), names=faulty)
    output.status(t("doctor.counts", **counts))
    if counts[ERROR]:
        raise typer.Exit(KTError.exit_code)


def _report(found: list[Check]) -> str:
    lines = []
    for check, row in zip(found, _rows(found), strict=True):
        lines.append(row)
        if check.suggestion:
            lines.append(output.folded(f"      {check.suggestion}", sys.stdout))
    return "\n".join(lines)


def _rows(found: list[Check]) -> list[str]:
    marked = [
        (output.paint(t(MARKS[c.status][0]), MARKS[c.status][1], sys.stdout), names.of("check", c.name), c.value)
        for c in found
    ]
    return output.lines(marked)
