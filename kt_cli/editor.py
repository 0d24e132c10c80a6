"""The user's editor."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from kt_cli import choose
from kt_core.errors import EnvironmentProblem, KTError

USUAL = ("nano", "vim", "vi", "emacs")


def command() -> list[str]:
    """What $VISUAL or $EDITOR says, which may be a script's own; else a usual editor that is installed, where there is a
    terminal for it. Raises EnvironmentProblem."""
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ""
    if not named and not choose.can_ask():
        raise EnvironmentProblem("editor.no_terminal")
    named = named or next(filter(shutil.which, USUAL), "")
    try:
        words = shlex.split(named)
    except ValueError:
        words = []
    if not words or not shutil.which(words[0]):
        raise EnvironmentProblem("editor.absent", name=named or "-")
    return words


def edit(file: Path) -> None:
    """Let the user edit `file`. Raises EnvironmentProblem without an editor, KTError when it fails."""
    words = command()
    code = subprocess.run([*words, str(file)]).returncode
    if code:
        raise KTError("editor.failed", name=words[0], code=code)


def compose(text: str, file: Path) -> str:
    """What the user made of `text`, which stays in `file`. Raises as edit does."""
    file.write_text(text, encoding="utf-8")
    edit(file)
    return file.read_text(encoding="utf-8", errors="replace")
