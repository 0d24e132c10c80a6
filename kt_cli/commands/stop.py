"""`kt stop`: end servers."""

from typing import Annotated

import typer

from kt_cli import choose, output, servers
from kt_cli.help import Command, new_app
from kt_core.errors import UsageError
from kt_core.messages import t

app = new_app("servers.stop_help")


@app.command(cls=Command, help="servers.stop_help", epilog="servers.stop_examples")
def stop(
    name: Annotated[str | None, typer.Argument(help="servers.name", metavar="SERVER")] = None,
    all_: Annotated[bool, typer.Option("--all", help="servers.all")] = False,
) -> None:
    if all_ and name:
        raise UsageError("servers.all_or_one")
    stopped = []
    for server in servers.running() if all_ else [choose.server(name)]:
        asked = servers.end(server)
        output.status(t("servers.stopped" if asked else "servers.killed", model=server.model, url=server.url))
        stopped.append({"pid": server.pid, "model": server.model, "url": server.url, "killed": not asked})
    if all_ and not stopped:
        raise servers.nothing(None)
    output.result({"stopped": stopped}, lambda: "", names=[str(server["pid"]) for server in stopped])
