"""`kt run` and `kt chat` with the real engine and the demo model."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_runner import Run
from test_cli_terminal import Screen

from kt_cli import servers
from kt_core.types import Plan

pytestmark = pytest.mark.model
ENGINE_SECONDS = 240


@pytest.fixture(autouse=True)
def pulled(demo_file: Path, tmp_path: Path) -> None:
    """The demo model in the store of this test."""
    folder = tmp_path / "data" / "kt" / "models" / "demo"
    folder.mkdir(parents=True)
    (folder / "demo.gguf").symlink_to(demo_file)


def wait_for_server(process: "subprocess.Popen[str]") -> servers.Server:
    end = time.monotonic() + ENGINE_SECONDS
    while time.monotonic() < end:
        if found := servers.ready():
            return found[0]
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.2)
    raise AssertionError("the server did not get ready")


def resident(pid: int) -> int:
    """Bytes of memory that the process has for itself; pages of the model's file do not count, as in the plan."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) * 1024


def test_serve_chat_and_sudden_death(kt: Run, env: dict[str, str]) -> None:
    """One server for all: one-shot, piped chat, and the end of the command by SIGKILL."""
    command = [sys.executable, "-m", "kt_cli", "run", "demo", "--context", "512"]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        server = wait_for_server(process)
        assert server.model == "demo" and Path(server.log).exists() and Path(server.plan).exists()
        (row,) = kt("ps", "--json").json["servers"]
        assert row["state"] == "ready" and row["context"] == 512 and row["threads"] >= 1 and row["running"] == 0
        assert row["memory"] > 2**27 and row["planned"]["cpu"] > 2**27
        options = ("--max-tokens", "4", "--temperature", "0")
        once = kt("run", "demo", "-p", "Say hello.", *options, "--json")
        assert once.code == 0 and once.json["completion_tokens"] == 4 and once.json["finish_reason"] == "length"
        planned = Plan.read(Path(server.plan)).device_bytes["cpu"]
        used = resident(server.pid)
        assert planned / 3 < used <= planned, f"{used} bytes in use, {planned} planned"
        piped = kt("chat", *options, input="Say hello.")
        assert piped.code == 0 and piped.out.rstrip("\n") == once.json["answer"].rstrip("\n")
        assert "cut at the token limit" in piped.err
        values = [check["value"] for check in kt("doctor", "--json").json["checks"]]
        assert f"demo {server.url} (process {server.pid})" in values
        process.kill()
        end = time.monotonic() + 30
        while servers.alive(server.pid):
            assert time.monotonic() < end, "the server outlives its command"
            time.sleep(0.1)
        assert not servers.running()
    finally:
        process.kill()
        process.communicate()


def test_interrupt_while_the_engine_loads(env: dict[str, str]) -> None:
    command = [sys.executable, "-m", "kt_cli", "run", "demo", "-p", "x"]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "Starting" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "Error" not in err


@pytest.mark.full
def test_from_a_bare_command_to_an_answer(env: dict[str, str]) -> None:
    """What a new user does: `kt run`, Enter, Enter, a question; then Ctrl-D, and nothing is left."""
    shown = Screen(f"{sys.executable} -m kt_cli run", env)
    shown.expect(r"demo.* Cancel\x1b")
    shown.say("\r", r"talk to it here.* Cancel\x1b")
    shown.child.timeout = ENGINE_SECONDS
    shown.say("\r", "kt run demo --chat")
    shown.expect("lists the commands.*>>>")
    shown.say("/set max_tokens 8\r", "is now 8")
    shown.expect(">>>")
    shown.say("Say hello.\r", r"context \d+ of 8192")
    shown.expect(">>>")
    shown.child.sendeof()
    assert "code 0" in shown.end() and not servers.running()
