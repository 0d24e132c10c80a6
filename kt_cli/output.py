"""The one sink for everything that `kt` shows.

Results go to stdout; status, progress, warnings, errors and hints go to stderr. Three modes: human
text, one JSON document a line (`--json`), and names only (`--quiet`). Commands hand over plain data
and say how a person sees it. Escape sequences are written to terminals only, unless asked for.
"""

import json
import math
import os
import re
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kt_cli import terminal
from kt_core.errors import KTError
from kt_core.messages import OBEYED, t

if TYPE_CHECKING:
    from rich.console import Console

    from kt_core.types import Progress

SCHEMA_VERSION = 1  # of the JSON documents; grows when a field is removed or changes its meaning
STILL_SECONDS = 5.0
PLAIN_PROGRESS_SECONDS = 5.0  # between two progress lines when stderr is not a terminal

AMOUNT_CELLS = 31  # beside a bar: "1023 MiB of 1023 MiB", the time left, and the gaps
LEAST_WIDTH = 24  # cells in which text is still readable
BELOW = 4  # cells that a table's last column is indented by where it stands below the others

STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
# What a terminal obeys; STYLES are the first group.
UNRULY = re.compile(rf"(\x1b\[(?:0|(?:[12]|3[1236])(?:;(?:[12]|3[1236]))*)m)|{OBEYED}")
# what the server reports -> what a person reads; the store reports stages in words already
STAGES = {
    "start": "output.stage_start",
    "tokenizer": "output.stage_tokenizer",
    "weights": "output.stage_weights",
    "importance": "output.stage_importance",
    "evaluate": "output.stage_evaluate",
}
UNITS = {"modules": "output.unit_modules", "tokens": "output.unit_tokens"}


@dataclass
class _Settings:
    json: bool = False
    quiet: bool = False
    color: str = "auto"  # auto, always, never
    document_written: bool = False
    live: Any = None  # the bars that stand on the terminal now


_settings = _Settings()


def configure(json: bool | None = None, quiet: bool | None = None, color: str | None = None) -> None:
    """Choose the mode and the colour; None leaves a choice as it is."""
    if json is not None:
        _settings.json = json
    if quiet is not None:
        _settings.quiet = quiet
    if color is not None:
        _settings.color = color
        console.cache_clear()


def reset() -> None:
    """Back to the state of a new process, for callers that run several commands in one."""
    global _settings
    _settings = _Settings()
    console.cache_clear()


def is_json() -> bool:
    return _settings.json


def is_quiet() -> bool:
    return _settings.quiet


def is_terminal(stream: IO[str]) -> bool:
    """Whether a person looks at `stream`. TERM=dumb cannot move its cursor and counts as a pipe."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def wants_color(stream: IO[str]) -> bool:
    """--color decides, then NO_COLOR, then FORCE_COLOR, then whether `stream` is a terminal."""
    if _settings.color != "auto":
        return _settings.color == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return os.environ.get("FORCE_COLOR", "") not in ("", "0") or is_terminal(stream)


def paint(text: str, style: str, stream: IO[str]) -> str:
    """`text` in the styles named (separated by spaces), or as it is where no colour is wanted."""
    if not wants_color(stream) or not text:
        return text
    codes = ";".join(STYLES[name] for name in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m"


@cache
def console() -> "Console":
    """Rich's console on stdout, for markdown; a terminal with no colour wanted keeps its layout."""
    from rich.console import Console

    return Console(
        highlight=False,
        force_terminal=is_terminal(sys.stdout) or wants_color(sys.stdout),
        no_color=not wants_color(sys.stdout),
    )


# ---- results: stdout


def result(data: Any, human: Callable[[], str], names: Iterable[str] | None = None) -> None:
    """Show the result of a command: `data` as JSON, `names` one a line when quiet, else human()."""
    if _settings.json:
        document(data)
    elif _settings.quiet and names is not None:
        text("".join(f"{name}\n" for name in names))
    else:
        shown = _tamed(human(), sys.stdout)
        text(shown if shown.endswith("\n") or not shown else f"{shown}\n")


def document(data: Any) -> None:
    """One JSON document on one line of stdout; a mapping gets the schema's version."""
    plain = _plain(data)
    if isinstance(plain, dict):
        plain = {"schema_version": SCHEMA_VERSION, **plain}
    _settings.document_written = True
    text(json.dumps(plain, ensure_ascii=False) + "\n")


def text(piece: str) -> None:
    """Text of a result, as it is, at once."""
    sys.stdout.write(piece)
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    """`value` with dataclasses, paths and tuples turned into what JSON knows."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no such numbers
    return str(value) if isinstance(value, Path) else value


# ---- talk: stderr


def status(line: str) -> None:
    """What is going on. Not shown when quiet or for JSON."""
    if not _settings.quiet and not _settings.json:
        _talk(line)


def muted(line: str) -> None:
    """A side note such as the figures of an answer."""
    status(paint(line, "dim", sys.stderr))


def warn(what: str, *more: str) -> None:
    """Something to know that stops nothing; `more` lines, such as why and what to do, stand below it."""
    _lines_of(paint(t("output.warning"), "yellow", sys.stderr) + what, *more)


def error(failure: KTError) -> None:
    """What happened, why, and what to do next: three lines on stderr, or a JSON document on stdout."""
    if _settings.json:
        document({"error": error_data(failure)})
        return
    what, why, next_step = failure.lines()
    _lines_of(paint(t("output.error"), "red bold", sys.stderr) + what, why, next_step)


def error_data(failure: KTError) -> dict[str, Any]:
    """The same as data, for a document that says more."""
    what, why, next_step = failure.lines()
    return {"kind": failure.kind, "what": what, "why": why, "next": next_step, "exit_code": failure.exit_code}


def _lines_of(first: str, *more: str) -> None:
    _talk("\n  ".join([first, *(line for part in more for line in part.splitlines())]))


def _talk(line: str) -> None:
    """A line on stderr, above the bars that stand there. On a closed terminal the work goes on in silence."""
    line = folded(_tamed(line, sys.stderr), sys.stderr)
    if _settings.live:
        from rich.text import Text

        _settings.live.console.print(Text.from_ansi(line), soft_wrap=True)
        return
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except OSError:
        terminal.silence(sys.stderr.fileno())


@contextmanager
def still(line: str) -> Iterator[None]:
    """Says the line where the block takes longer than a person waits without a word."""
    timer = threading.Timer(STILL_SECONDS, status, (line,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def progress() -> Iterator["Progress"]:
    """A types.Progress that draws the newest stage's bar on a terminal and a line now and then elsewhere."""
    if _settings.quiet or _settings.json:
        yield lambda stage, done, total, unit: None
    elif is_terminal(sys.stderr):
        with _bars() as report:
            yield report
    else:
        yield _lines()


@contextmanager
def _bars() -> Iterator["Progress"]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    bar = min(30, max(6, width(sys.stderr) - 70))
    room = max(10, width(sys.stderr) - bar - AMOUNT_CELLS)
    columns = (
        TextColumn("{task.description}", table_column=Column(max_width=room, no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=bar),
        TextColumn("{task.fields[amount]}", table_column=Column(no_wrap=True)),
        TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
    )
    talk = Console(stderr=True, highlight=False, no_color=not wants_color(sys.stderr))
    bars = Progress(*columns, console=talk, transient=True, redirect_stdout=False, redirect_stderr=False)
    with terminal.no_echo(), bars:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int, unit: str) -> None:
            if stage not in tasks:
                for before in tasks.values():
                    bars.update(before, visible=False)
                tasks[stage] = bars.add_task(stage_name(stage), total=None, amount="")
            bars.update(tasks[stage], completed=done, total=total or None, amount=amount(done, total, unit))

        _settings.live = bars
        try:
            yield report
        finally:
            _settings.live = None


def _lines() -> "Progress":
    last: dict[str, float] = {}

    def report(stage: str, done: int, total: int, unit: str) -> None:
        now = time.monotonic()
        finished = total > 0 and done >= total
        if stage not in last or finished or now - last[stage] >= PLAIN_PROGRESS_SECONDS:
            if last.get(stage) == float("inf"):  # the end was reported already
                return
            last[stage] = float("inf") if finished else now
            _talk(f"{stage_name(stage)} {amount(done, total, unit)}".rstrip())

    return report


def stage_name(stage: str) -> str:
    """A stage as a person reads it; one that is not in the catalogue shows its own name."""
    return t(STAGES[stage]) if stage in STAGES else stage


# ---- formatting


def printable(text: str) -> str:
    """`text` without control characters that a terminal would obey: a model's words are not commands."""
    return "".join(char for char in text if char in "\n\t" or unicodedata.category(char) != "Cc")


def _tamed(text: str, stream: IO[str]) -> str:
    """`text` as it may go to `stream`: of what a terminal obeys, colours alone. Names of files, models and servers are in it."""
    return UNRULY.sub(r"\1", text) if is_terminal(stream) else text


def listed(words: Iterable[str]) -> str:
    """Words in a sentence, with the comma of the reader's language."""
    return t("output.comma").join(words)


def amount(done: int, total: int, unit: str) -> str:
    """How far something is: "1.2 of 3.4 GiB", "12 of 48 layers"."""
    if unit == "bytes":
        return t("output.of", done=size(done), total=size(total)) if total else size(done)
    if not unit and total <= 1:  # a step, not a count
        return ""
    counted = t("output.of", done=done, total=total) if total else str(done)
    return f"{counted} {t(UNITS[unit]) if unit in UNITS else unit}".rstrip()


def size(count: float) -> str:
    """Bytes with a binary unit and three significant digits at most: 512 B, 1.50 GiB."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    step = 0
    while count >= 1024 and step < len(units) - 1:
        count /= 1024
        step += 1
    digits = 0 if step == 0 or count >= 100 else 1 if count >= 10 else 2
    return f"{count:.{digits}f} {units[step]}"


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = (), indent: int = 0) -> str:
    """Columns of text, two spaces apart, by the cells that a terminal uses (Chinese takes two)."""
    return "\n".join(lines(rows, header, indent))


def lines(rows: Sequence[Sequence[str]], header: Sequence[str] = (), indent: int = 0) -> list[str]:
    """The header, if any, and each row of a table. On a terminal the last column is folded into the room that the
    others leave, or stands below them where that is too little; a row has several lines then. Where the others do not fit
    either, all but the first column stand below it.
    """
    shown = [list(header), *map(list, rows)] if header else [list(row) for row in rows]
    widths = [max(map(cells, column)) for column in zip(*shown, strict=True)]
    left = indent + sum(widths[:-1]) + 2 * len(widths[:-1])
    room = width(sys.stdout) - left if is_terminal(sys.stdout) else sys.maxsize
    if room < 0 and len(widths) > 2:
        found = [_stacked(row, indent) for row in shown]
        return [paint(found[0], "dim", sys.stdout), *found[1:]] if header else found
    below = room < min(LEAST_WIDTH, widths[-1])
    start = indent + BELOW if below else left
    found = []
    for number, row in enumerate(shown):
        padded = [cell + " " * (wide - cells(cell)) for cell, wide in zip(row[:-1], widths, strict=False)]
        folded = wrap(row[-1], room + left - start)
        first = [] if below else [folded.pop(0)]
        head = (" " * indent + "  ".join([*padded, *first])).rstrip()
        rest = [" " * start + line for line in folded if line]
        text = "\n".join([head, *rest])
        found.append(paint(text, "dim", sys.stdout) if header and number == 0 else text)
    return found


def _stacked(row: Sequence[str], indent: int) -> str:
    """The first cell, and below it the others: the last one by itself."""
    room = width(sys.stdout) - indent - BELOW
    below = [*wrap("  ".join(row[1:-1]), room), *wrap(row[-1], room)]
    return "\n".join([" " * indent + row[0], *(" " * (indent + BELOW) + line for line in below if line)])


def width(stream: IO[str]) -> int:
    """Columns of the terminal at `stream`; COLUMNS counts first, and 80 where there is none."""
    given = os.environ.get("COLUMNS", "")
    try:
        found = int(given) if given.isdecimal() and int(given) else os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        found = 80
    return max(found, LEAST_WIDTH)


def wrap(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width` cells, broken at spaces and between Chinese characters; a longer word stays whole."""
    lines, line, word = [], "", ""
    for char in f"{text} ":
        wide = cells(char) == 2
        if not wide and char != " ":
            word += char
            continue
        piece = word + (char if wide else "")
        if cells(line + piece) > width and line:
            lines.append(line.rstrip())
            line = ""
        line += piece + ("" if wide else " ")
        word = ""
    return [*lines, line.rstrip()] if line.strip() or not lines else lines


def folded(text: str, stream: IO[str]) -> str:
    """`text` for the terminal at `stream`: words stay whole, and what continues a line is indented two more."""
    if not is_terminal(stream):
        return text
    found = []
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip(" "))
        first, *rest = wrap(line[indent:], width(stream) - indent - 2)
        found += [" " * indent + first, *(" " * (indent + 2) + more for more in rest)]
    return "\n".join(found)


def cells(text: str) -> int:
    """Width of `text` on a terminal, escape sequences not counted."""
    bare = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in bare)
