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
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import IO, Any

from kt_cli import output, servers, terminal
from kt_core import config, paths
from kt_core.errors import DoesNotFit, KTError, NotFound, RemoteError, UsageError
from kt_core.messages import t
from kt_core.types import ModelFiles, Plan, ServerSettings

PORTS_TRIED = 100  # from the preferred port upwards
LOGS_KEPT = 20
NAME_LENGTH = 50  # characters of a model's name in a file's name, which has room for 255 bytes
OWN_NAME = re.compile(r"\d{8}-\d{6}-(\d{1,10})-")  # of plans and logs: date, time, process
TIER_VARIABLE = "KT_KERNEL_CPU_VARIANT"
SETTINGS = (
    "inference.threads",
    "inference.context",
    "inference.max_running",
    "inference.kv_dtype",
    "inference.prefix_host",
    "inference.prefix_disk",
)  # each for the decision that has its last word's name
SERVER = [sys.executable, "-m", "kt_core.server"]
BENCH = [sys.executable, "-m", "kt_core.bench"]


@dataclass
class Child:
    """A server that this process started. `events` is the reading end of its event pipe."""

    process: subprocess.Popen[bytes]
    events: int
    log: Path
    plan: Path | None = None  # the file that a server was started from


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


def make_plan(files: ModelFiles, overrides: dict[str, Any], use_tuned: bool = True) -> Plan:
    """Probe the machine, read the headers, decide; with what `kt tune` found unless the user chose otherwise."""
    from kt_core.bench import tuned
    from kt_core.machine import hardware, probe
    from kt_core.machine.folder import free_bytes
    from kt_core.models import read_spec
    from kt_core.plan import make_plan as decide

    wishes, settings = wished(overrides)
    machine = probe()
    inputs = (hardware.expected(machine), free_bytes(paths.cache_dir()))
    spec = read_spec(files)
    found = tuned.find(machine, files) if use_tuned else None
    better = {name: value for name, value in found.settings.items() if name not in wishes} if found else {}
    if found and better:
        with suppress(DoesNotFit):  # there was more memory when it was measured
            plan = decide(machine, files, spec, {**wishes, **better}, *inputs)
            reason = t("tune.reason", gain=f"{found.gain:.2f}")
            return marked(by_tuning(plan, better, reason), settings)
    return marked(decide(machine, files, spec, wishes, *inputs), settings)


def by_tuning(plan: Plan, names: Iterable[str], reason: str) -> Plan:
    """The plan, with `kt tune` named as the source of these decisions."""
    taken = set(names)
    return replace(
        plan,
        decisions=tuple(replace(d, source="tuned", reason=reason) if d.name in taken else d for d in plan.decisions),
    )


def wished(overrides: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """What the user chose for a plan, and the names of what the settings said and no option."""
    settings = {key.partition(".")[2]: config.get(key) for key in SETTINGS}
    settings = {name: value for name, value in settings.items() if value not in (0, "auto") and not overrides.get(name)}
    given = {name: value for name, value in overrides.items() if value is not None}
    if forced := os.environ.get(TIER_VARIABLE):  # which the kernels obey whatever a plan says
        given.setdefault("tier", forced)
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
        if not is_free(host, wanted):
            raise _taken(wanted, _next_free(host, wanted))
        return wanted
    return _next_free(host, config.get("server.port"))


def _taken(port: int, free: int) -> KTError:
    """The error for an occupied port; a server of kt there is named."""
    ours = next((server for server in servers.running() if server.port == port), None)
    if ours:
        return KTError("run.port_ours", port=port, free=free, model=ours.model, url=ours.url, pid=ours.pid)
    return KTError("run.port_taken", port=port, free=free)


def _next_free(host: str, first: int) -> int:
    for port in range(first, min(first + PORTS_TRIED, 65536)):
        if is_free(host, port):
            return port
    raise KTError("run.no_free_port", first=first, last=min(first + PORTS_TRIED, 65536) - 1)


def is_free(host: str, port: int) -> bool:
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
    try:
        child = _start(plan, name)
        signals.process = child.process
        try:
            yield child
        finally:
            signals.stopping = True
            stop(child)
            signals.leave()
    finally:
        _unlink(_plan_file(name))


def _plan_file(name: str) -> Path:
    return paths.state_dir() / "plans" / f"{name}.json"


def _unlink(file: Path | None) -> None:
    with suppress(OSError):
        if file:
            file.unlink(missing_ok=True)


def detached(plan: Plan) -> tuple[str, Child]:
    """A server that goes on when this command ends, and its URL, once it is ready."""
    child, url = _ready(plan, subprocess.DEVNULL)
    os.close(child.events)
    return url, child


@contextmanager
def beside(plan: Plan) -> Iterator[str]:
    """The URL of a server that is ready and ends with the block, while something else has the terminal and Ctrl-C."""
    child, url = _ready(plan, subprocess.PIPE)
    # nobody reads the events, which are in the log too; a full pipe would hold the server up
    threading.Thread(target=lambda: deque(events(child), maxlen=0), daemon=True).start()
    try:
        yield url
    finally:
        signals = _Signals()
        signals.process, signals.stopping = child.process, True
        stop(child)
        _unlink(child.plan)


def _ready(plan: Plan, stdin: int) -> tuple[Child, str]:
    """A server that is ready, and its URL. One that fails is gone, and so is one that was interrupted while it loaded."""
    signals = _Signals()
    child = _start(plan, _own_name(plan.model.name), stdin)
    signals.process = child.process
    try:
        url = wait_ready(child, events(child))
    except BaseException:
        signals.stopping = True
        stop(child)
        _unlink(child.plan)
        raise
    signals.restore()
    return child, url


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
        signals.leave()


def _own_name(name: str) -> str:
    """Of this command's files: date, time, process, and what they are about."""
    return time.strftime("%Y%m%d-%H%M%S") + f"-{os.getpid()}-" + re.sub(r"[^\w.-]+", "_", name)[:NAME_LENGTH]


class _Signals:
    """The first signal acts as it did before; others only hurry the server's stop, so that none interrupts the clean-up.

    One that comes first when the stop has begun already hurries it too, and acts once the server is gone (`leave`).
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.stopping = False
        self._acted = False
        self._late: int | None = None
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, *terminal.ENDING)}
        self._before = {number: handler for number, handler in handlers.items() if callable(handler)}
        for number in self._before:
            signal.signal(number, self._arrived)

    def restore(self) -> None:
        """Let signals act as they did before this."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def leave(self) -> None:
        """The server is gone. Where no signal ended the block, the command goes on and may start another: signals act as
        they did before, and one that came during the stop acts now. Else nothing interrupts the rest of the clean-up.
        """
        if self._acted:
            return
        self.restore()
        if self._late is not None:
            self._before[signal.Signals(self._late)](self._late, None)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if not self.stopping:
            self.stopping = self._acted = True
            self._before[signal.Signals(number)](number, frame)
            return
        if self._late is None:
            self._late = number
        if self.process:
            self.process.kill()


def _start(plan: Plan, name: str, stdin: int = subprocess.PIPE) -> Child:
    """Write the plan and start a server from it. Raises KTError when the state folder cannot be written to."""
    plan_file, log = _plan_file(name), paths.state_dir() / "logs" / f"{name}.log"
    try:
        for folder in (plan_file.parent, log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        plan.write(plan_file)
        sink = log.open("ab")
    except OSError as error:
        raise KTError("run.no_state", folder=paths.state_dir(), reason=error.strerror or error) from error
    _prune(log.parent, plan_file.parent)
    child = _spawn([*SERVER, "--plan", str(plan_file)], log, sink, stdin)
    child.plan = plan_file
    return child


def _spawn(command: list[str], log: Path, sink: IO[bytes], stdin: int = subprocess.PIPE) -> Child:
    """Start a program that takes --events-fd, with its output in `sink`, the open file of `log`. With a pipe on its
    standard input it ends when this command does."""
    reading, writing = os.pipe()
    try:
        with sink:
            process = subprocess.Popen(
                [*command, "--events-fd", str(writing)],
                stdin=stdin,
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
    """Keep the newest logs, those of running servers, and the plans of these and of commands that still run; a killed
    command leaves its plan behind.

    Files that kt did not name are left alone, and so are those that cannot be removed.
    """
    used = {file for server in servers.running() for file in (server.plan, server.log)}
    old = sorted(log for log in logs.glob("*.log") if OWN_NAME.match(log.name))[:-LOGS_KEPT]
    for plan in plans.glob("*.json"):
        own = OWN_NAME.match(plan.name)
        if own and not Path("/proc", own[1]).exists():
            old.append(plan)
    for file in old:
        with suppress(OSError):
            if str(file.resolve()) not in used:
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
        what, why, kind = (str(event.get(name) or "") for name in ("what", "why", "kind"))
        return RemoteError(what, why, next_step, code, kind)
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
        child.process.wait(servers.STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.process.kill()
        child.process.wait()
    finally:
        os.close(child.events)
