"""Where each shell looks for completion scripts, and the four lines of .zshrc that make zsh look.

Nothing but kt's own script is replaced or deleted: its first lines say that it is one. Each function returns what became of
each file: "written", "removed", "current" (nothing to do) or "absent" (nothing of kt's there).
"""

import os
from pathlib import Path

from kt_cli.completion import HEADING, SHELLS
from kt_core import config, paths
from kt_core.errors import BadData, KTError

BEGIN, END = "# >>> kt completion >>>", "# <<< kt completion <<<"
FRAMEWORKS = ("/usr/share/bash-completion/bash_completion", "/opt/homebrew/etc/profile.d/bash_completion.sh")


def script_file(shell: str) -> Path:
    """Where a shell looks for the script of a command."""
    if shell == "bash":
        named = os.environ.get("BASH_COMPLETION_USER_DIR")
        folder = Path(named) if named else paths.home("XDG_DATA_HOME", ".local/share") / "bash-completion"
        return folder / "completions" / "kt"
    if shell == "fish":
        return paths.home("XDG_CONFIG_HOME", ".config") / "fish" / "completions" / "kt.fish"
    return paths.home("XDG_DATA_HOME", ".local/share") / "zsh" / "site-functions" / "_kt"


def has_bash_completion() -> bool:
    return any(Path(file).exists() for file in FRAMEWORKS)


def install(shell: str, dry_run: bool = False) -> dict[Path, str]:
    """Put the script where the shell looks. Raises BadData for a file that is not kt's, KTError
    for one that cannot be read or written; the files before it are as they should be then."""
    file = script_file(shell)
    _check_ours(file)
    texts = {file: SHELLS[shell][1]()}
    if shell == "zsh":
        start = _start_file()
        texts[start] = _with_lines(_text(start), file.parent)
    return {file: _written(file, text, dry_run) for file, text in texts.items()}


def uninstall(shell: str, dry_run: bool = False) -> dict[Path, str]:
    """Delete the script and take the lines out of .zshrc. Raises as install does."""
    file = script_file(shell)
    _check_ours(file)
    done = {file: "removed" if _text(file) else "absent"}
    if done[file] == "removed" and not dry_run:
        try:
            file.unlink()
        except OSError as error:
            raise KTError("config.cannot_write", file=file, reason=error.strerror or error) from error
    if shell == "zsh":
        start = _start_file()
        rest = _without_lines(_text(start))
        ours = rest != _text(start)
        done[start] = "removed" if ours else "absent"
        if ours:
            _written(start, rest, dry_run)
    return done


def _start_file() -> Path:
    return paths.home("ZDOTDIR", "") / ".zshrc"


def _with_lines(text: str, folder: Path) -> str:
    """`text` of .zshrc with the lines at its end, or where they stand already. They work before and after compinit."""
    quoted = "'" + str(folder).replace("'", "'\\''") + "'"
    lines = f"{BEGIN}\nfpath+=({quoted})\nautoload -Uz compinit _kt\n"
    lines += f"(( $+functions[compdef] )) || compinit\ncompdef _kt kt\n{END}\n"
    if _has_lines(text):
        before, _, rest = text.partition(BEGIN)
        return before + lines + rest.partition(END)[2].removeprefix("\n")
    return text + ("" if text.endswith("\n") or not text else "\n") + lines


def _without_lines(text: str) -> str:
    if not _has_lines(text):
        return text
    before, _, rest = text.partition(BEGIN)
    return before + rest.partition(END)[2].removeprefix("\n")


def _has_lines(text: str) -> bool:
    return BEGIN in text and END in text.partition(BEGIN)[2]


def _check_ours(file: Path) -> None:
    text = _text(file)
    if text and not any(HEADING in line for line in text.splitlines()[:2]):
        raise BadData("completion.not_ours", file=file)


def _text(file: Path) -> str:
    """What is in a file; nothing where there is none."""
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise KTError("completion.unreadable", file=file, reason=error.strerror or error) from error


def _written(file: Path, text: str, dry_run: bool) -> str:
    if _text(file) == text:
        return "current"
    if not dry_run:
        config.write_file(file, text, private=False)
    return "written"
