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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kt_cli import output
from kt_core import config, paths
from kt_core.errors import KTError, NotFound, RemoteError, UsageError
from kt_core.messages import t
from kt_core.types import ModelFiles, Plan, ServerSettings

PORTS_TRIED = 100  # from the preferred port upwards
STOP_SECONDS = 10.0  # between asking the server to stop and killing it
LOGS_KEPT = 20
SERVER = [sys.executable, "-m", "kt_core.server"]


@dataclass
class Child:
    """A server that this process started. `events` is the reading end of its event pipe."""

    process: subprocess.Popen[bytes]
    events: int
    log: Path
    plan: Path


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
    output.status(t("run.pulling", name=entry.name, size=output.size(entry.bytes)))
    with output.progress() as report:
        return store.pull(entry.name, report)


def make_plan(files: ModelFiles, overrides: dict[str, Any]) -> Plan:
    """Probe the machine, read the headers, decide."""
    from kt_core.machine import probe
    from kt_core.models import read_spec
    from kt_core.plan import make_plan as decide

    settings = {"threads": config.get("inference.threads"), "context": config.get("inference.context")}
    overrides = {**overrides, **{name: value for name, value in settings.items() if value and not overrides.get(name)}}
    given = {name: value for name, value in overrides.items() if value is not None}
    return decide(probe(), files, read_spec(files), given)


def with_server(plan: Plan, host: str | None, port: int | None) -> Plan:
    """The plan with an address to listen on. Raises KTError when an explicit port is taken."""
    host = host or config.get("server.host")
    key = config.get("server.api_key")
    settings = ServerSettings(host=host, port=free_port(host, port), served_name=plan.model.name, api_key=key)
    return replace(plan, server=settings)


def free_port(host: str, wanted: int | None) -> int:
    """`wanted` if it is free, else an error; with None the preferred port or the next free one."""
    if wanted is not None:
        if not _is_free(host, wanted):
            raise KTError("run.port_taken", port=wanted, free=_next_free(host, wanted))
        return wanted
    return _next_free(host, config.get("server.port"))


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
    except socket.gaierror as error:
        raise UsageError("run.bad_host", host=host, reason=error.strerror) from error
    except PermissionError:
        return False
    except OSError as error:
        if error.errno in (98, 48):  # EADDRINUSE on Linux and BSD
            return False
        raise UsageError("run.bad_host", host=host, reason=error.strerror) from error
    return True


def start(plan: Plan) -> Child:
    """Write the plan and start a server from it; its output goes to a log file."""
    stamp = time.strftime("%Y%m%d-%H%M%S") + f"-{os.getpid()}"
    name = re.sub(r"[^\w.-]+", "_", plan.model.name)
    plan_file = _place("plans", f"{stamp}-{name}.json")
    log = _place("logs", f"{stamp}-{name}.log")
    plan_file.touch(mode=0o600)  # it may hold the API key
    plan.write(plan_file)
    _prune(log.parent, plan_file.parent)
    reading, writing = os.pipe()
    try:
        with log.open("ab") as sink:
            process = subprocess.Popen(
                [*SERVER, "--plan", str(plan_file), "--events-fd", str(writing)],
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=sink,
                pass_fds=(writing,),
                start_new_session=True,
                env={**os.environ, "KT_LANG": _language()},
            )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return Child(process, reading, log, plan_file)


def _language() -> str:
    from kt_core.messages import language

    return language()


def _place(folder: str, name: str) -> Path:
    directory = paths.state_dir() / folder
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KTError("run.no_state", folder=directory, reason=error.strerror) from error
    return directory / name


def _prune(logs: Path, plans: Path) -> None:
    """Keep the newest logs, and the plans of commands that still run; a killed command leaves its plan behind."""
    for log in sorted(logs.glob("*-*.log"))[:-LOGS_KEPT]:
        log.unlink(missing_ok=True)
    for plan in plans.glob("*.json"):
        pid = plan.name.split("-")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            plan.unlink(missing_ok=True)


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
                output.warn(str(event.get("what", "")))
            elif kind == "error":
                raise failure(child, event)
    raise failure(child, None)


def watch(child: Child, stream: Iterator[dict[str, Any]]) -> None:
    """Stay with a ready server until it ends; an end that nobody asked for is an error."""
    for event in stream:
        if event.get("event") == "warning":
            output.warn(str(event.get("what", "")))
        elif event.get("event") == "error":
            raise failure(child, event)
    if child.process.wait() != 0:
        raise failure(child, None)


def failure(child: Child, event: dict[str, Any] | None) -> RemoteError:
    """The error that a server reported, or what can be said of one that ended without a word."""
    at = t("run.log_at", log=child.log)
    if event:
        next_step = " ".join(part for part in (str(event.get("next", "")), at) if part)
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
    """End the server: ask, wait, then kill. A second Ctrl-C meanwhile kills at once."""
    try:
        if child.process.poll() is None:
            child.process.terminate()
        if child.process.stdin:
            child.process.stdin.close()
        child.process.wait(STOP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        child.process.kill()
        child.process.wait()
    finally:
        os.close(child.events)
        child.plan.unlink(missing_ok=True)
