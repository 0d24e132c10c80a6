"""The terminal's manners: no echo while something is drawn, and a clean end when a signal ends the command."""

import base64
import os
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ENDING = (signal.SIGTERM, signal.SIGHUP)  # the regular way to end a service, and the terminal's end


class Terminated(SystemExit):
    """One of ENDING arrived. A SystemExit, because event loops let that one through."""

    exit_code = 1


def catch_signals() -> None:
    """Make a signal that ends the command raise Terminated, so that everything is put in order on the way out.

    What was ignored from the start, as under nohup, stays ignored. Only the first signal counts: a closing
    terminal sends several, and a later one must not disturb the clean-up.
    """
    streams = [stream.fileno() for stream in (sys.stdout, sys.stderr) if stream.isatty()]

    def end(number: int, frame: object) -> None:
        for caught in ENDING:
            signal.signal(caught, lambda *_: None)  # SIG_IGN would make Python complain of one that has just come
        for stream in streams:
            if not os.isatty(stream):  # the terminal is gone, and writing to it would fail
                silence(stream)
        raise Terminated(Terminated.exit_code)

    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)


def open_streams() -> None:
    """Open nothing in place of the standard streams that are closed: the next file would get their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  stays open to the end


def silence(descriptor: int) -> None:
    """Let everything written to `descriptor` from now on vanish."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def copy(text: str) -> bool:
    """Have the terminal put `text` on the clipboard, as OSC 52 asks it to, which works over SSH too. Whether there is a terminal
    to ask; whether it does so, none of them says."""
    stream = next((stream for stream in (sys.stdout, sys.stderr) if stream.isatty()), None)
    if stream is None:
        return False
    inside = "\033Ptmux;\033{}\033\\" if "TMUX" in os.environ else "{}"  # tmux hands on what is wrapped for it
    stream.write(inside.format(f"\033]52;c;{base64.b64encode(text.encode()).decode()}\a"))
    stream.flush()
    return True


@contextmanager
def no_echo() -> Iterator[None]:
    """Within this block the terminal does not show what is typed; at its end, what was typed is thrown away.

    An echoed key, ^C included, would move the cursor under a live display, which then erases the wrong lines.
    Ctrl-C still interrupts. Does nothing where standard input is no terminal, or where the command is in the
    background, which may not change the terminal's settings.
    """
    descriptor = _foreground_terminal()
    if descriptor is None:
        yield
        return
    before = termios.tcgetattr(descriptor)
    quiet = before.copy()
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        if _foreground_terminal() is not None:
            termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)


def _foreground_terminal() -> int | None:
    """The descriptor of standard input, if it is a terminal that this process may set."""
    try:
        descriptor = sys.stdin.fileno()
        return descriptor if os.tcgetpgrp(descriptor) == os.getpgrp() else None
    except (OSError, ValueError, AttributeError):  # no terminal, a hung-up one, or no standard input at all
        return None
