"""`kt logs`: what servers wrote down."""

import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import Annotated

import typer

from kt_cli import choose, launch, output, servers
from kt_cli.help import Command, new_app
from kt_core import paths
from kt_core.errors import KTError, NotFound, UsageError

app = new_app("servers.logs_help")
_POLL_SECONDS = 0.2


@app.command(cls=Command, help="servers.logs_help", epilog="servers.logs_examples")
def logs(
    name: Annotated[str | None, typer.Argument(help="servers.name", metavar="SERVER")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="servers.follow")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", help="servers.lines", metavar="COUNT", min=0)] = 50,
) -> None:
    if follow and output.is_json():
        raise UsageError("servers.follow_json")
    server = _running(name)
    log = Path(server.log) if server and server.log else _newest(name)
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            last = list(
                deque(iter(file.readline, ""), min(lines, sys.maxsize) or None)
            )  # a file that is iterated over cannot tell
            position = file.tell()
        output.result({"log": log, "lines": [line.rstrip("\n") for line in last]}, lambda: "".join(last), [str(log)])
        if follow:
            _follow(log, position, server)
    except OSError as error:
        raise KTError("servers.log_unreadable", file=log, reason=error.strerror or error) from error


def _running(name: str | None) -> servers.Server | None:
    """The server that is meant, if it still runs."""
    found = servers.matching(name) if name else servers.running()
    return choose.server(name) if found else None


def _newest(name: str | None) -> Path:
    """The newest log, or the newest of the model called `name`. Raises NotFound."""
    logs = sorted((paths.state_dir() / "logs").glob("*.log"))
    names = {log: launch.OWN_NAME.sub("", log.stem) for log in logs if launch.OWN_NAME.match(log.name)}
    found = [log for log in names if not _set_aside(log) and (name is None or names[log].casefold() == name.casefold())]
    if found:
        return found[-1]
    if names:
        raise NotFound("servers.no_log_of", name=name, found=output.listed(dict.fromkeys(names.values())))
    raise NotFound("servers.no_log")


def _set_aside(log: Path) -> bool:
    """Whether it is an older part of a log: a.1.log beside a.log."""
    base = log.with_suffix("")
    return base.suffix[1:].isdecimal() and base.with_suffix(".log").exists()


def _follow(log: Path, position: int, server: servers.Server | None) -> None:
    """Show what is written from `position` on, until the server has ended; also in the file that takes this one's place."""
    file = log.open(encoding="utf-8", errors="replace")
    file.seek(position)
    try:
        while True:
            alive = server is not None and servers.alive(server.pid, server.born)
            while piece := file.read():
                output.text(output.printable(piece) if output.is_terminal(sys.stdout) else piece)
            if not alive:
                return
            if log.stat().st_ino != os.fstat(file.fileno()).st_ino:
                file.close()
                file = log.open(encoding="utf-8", errors="replace")
            else:
                time.sleep(_POLL_SECONDS)
    finally:
        file.close()
