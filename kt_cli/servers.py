"""The servers that run on this machine, seen through their state files."""

import json
import os
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

from kt_core import paths


@dataclass(frozen=True)
class Server:
    """One running server, as its state file tells. `started` is in seconds since the epoch."""

    pid: int
    url: str
    model: str
    plan: str = ""
    log: str = ""
    started: float = 0.0


def running() -> list[Server]:
    """Servers that are alive, newest first. State files of dead ones are deleted on the way."""
    found = []
    for file in paths.state_dir().glob("servers/*.json"):
        server = _read(file)
        if server is None:
            continue
        if alive(server.pid):
            found.append(server)
        else:
            _forget(file)
    return sorted(found, key=lambda server: server.started, reverse=True)


def find(model: str | None) -> Server | None:
    """The newest server that serves `model`, or the newest of all."""
    return next((server for server in running() if model in (None, server.model)), None)


def alive(pid: int) -> bool:
    """Whether `pid` is a process and not a zombie; a number that another program took does not count."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except PermissionError:
        return False  # somebody else's process: not a server of ours
    except (ProcessLookupError, FileNotFoundError, IndexError):
        return False
    return state != "Z" and b"kt_core.server" in command


def _read(file: Path) -> Server | None:
    """None for a file that is being written, vanished, or is not a state file."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        known = {field.name for field in fields(Server)}
        return Server(**{name: value for name, value in data.items() if name in known})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _forget(file: Path) -> None:
    with suppress(OSError):  # a read-only folder keeps its stale file; its server is known to be dead
        file.unlink(missing_ok=True)
