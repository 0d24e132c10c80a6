"""`kt completion`: the completion script of a shell, printed, or put where the shell looks."""

import os
from pathlib import Path
from typing import Annotated

import typer

from kt_cli import output
from kt_cli.help import Command, new_app
from kt_core.errors import UsageError
from kt_core.messages import t

app = new_app("completion.help")
NAMES = ("bash", "zsh", "fish")
# What was done to a file, and whether a dry run would have done it -> how that is said
SAID = {
    ("written", False): "completion.wrote",
    ("written", True): "completion.would_write",
    ("removed", False): "completion.removed",
    ("removed", True): "completion.would_remove",
    ("current", False): "completion.current",
    ("current", True): "completion.current",
    ("absent", False): "completion.absent",
    ("absent", True): "completion.absent",
}

Shell = Annotated[str | None, typer.Argument(help="completion.shell", metavar="|".join(NAMES))]
DryRun = Annotated[bool, typer.Option("--dry-run", help="completion.dry_run")]


def _print(shell: str) -> None:
    from kt_cli.completion import SHELLS

    script = SHELLS[shell][1]()
    output.result({"shell": shell, "script": script}, lambda: script)


@app.command(cls=Command, help="completion.bash_help", epilog="completion.print_examples")
def bash() -> None:
    _print("bash")


@app.command(cls=Command, help="completion.zsh_help", epilog="completion.print_examples")
def zsh() -> None:
    _print("zsh")


@app.command(cls=Command, help="completion.fish_help", epilog="completion.print_examples")
def fish() -> None:
    _print("fish")


@app.command(cls=Command, help="completion.install_help", epilog="completion.examples")
def install(shell: Shell = None, dry_run: DryRun = False) -> None:
    from kt_cli import completion_files

    name = _named(shell)
    done = completion_files.install(name, dry_run)
    _show(name, done, dry_run)
    if name == "bash" and not completion_files.has_bash_completion():
        output.warn(*t("completion.no_framework", file=next(iter(done))).split("\n"))
    elif not dry_run:
        output.status(t("completion.new_shell", shell=name))


@app.command(cls=Command, help="completion.uninstall_help", epilog="completion.examples")
def uninstall(shell: Shell = None, dry_run: DryRun = False) -> None:
    from kt_cli import completion_files

    name = _named(shell)
    _show(name, completion_files.uninstall(name, dry_run), dry_run)


def _named(shell: str | None) -> str:
    """The shell that is meant. Raises UsageError for one that has no script."""
    if shell is None:
        shell = Path(os.environ.get("SHELL", "")).name
        if shell not in NAMES:
            raise UsageError("completion.which", shells=output.listed(NAMES))
    if shell not in NAMES:
        raise UsageError("completion.unknown", shell=shell, shells=output.listed(NAMES))
    return shell


def _show(shell: str, done: dict[Path, str], dry_run: bool) -> None:
    files = [{"file": file, "done": what} for file, what in done.items()]
    lines = "\n".join(t(SAID[what, dry_run], file=file) for file, what in done.items())
    output.result({"shell": shell, "dry_run": dry_run, "files": files}, lambda: lines, names=map(str, done))
