"""Markdown that appears while it is being written.

Finished blocks are printed once and scroll away; only the last, unfinished block is drawn again, at
most REFRESH_SECONDS apart and never taller than the screen, so neither the length of an answer nor
that of one block slows the stream or makes it flicker.
"""

import re
import time
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment

REFRESH_SECONDS = 0.08
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
LIST_ITEM = re.compile(r" {0,3}([-*+]|\d{1,9}[.)])\s")


def finished(text: str) -> int:
    """How many characters of `text` are whole blocks that later text cannot change.

    A block ends at a blank line or a closing fence. Inside a list, a blank line followed by another
    item or by an indented line does not end it. An unfinished line decides nothing.
    """
    end, position, fence, in_list, blank = 0, 0, "", False, False
    for line in text.splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        opener = FENCE.match(line)
        if fence:
            if opener and opener[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
                end = end if in_list else position + len(line)
        elif not line.strip():
            blank = True
        else:
            goes_on = in_list and (line[:2].isspace() or bool(LIST_ITEM.match(line)))
            if blank and not goes_on:
                end, in_list = position, False
            in_list = in_list or bool(LIST_ITEM.match(line))
            fence = opener[1] if opener else ""
            blank = False
        position += len(line)
    return position if blank and not in_list and not fence else end


def tail(text: str, lines: int) -> str:
    """The last `lines` lines of an unfinished block; a code block that is open keeps its opening line."""
    all_lines = text.splitlines()
    if len(all_lines) <= lines:
        return text
    opening = next((line for line in all_lines[:-lines] if FENCE.match(line)), "")
    return "\n".join([opening, *all_lines[-lines:]] if opening else all_lines[-lines:])


class _Bottom:
    """The lowest rows of a block, as many as the screen has room for."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = max(console.height - 2, 1)
        lines = console.render_lines(render(tail(self.text, rows)), options, pad=False)
        for line in lines[-rows:]:
            yield from line
            yield Segment.line()


def render(text: str) -> Markdown:
    return Markdown(text, code_theme="ansi_dark", hyperlinks=False)


class Writer:
    """Feed it text as it comes; close it at the end, also after an interrupt."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.pending = ""
        self.drawn = 0.0
        self.printed = False
        self.live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)

    def feed(self, text: str) -> None:
        if not self.live.is_started:
            self.live.start()
        self.pending += text
        length = finished(self.pending) if "\n" in text else 0
        now = time.monotonic()
        if length:
            self._show("")
            self._print(self.pending[:length])
            self.pending = self.pending[length:]
        if length or now - self.drawn >= REFRESH_SECONDS:
            self.drawn = now
            self._show(_Bottom(self.pending) if self.pending.strip() else "")

    def close(self) -> None:
        if self.live.is_started:
            self._show("")
            self.live.stop()
        self._print(self.pending)
        self.pending = ""

    def _show(self, content: Any) -> None:
        self.live.update(content, refresh=True)

    def _print(self, block: str) -> None:
        if block.strip():
            if self.printed:
                self.console.print()
            self.console.print(render(block))
            self.printed = True
