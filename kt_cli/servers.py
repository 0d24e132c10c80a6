"""The servers that run on this machine, seen through their state files."""

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import urlsplit

from kt_core import paths
from kt_core.errors import EnvironmentProblem, KTError, NotFound, UsageError
from kt_core.events import born
from kt_core.flags import whole
from kt_core.messages import t
from kt_core.types import Plan

STOP_SECONDS = 10.0  # between asking a server to stop and killing it
_POLL_SECONDS = 0.05


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
    born: int = 0  # when its process began, as events.born has it; 0: not known
    ready: bool = True  # whether its model is loaded

    @property
    def port(self) -> int | None:
        return urlsplit(self.url).port


def running() -> list[Server]:
    """Servers that are alive, newest first, those that still load included. Files of dead ones are deleted on the way."""
    found = []
    try:
        files = list((paths.state_dir() / "servers").glob("[0-9]*.json"))
    except (EnvironmentProblem, OSError):  # no home folder, or one that cannot be read: nothing was noted there
        return []
    for file in files:
        server = _read(file)
        if server is None:
            continue
        if alive(server.pid, server.born):
            found.append(server)
        else:
            _forget(file, server)
    return sorted(found, key=lambda server: server.started, reverse=True)


def ready() -> list[Server]:
    """Servers that answer, newest first."""
    return [server for server in running() if server.ready]


def of(path: str) -> Server | None:
    """The newest server of the model at `path` that answers. A name would not do: models in two folders may share it."""
    return next((server for server in ready() if server.path == path), None)


def matching(word: str) -> list[Server]:
    """The servers that `word` may mean: a process id, a port, an address, or a model's name. Newest first."""
    found = running()
    if (number := whole(word)) is not None:
        return [server for server in found if number in (server.pid, server.port)]
    address = word.rstrip("/").removesuffix("/v1")
    return [server for server in found if word.casefold() == server.model.casefold() or server.url == address]


def the(word: str | None) -> Server:
    """The one server that is meant. Raises NotFound where there is none, UsageError where there are several."""
    found = matching(word) if word else running()
    if not found:
        raise nothing(word)
    if len(found) > 1:
        raise UsageError("servers.several", found=listed(found), pid=found[0].pid)
    return found[0]


def nothing(word: str | None) -> NotFound:
    """The error where no server is, or none that `word` means."""
    others = running()
    return NotFound("servers.no_such", name=word, found=listed(others)) if others else NotFound("servers.none")


def listed(found: list[Server]) -> str:
    return t("output.comma").join(t("servers.one", model=s.model, url=s.url, pid=s.pid) for s in found)


def plan_of(server: Server) -> Plan | None:
    """The plan that the server was started from; None where it cannot be read."""
    try:
        return Plan.read(Path(server.plan))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def end(server: Server) -> bool:
    """Ask the server to stop, wait, then kill it; False when it had to be killed. Raises KTError when that fails."""
    for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        try:
            os.kill(server.pid, number)
        except ProcessLookupError:
            pass
        except PermissionError as error:
            raise KTError("servers.not_stopped", pid=server.pid, reason=error.strerror) from error
        if _ended(server, seconds):
            _forget(paths.state_dir() / "servers" / f"{server.pid}.json", server)
            return number == signal.SIGTERM
    raise KTError("servers.not_stopped", pid=server.pid, reason=t("servers.still_there"))


def _ended(server: Server, seconds: float) -> bool:
    """Whether the server ends within so many seconds."""
    last = time.monotonic() + seconds
    while alive(server.pid, server.born):
        if time.monotonic() > last:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def using(folder: Path) -> Server | None:
    """A running server whose model's files lie in `folder`."""
    return next((server for server in running() if _uses(server, folder)), None)


def _uses(server: Server, folder: Path) -> bool:
    """By its plan; a server whose plan cannot be read counts by its model's name."""
    plan = plan_of(server)
    if plan is None:
        return server.model == folder.name
    return any(Path(file).is_relative_to(folder) for file in plan.model.files)


def alive(pid: int, since: int = 0) -> bool:
    """Whether `pid` is a server's process that began at `since` (0: at any time) and no zombie.

    A number that another program took, or another server, does not count.
    """
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except PermissionError:
        return False  # somebody else's process: not a server of ours
    except (ProcessLookupError, FileNotFoundError, IndexError, OverflowError):
        return False
    return state != "Z" and b"kt_core.server" in command and since in (0, born(pid))


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
        right = right and type(server.pid) is int and type(server.born) is int and type(server.ready) is bool
        return server if right and file.name == f"{server.pid}.json" else None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _forget(file: Path, server: Server) -> None:
    """Delete the files of a server that has ended. Its plan may hold the API key."""
    with suppress(OSError):  # a read-only folder keeps its stale file; its server is known to be dead
        file.unlink(missing_ok=True)
        if Path(server.plan).parent == (paths.state_dir() / "plans").resolve():
            Path(server.plan).unlink(missing_ok=True)
