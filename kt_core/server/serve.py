"""The server process from its plan to its exit: listen, load, answer, stop."""

import asyncio
import contextlib
import errno
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import uvicorn

from kt_core.engine import templates
from kt_core.errors import BadData, EnvironmentProblem, KTError
from kt_core.events import Events, Warnings, born, one_line, wait_for_parents_end
from kt_core.messages import t
from kt_core.paths import state_dir
from kt_core.server.app import build_app
from kt_core.server.connections import HEAD_BYTES, IDLE_SECONDS, Connection
from kt_core.server.logs import log_file
from kt_core.server.parsers import choose
from kt_core.server.state import State
from kt_core.types import Plan, Progress, ServerSettings

log = logging.getLogger(__name__)

Start = Callable[[Plan, Progress], Any]  # -> the engine

# How long a stop waits for the engine's current step and for open connections.
_STOP_SECONDS = 5
# After so long a thread of Python has to let another one run. Sending an event takes a few turns, and beside a model that runs module by
# module Python's own 5 ms made each of them last as long as a step.
SWITCH_SECONDS = 0.0005
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(plan_file: Path, events: Events, start: Start | None = None) -> int:
    """Serve the plan until told to stop; returns the process's exit code. `start` replaces the engine's own start."""
    logging.getLogger("kt_core").addHandler(Warnings(events))
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        plan = read_plan(plan_file)
        choose("", plan.server.tool_parser, plan.server.reasoning_parser)  # raises for names that are none
        with listen(plan.server) as listener:
            if plan.server.host not in _LOOPBACK and not plan.server.api_keys:
                log.warning("%s", t("server.wide_bind", host=plan.server.host))
            return asyncio.run(_Process(plan, plan_file, listener, events, start).run())
    except KTError as e:
        events.error(e)
        return e.exit_code


def read_plan(path: Path) -> Plan:
    """Raises BadData for anything but a plan of this version."""
    try:
        return Plan.read(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise BadData("server.bad_plan", path=path, reason=one_line(e)) from e


def listen(settings: ServerSettings) -> socket.socket:
    """A socket that listens on the first free one of the ports. Raises KTError when the address cannot be had."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        last = min(settings.port + settings.ports, 65536) - 1
    except (OSError, ValueError, TypeError, OverflowError) as e:
        reason = getattr(e, "strerror", None) or str(e)
        raise KTError("server.bad_address", host=settings.host, port=settings.port, reason=reason) from e
    family, _, _, _, (host, first, *more) = found[0]
    port = int(first)
    while True:
        try:
            return _listen_on(family, (host, port, *more))
        except OSError as e:
            if port >= last or e.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise KTError("server.port_in_use", host=settings.host, port=port, reason=e.strerror) from e
            port += 1


def _listen_on(family: socket.AddressFamily, address: tuple[str | int, ...]) -> socket.socket:
    with contextlib.ExitStack() as on_failure:
        listener = on_failure.enter_context(socket.socket(family, socket.SOCK_STREAM))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
        on_failure.pop_all()
        return listener


def url_of(host: str, port: int) -> str:
    """The address that a client on this machine uses."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _unknown(error: BaseException) -> KTError:
    """The error to tell for one that kt has no words for. transformers imports some packages only when it needs them."""
    if isinstance(error, ImportError):
        return EnvironmentProblem("server.broken_package", reason=one_line(error))
    return KTError("server.start_failed", reason=one_line(error), log=log_file() or t("server.standard_error"))


def _engine_start() -> Start:
    """The engine's own start. Raises EnvironmentProblem when torch, transformers or another package is broken."""
    try:
        from kt_core.engine.start import start
    except KTError:
        raise
    except Exception as e:  # a library that does not fit gives an OSError, a wrong version an AttributeError, ...
        raise EnvironmentProblem("server.broken_package", reason=one_line(e)) from e
    return start


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers, which would end the process before the state file is removed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Process:
    def __init__(
        self, plan: Plan, plan_file: Path, listener: socket.socket, events: Events, start: Start | None
    ) -> None:
        self._plan = plan
        self._plan_file = plan_file
        self._listener = listener
        self._events = events
        self._start = start
        self._state = State(
            model=plan.server.served_name or plan.model.name,
            api_keys=plan.server.api_keys,
            local=plan.server.host in _LOOPBACK,
            cors=plan.server.cors,
            media_hosts=plan.server.media_hosts,
            log_prompts=plan.server.log_prompts,
            lora_folder=plan.server.lora_folder,
            tool_parser=plan.server.tool_parser,
            reasoning_parser=plan.server.reasoning_parser,
            plan=plan,
        )
        self._started = time.time()
        self._file = state_dir() / "servers" / f"{os.getpid()}.json"

    async def run(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self._loop.add_signal_handler(signal.SIGTERM, self._stop, 0)
        self._loop.add_signal_handler(signal.SIGINT, self._stop, 130)
        config = uvicorn.Config(
            build_app(self._state),
            http=Connection,
            h11_max_incomplete_event_size=HEAD_BYTES,
            timeout_keep_alive=IDLE_SECONDS,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        server = _Uvicorn(config)
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        serving.add_done_callback(self._served)
        for target in (self._load_engine, self._watch_parent):
            threading.Thread(target=target, daemon=True).start()
        try:
            self._note(ready=False)
            return await self._exit
        finally:
            templates.stop()  # a thread that waits for it would hold up the exit
            if self._state.engine:
                await asyncio.to_thread(self._state.engine.close, _STOP_SECONDS)
                await asyncio.to_thread(self._record, self._state.engine)
            server.should_exit = True
            await asyncio.wait([serving])
            self._file.unlink(missing_ok=True)

    def _record(self, engine: Any) -> None:
        """How often experts were asked, in the model's file, if the plan says so."""
        if self._plan.get("record", False):
            from kt_core.engine import counts  # not before torch is known to work

            try:
                counts.write(counts.file_of(self._plan.model.name), self._plan.spec.layers, engine.experts())
            except OSError as e:
                log.warning("counts of experts are not written: %s", e)

    def _stop(self, code: int) -> None:
        if not self._exit.done():
            self._exit.set_result(code)

    def _served(self, serving: "asyncio.Task[None]") -> None:
        """uvicorn has ended: by itself, unless something else ends this process already."""
        if serving.cancelled():
            return
        error = serving.exception() or RuntimeError("uvicorn has stopped")
        if not self._exit.done():
            log.error("uvicorn ended", exc_info=error)
        self._fail(_unknown(error))

    def _from_thread(self, function: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: the process is on its way out
            self._loop.call_soon_threadsafe(function, *args)

    def _watch_parent(self) -> None:
        if wait_for_parents_end():
            self._from_thread(self._stop, 0)

    def _load_engine(self) -> None:
        try:
            # Imported here, because torch takes seconds to import and the port already answers.
            start = _engine_start()
            engine = (self._start or start)(self._plan, self._progress)
        except KTError as e:
            log.error("%s", e)
            self._from_thread(self._fail, e)
        except BaseException as e:
            log.exception("loading failed")
            self._from_thread(self._fail, _unknown(e))
        else:
            self._from_thread(self._ready, engine)

    def _progress(self, stage: str, done: int, total: int, unit: str) -> None:
        self._state.stage, self._state.done, self._state.total = stage, done, total
        self._events.progress(stage, done, total, unit)

    def _fail(self, error: KTError) -> None:
        if self._exit.done():
            return
        self._events.error(error)
        self._stop(error.exit_code)

    def _ready(self, engine: Any) -> None:
        if not self._note(ready=True):
            return
        self._state.engine = engine
        self._events.emit("ready", url=self._url(), model=self._state.model)

    def _url(self) -> str:
        return url_of(self._plan.server.host, self._listener.getsockname()[1])

    def _note(self, ready: bool) -> bool:
        """Write the state file, by which others find this server. False when it failed, which ends the process."""
        try:
            self._write_state(ready)
        except OSError as e:
            self._fail(KTError("server.no_state", folder=self._file.parent, reason=e.strerror or e))
        except Exception as e:  # one that got away would end this callback only, and whoever started this would wait
            log.exception("state file")
            self._fail(_unknown(e))
        else:
            return True
        return False

    def _write_state(self, ready: bool) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "pid": os.getpid(),
            "url": self._url(),
            "ready": ready,
            "born": born(os.getpid()),
            "model": self._state.model,
            "path": self._plan.model.path,
            "plan": str(self._plan_file.resolve()),
            "log": log_file(),
            "started": self._started,
        }
        beside = self._file.with_suffix(".tmp")
        beside.write_text(json.dumps(state), encoding="ascii")  # escapes: a path need not be UTF-8
        beside.replace(self._file)
