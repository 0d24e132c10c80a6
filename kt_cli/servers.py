"""The servers that run on this machine, seen through their state files."""

import json
import os
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import urlsplit

from kt_core import paths
from kt_core.errors import EnvironmentProblem
from kt_core.types import Plan


@dataclass(frozen=True)
class Server:
    """One running server, as its state file tells. `started` is in seconds since the epoch."""

    pid: int
    url: str
    model: str
    path: str = ""  # of the model
    plan: str = ""
    log: str = ""
    started: float = 0.0


def running() -> list[Server]:
    """Servers that are alive, newest first. State files of dead ones are deleted on the way."""
    found = []
    try:
        files = list((paths.state_dir() / "servers").glob("[0-9]*.json"))
    except (EnvironmentProblem, OSError):  # no home folder, or one that cannot be read: nothing was noted there
        return []
    for file in files:
        server = _read(file)
        if server is None:
            continue
        if alive(server.pid):
            found.append(server)
        else:
            _forget(file)
    return sorted(found, key=lambda server: server.started, reverse=True)


def of(path: str) -> Server | None:
    """The newest server of the model at `path`. A name would not do: models in two folders may share it."""
    return next((server for server in running() if server.path == path), None)


def find(model: str | None) -> Server | None:
    """The newest server that serves `model`, or the newest of all."""
    return next((server for server in running() if model in (None, server.model)), None)


def using(folder: Path) -> Server | None:
    """A running server whose model's files lie in `folder`."""
    return next((server for server in running() if _uses(server, folder)), None)


def _uses(server: Server, folder: Path) -> bool:
    """By its plan; a server whose plan cannot be read counts by its model's name."""
    try:
        files = Plan.read(Path(server.plan)).model.files
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return server.model == folder.name
    return any(Path(file).is_relative_to(folder) for file in files)


def alive(pid: int) -> bool:
    """Whether `pid` is a process and not a zombie; a number that another program took does not count."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except PermissionError:
        return False  # somebody else's process: not a server of ours
    except (ProcessLookupError, FileNotFoundError, IndexError, OverflowError):
        return False
    return state != "Z" and b"kt_core.server" in command


def _read(file: Path) -> Server | None:
    """None for a file that is being written, vanished, or is not a state file."""
    try:
        if not file.is_file():  # reading a pipe would not end
            return None
        data = json.loads(file.read_text(encoding="utf-8"))
        known = {field.name for field in fields(Server)}
        server = Server(**{name: value for name, value in data.items() if name in known})
        texts = (server.url, server.model, server.path, server.plan, server.log)
        urlsplit(server.url).port  # noqa: B018  raises ValueError where it is no URL
        right = all(isinstance(text, str) for text in texts) and isinstance(server.started, int | float)
        return server if right and type(server.pid) is int and file.name == f"{server.pid}.json" else None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _forget(file: Path) -> None:
    with suppress(OSError):  # a read-only folder keeps its stale file; its server is known to be dead
        file.unlink(missing_ok=True)
