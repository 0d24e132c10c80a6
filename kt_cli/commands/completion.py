"""`kt completion`: the completion script of a shell, for the user to put where it belongs."""

from typing import Annotated

import typer

from kt_cli import output
from kt_cli.help import Command, new_app
from kt_core.errors import UsageError

app = new_app("cli.completion_help")


@app.command(cls=Command, help="cli.completion_help", epilog="cli.completion_examples")
def completion(
    shell: Annotated[str, typer.Argument(help="cli.completion_shell", metavar="bash|zsh|fish")],
) -> None:
    from kt_cli.completion import SHELLS as scripts

    if shell not in scripts:
        raise UsageError("cli.unknown_shell", shell=shell, shells=output.listed(scripts))
    script = scripts[shell][1]()
    output.result({"shell": shell, "script": script}, lambda: script)
