"""`kt run --detach`, `kt ps`, `kt stop` and `kt logs` with stand-ins for the engine."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from cli_runner import Run
from test_cli_run import STAND_IN, serving, wait_for

from kt_cli import servers
from kt_core import paths
from kt_core.errors import UsageError
from kt_core.events import born

SERVER = {
    "model": str, "state": str, "url": str, "pid": int, "path": str, "log": str, "started": float, "uptime": float,
    "memory": int, "progress": (dict, type(None)), "context": (int, type(None)), "running": (int, type(None)),
    "waiting": (int, type(None)), "threads": (int, type(None)), "planned": dict, "predicted": dict,
}  # fmt: skip


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """No server outlives a test."""
    yield
    for server in servers.running():
        servers.end(server)


def detached(kt: Run, *args: str, **more: str) -> Any:
    done = kt("run", "tiny", "--detach", "--json", *args, more=more, program=STAND_IN)
    assert done.code == 0, done.err
    return done.json


def test_detached_server_goes_on(kt: Run, here: Run) -> None:
    done = kt("run", "tiny", "--detach", program=STAND_IN)
    assert done.code == 0 and done.out == ""
    (server,) = servers.running()
    assert f"tiny is ready at {server.url}" in done.err and f"kt stop {server.pid}" in done.err
    assert Path(server.plan).exists()
    assert kt("run", "tiny", "-p", "Where?", program=STAND_IN).out.startswith("Paris")  # asks the one that runs
    (listed,) = here("ps", "--json").json["servers"]
    assert listed["pid"] == server.pid and listed["state"] == "ready" and listed["log"] == server.log
    assert listed["running"] == 1 and listed["context"] == 4096 and listed["planned"] == {"cpu": 2**30}
    stopped = here("stop", "--json").json["stopped"]
    assert stopped == [{"pid": server.pid, "model": "tiny", "url": server.url, "killed": False}]
    assert not servers.alive(server.pid) and not Path(server.plan).exists() and not servers.running()


def test_several_at_once(kt: Run, here: Run) -> None:
    first, second = detached(kt), detached(kt)
    assert first["url"] != second["url"] and first["pid"] != second["pid"]
    found = here("ps", "--json").json["servers"]
    assert [server["pid"] for server in found] == [second["pid"], first["pid"]]  # newest first
    for server in found:
        assert set(server) == set(SERVER)
        assert all(isinstance(server[name], kind) for name, kind in SERVER.items()), server
    assert here("ps", "-q").out == f"{second['pid']}\n{first['pid']}\n"
    which = here("stop")
    assert which.code == 2 and first["url"] in which.err and str(second["pid"]) in which.err and which.out == ""
    port = first["url"].rpartition(":")[2]
    assert here("stop", port).code == 0
    assert [server.pid for server in servers.running()] == [second["pid"]]
    assert here("stop", "--all", "-q").out == f"{second['pid']}\n"
    assert here("stop", "--all").code == here("stop").code == 4


def test_what_names_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three = found = [
        servers.Server(101, "http://127.0.0.1:30001", "tiny"),
        servers.Server(102, "http://127.0.0.1:30002", "Tiny"),
        servers.Server(103, "http://127.0.0.1:101", "other"),
    ]
    monkeypatch.setattr(servers, "running", lambda: found)
    assert servers.matching("102") == [two] and servers.matching("30001") == [one]
    assert servers.matching("http://127.0.0.1:101/v1/") == [three] and servers.matching("OTHER") == [three]
    assert servers.matching("tiny") == [one, two] and servers.matching("101") == [one, three]
    assert servers.matching("nothing") == servers.matching("999999999999999999999") == []
    assert servers.the("other") == three
    for word in ("tiny", None):
        with pytest.raises(UsageError, match="30002"):
            servers.the(word)


def test_name_of_no_server(kt: Run, here: Run) -> None:
    nobody = here("stop", "other")
    assert nobody.code == 4 and "kt run MODEL --detach" in nobody.err
    started = detached(kt)
    done = here("stop", "other")
    assert done.code == 4 and started["url"] in done.err
    assert here("stop", "tiny", "--all").code == 2 and servers.running()


def test_server_that_does_not_stop_is_killed(kt: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    started = detached(kt, KT_TEST_SERVER="deaf")
    (server,) = servers.running()
    monkeypatch.setattr(servers, "STOP_SECONDS", 0.3)
    assert servers.end(server) is False and not servers.alive(started["pid"])


def test_failure_while_it_loads_leaves_nothing(kt: Run, tmp_path: Path) -> None:
    done = kt("run", "tiny", "--detach", more={"KT_TEST_SERVER": "error"}, program=STAND_IN)
    assert done.code == 5 and "The file is damaged." in done.err and "Log: " in done.err
    assert not servers.running() and not list((tmp_path / "state" / "kt" / "plans").iterdir())


def test_interrupt_while_it_loads_leaves_nothing(env: dict[str, str], kt: Run, here: Run, tmp_path: Path) -> None:
    command = [sys.executable, *STAND_IN, "run", "tiny", "--detach"]
    loading = {**env, "KT_TEST_SERVER": "loading"}
    process = subprocess.Popen(command, env=loading, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(servers.running)
    (server,) = servers.running()
    assert not server.ready and not servers.ready()
    (row,) = here("ps", "--json").json["servers"]
    assert row["state"] == "loading" and row["progress"] == {"stage": "weights", "done": 1, "total": 4}
    assert "loading 25 %" in here("ps").out
    asked = kt("chat", input="x")
    assert asked.code == 1 and f"tiny at {server.url} is still loading" in asked.err
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130 and "Error" not in err
    assert not servers.alive(server.pid) and not list((tmp_path / "state" / "kt" / "plans").iterdir())


def test_plan_of_a_running_server_is_kept(kt: Run) -> None:
    detached(kt)
    assert kt("run", "tiny", "-p", "x", "--threads", "1", program=STAND_IN).code == 0  # tidies up
    (server,) = servers.running()
    assert Path(server.plan).exists() and Path(server.log).exists()
    os.kill(server.pid, signal.SIGKILL)
    wait_for(lambda: not servers.running())
    assert not Path(server.plan).exists()


def test_stop_of_a_server_in_the_foreground(env: dict[str, str], here: Run) -> None:
    with serving(env) as process:
        assert here("stop").code == 0
        assert process.wait(20) == 0


def test_list_in_words(kt: Run, here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    detached(kt, "--threads", "3")
    monkeypatch.setattr("kt_cli.output.is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    header, row, note = here("ps").out.splitlines()
    assert header.split() == ["MODEL", "STATE", "ADDRESS", "PROCESS", "MEMORY", "REQUESTS"]
    assert row.startswith("tiny   ready  http://127.0.0.1:") and row.endswith("1 run, 2 wait")
    assert re.fullmatch(r"tiny: up \d+ s, context 4096, planned on cpu 1.00 GiB, 3 threads", note)


def test_process_id_that_another_server_took() -> None:
    holder = subprocess.Popen([sys.executable, "-c", "input()", "kt_core.server"], stdin=subprocess.PIPE)
    try:
        wait_for(lambda: servers.alive(holder.pid))
        began = born(holder.pid)
        assert began > 0 and servers.alive(holder.pid, began) and not servers.alive(holder.pid, began - 1)
        file = paths.state_dir() / "servers" / f"{holder.pid}.json"
        file.parent.mkdir(parents=True)
        told = {"pid": holder.pid, "url": "http://127.0.0.1:9", "model": "m", "born": began}
        file.write_text(json.dumps(told))
        assert [server.pid for server in servers.running()] == [holder.pid]
        file.write_text(json.dumps({**told, "born": began - 1}))
        assert servers.running() == [] and not file.exists()
    finally:
        holder.kill()
        holder.wait()


def test_options_against_each_other(kt: Run, here: Run) -> None:
    assert kt("run", "tiny", "--detach", "-p", "x", program=STAND_IN).code == 2
    assert here("logs", "--follow", "--json").code == 2


def test_logs(kt: Run, here: Run, env: dict[str, str]) -> None:
    assert here("logs").code == 4
    started = detached(kt)
    assert here("logs").out == here("logs", "tiny").out == "starting\nlast words of the log\n"
    assert here("logs", "-n", "1").out == "last words of the log\n"
    assert here("logs", "-q").out == started["log"] + "\n"
    assert here("logs", "--json").json == {
        "schema_version": 1,
        "log": started["log"],
        "lines": ["starting", "last words of the log"],
    }
    child = pexpect.spawn(sys.executable, ["-m", "kt_cli", "logs", "-f"], env=env, encoding="utf-8", timeout=20)
    child.expect("last words")
    with Path(started["log"]).open("a") as log:
        log.write("one more\x1b]0;owned\x07\n")
    child.expect("one more")
    log_file = Path(started["log"])
    log_file.rename(log_file.with_suffix(".1.log"))  # as the server does when it is full
    log_file.write_text("a new part\n")
    child.expect("a new part")
    here("stop")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert here("logs").out == "a new part\n"  # of the one that has ended
    other = here("logs", "nosuch")
    assert other.code == 4 and "tiny" in other.err


@pytest.mark.full
def test_follow_ends_with_ctrl_c(kt: Run, env: dict[str, str]) -> None:
    detached(kt)
    child = pexpect.spawn(sys.executable, ["-m", "kt_cli", "logs", "-f"], env=env, encoding="utf-8", timeout=20)
    child.expect("last words")
    child.sendintr()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130 and "Traceback" not in child.before


def test_choice_on_a_terminal(kt: Run, env: dict[str, str]) -> None:
    first, second = detached(kt), detached(kt)
    more = {**env, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
    child = pexpect.spawn(sys.executable, ["-m", "kt_cli", "stop"], env=more, encoding="utf-8", timeout=20)
    child.expect("Which server")
    child.expect(str(first["pid"]))
    child.send("\x1b[B\r")
    child.expect(re.escape(f"Stopped tiny at {first['url']}"))
    child.expect(pexpect.EOF)
    assert [server.pid for server in servers.running()] == [second["pid"]]
