"""From a model's name to a server that answers: resolve, pull, plan, start, watch, stop.

The server is a child in its own session, so Ctrl-C reaches only `kt`, which then stops it. The child
ends by itself when the pipe on its standard input reaches its end, which happens however `kt` dies.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import IO, Any
from urllib.parse import urlsplit

from kt_cli import output, servers, terminal
from kt_core import config, paths
from kt_core.errors import KTError, NotFound, RemoteError, UsageError
from kt_core.messages import t
from kt_core.types import ModelFiles, Plan, ServerSettings

PORTS_TRIED = 100  # from the preferred port upwards
STOP_SECONDS = 10.0  # between asking the server to stop and killing it
LOGS_KEPT = 20
NAME_LENGTH = 50  # characters of a model's name in a file's name, which has room for 255 bytes
OWN_NAME = re.compile(r"\d{8}-\d{6}-(\d{1,10})-")  # of plans and logs: date, time, process
SETTINGS = (
    "inference.threads",
    "inference.context",
    "inference.max_running",
    "inference.kv_dtype",
    "inference.prefix_disk",
)  # each for the decision that has its last word's name
SERVER = [sys.executable, "-m", "kt_core.server"]


@dataclass
class Child:
    """A server that this process started. `events` is the reading end of its event pipe."""

    process: subprocess.Popen[bytes]
    events: int
    log: Path


def files_of(name: str, may_pull: bool = True, force: bool = False) -> ModelFiles:
    """The model's files; a registered model that is not on this disk is pulled first, if it can fit."""
    from kt_core import models
    from kt_core.machine import probe
    from kt_core.models import registry, store
    from kt_core.plan import check_download

    try:
        return models.resolve(name)
    except NotFound:
        entry = registry.find(name)
        if entry is None or not may_pull:
            raise
    if not force:
        check_download(probe(), entry.name, entry.bytes)
    output.status(t("run.pulling", name=entry.name, size=output.size(entry.download)))
    with output.progress() as report:
        return store.pull(entry.name, report)


def make_plan(files: ModelFiles, overrides: dict[str, Any]) -> Plan:
    """Probe the machine, read the headers, decide."""
    from kt_core.machine import hardware, probe
    from kt_core.machine.folder import free_bytes
    from kt_core.models import read_spec
    from kt_core.plan import make_plan as decide

    wishes, settings = wished(overrides)
    machine = probe()
    free = free_bytes(paths.cache_dir())
    return marked(decide(machine, files, read_spec(files), wishes, hardware.expected(machine), free), settings)


def wished(overrides: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """What the user chose for a plan, and the names of what the settings said and no option."""
    settings = {key.partition(".")[2]: config.get(key) for key in SETTINGS}
    settings = {name: value for name, value in settings.items() if value not in (0, "auto") and not overrides.get(name)}
    given = {name: value for name, value in overrides.items() if value is not None}
    return {**given, **settings}, set(settings)


def marked(plan: Plan, settings: set[str]) -> Plan:
    """The plan, with the settings named as the source of what they decided."""
    return replace(
        plan, decisions=tuple(replace(d, source="config") if d.name in settings else d for d in plan.decisions)
    )


def with_server(
    plan: Plan,
    host: str | None,
    port: int | None,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    served_name: str | None = None,
    **access: Any,
) -> Plan:
    """The plan with an address to listen on and the server's settings; `access` are ServerSettings' own.

    Raises KTError when an explicit port is taken.

    Where none is asked for, the server takes the next one if another program is faster to take this one.
    """
    host = host or config.get("server.host")
    settings = ServerSettings(
        host=host,
        port=free_port(host, port),
        ports=PORTS_TRIED if port is None else 1,
        served_name=served_name or plan.model.name,
        tool_parser=tool_parser or config.get("server.tool_parser"),
        reasoning_parser=reasoning_parser or config.get("server.reasoning_parser"),
        **access,
    )
    return replace(plan, server=settings)


def free_port(host: str, wanted: int | None) -> int:
    """`wanted` if it is free, else an error; with None the preferred port or the next free one."""
    if wanted is not None:
        if not _is_free(host, wanted):
            raise _taken(wanted, _next_free(host, wanted))
        return wanted
    return _next_free(host, config.get("server.port"))


def _taken(port: int, free: int) -> KTError:
    """The error for an occupied port; a server of kt there is named."""
    ours = next((server for server in servers.running() if urlsplit(server.url).port == port), None)
    if ours:
        return KTError("run.port_ours", port=port, free=free, model=ours.model, url=ours.url, pid=ours.pid)
    return KTError("run.port_taken", port=port, free=free)


def _next_free(host: str, first: int) -> int:
    for port in range(first, min(first + PORTS_TRIED, 65536)):
        if _is_free(host, port):
            return port
    raise KTError("run.no_free_port", first=first, last=min(first + PORTS_TRIED, 65536) - 1)


def _is_free(host: str, port: int) -> bool:
    """Whether the server could listen there. Raises UsageError for an address that is not this machine's."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(found[0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(found[4])
    except (socket.gaierror, ValueError) as error:  # ValueError: what no name can be, such as an empty label
        reason = getattr(error, "strerror", None) or error
        raise UsageError("run.bad_host", host=host, reason=reason) from error
    except PermissionError:
        return False
    except OSError as error:
        if error.errno in (98, 48):  # EADDRINUSE on Linux and BSD
            return False
        raise UsageError("run.bad_host", host=host, reason=error.strerror) from error
    return True


@contextmanager
def serving(plan: Plan) -> Iterator[Child]:
    """A server from the plan, whose output goes to a log file. The plan's file, which may hold the API key, and the
    server are gone at the end of the block, whatever ends it; a server that is just being started ends by itself.
    """
    signals = _Signals()
    name = _own_name(plan.model.name)
    plan_file = paths.state_dir() / "plans" / f"{name}.json"
    log = paths.state_dir() / "logs" / f"{name}.log"
    try:
        child = _start(plan, plan_file, log)
        signals.process = child.process
        try:
            yield child
        finally:
            signals.stopping = True
            stop(child)
    finally:
        with suppress(OSError):
            plan_file.unlink(missing_ok=True)


@contextmanager
def running(command: list[str], name: str) -> Iterator[Child]:
    """A program that tells events, whose output goes to a log file; it is gone at the end of the block."""
    signals = _Signals()
    log = paths.state_dir() / "logs" / f"{_own_name(name)}.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        sink = log.open("ab")
    except OSError as error:
        raise KTError("run.no_state", folder=paths.state_dir(), reason=error.strerror or error) from error
    _prune(log.parent, paths.state_dir() / "plans")
    child = _spawn(command, log, sink)
    signals.process = child.process
    try:
        yield child
    finally:
        signals.stopping = True
        stop(child)


def _own_name(name: str) -> str:
    """Of this command's files: date, time, process, and what they are about."""
    return time.strftime("%Y%m%d-%H%M%S") + f"-{os.getpid()}-" + re.sub(r"[^\w.-]+", "_", name)[:NAME_LENGTH]


class _Signals:
    """From now to the command's end, the first signal acts as it did before; others only hurry the server's stop.

    None of them can interrupt the clean-up in this way, nor one that comes when the stop has begun already.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.stopping = False
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, *terminal.ENDING)}
        self._before = {number: handler for number, handler in handlers.items() if callable(handler)}
        for number in self._before:
            signal.signal(number, self._arrived)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if not self.stopping:
            self.stopping = True
            self._before[signal.Signals(number)](number, frame)
        elif self.process:
            self.process.kill()


def _start(plan: Plan, plan_file: Path, log: Path) -> Child:
    """Write the plan and start a server from it. Raises KTError when the state folder cannot be written to."""
    try:
        for folder in (plan_file.parent, log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        plan.write(plan_file)
        sink = log.open("ab")
    except OSError as error:
        raise KTError("run.no_state", folder=paths.state_dir(), reason=error.strerror or error) from error
    _prune(log.parent, plan_file.parent)
    return _spawn([*SERVER, "--plan", str(plan_file)], log, sink)


def _spawn(command: list[str], log: Path, sink: IO[bytes]) -> Child:
    """Start a program that takes --events-fd, with its output in `sink`, the open file of `log`."""
    reading, writing = os.pipe()
    try:
        with sink:
            process = subprocess.Popen(
                [*command, "--events-fd", str(writing)],
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=sink,
                pass_fds=(writing,),
                start_new_session=True,
                env=_environment(),
            )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return Child(process, reading, log)


def _environment() -> dict[str, str]:
    """The child's: messages in this command's language, and docstrings kept, which transformers reads at import."""
    from kt_core.messages import language

    kept = {name: value for name, value in os.environ.items() if name != "PYTHONOPTIMIZE"}
    return {**kept, "KT_LANG": language()}


def _prune(logs: Path, plans: Path) -> None:
    """Keep the newest logs, and the plans of commands that still run; a killed command leaves its plan behind.

    Files that kt did not name are left alone, and so are those that cannot be removed.
    """
    old = sorted(log for log in logs.glob("*.log") if OWN_NAME.match(log.name))[:-LOGS_KEPT]
    for plan in plans.glob("*.json"):
        own = OWN_NAME.match(plan.name)
        if own and not Path("/proc", own[1]).exists():
            old.append(plan)
    for file in old:
        with suppress(OSError):
            file.unlink()


def events(child: Child) -> Iterator[dict[str, Any]]:
    """The server's events until it ends. Lines that are not events are left out."""
    with os.fdopen(child.events, encoding="utf-8", errors="replace", closefd=False) as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event


def wait_ready(child: Child, stream: Iterator[dict[str, Any]]) -> str:
    """Show progress until the server is ready; its URL. Raises RemoteError with the reason and the log."""
    with output.progress() as report:
        report("start", 0, 0, "")  # the imports take seconds before the first event comes
        for event in stream:
            kind = event.get("event")
            if kind == "progress":
                report(str(event["stage"]), int(event["done"]), int(event["total"]), str(event.get("unit", "")))
            elif kind == "ready":
                return str(event["url"])
            elif kind == "warning":
                output.warn(*str(event.get("what", "")).splitlines())
            elif kind == "error":
                raise failure(child, event)
    raise failure(child, None)


def watch(child: Child, stream: Iterator[dict[str, Any]]) -> None:
    """Stay with a ready server until it ends; an end that nobody asked for is an error."""
    for event in stream:
        if event.get("event") == "warning":
            output.warn(*str(event.get("what", "")).splitlines())
        elif event.get("event") == "error":
            raise failure(child, event)
    if child.process.wait() != 0:
        raise failure(child, None)


def failure(child: Child, event: dict[str, Any] | None) -> RemoteError:
    """The error that a server reported, or what can be said of one that ended without a word."""
    at = t("run.log_at", log=child.log)
    if event:
        next_step = "\n".join(part for part in (str(event.get("next", "")), at) if part)
        code = int(event.get("exit_code") or 1)
        return RemoteError(str(event.get("what", "")), str(event.get("why", "")), next_step, code)
    code = child.process.wait()
    what = t("run.server_killed", signal=-code) if code < 0 else t("run.server_ended", code=code)
    why = t("run.perhaps_memory") if code == -signal.SIGKILL else last_line(child.log)
    return RemoteError(what, why, at, code if 0 < code < 8 else 1)


def last_line(log: Path) -> str:
    """The last line of a log that says something."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def stop(child: Child) -> None:
    """End the server: ask, wait, then kill."""
    try:
        if child.process.poll() is None:
            child.process.terminate()
        if child.process.stdin:
            child.process.stdin.close()
        child.process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.process.kill()
        child.process.wait()
    finally:
        os.close(child.events)
