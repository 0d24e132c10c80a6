"""`kt run` against a stand-in engine that speaks the pipe protocol and HTTP."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pytest
from cli_runner import Run
from fake_openai import FakeServer

from kt_cli import servers
from kt_core import paths

STAND_IN = (str(Path(__file__).parent / "stand_in.py"),)
ANSWER = FakeServer().answer


def wait_for(condition: object, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)


@contextmanager
def serving(env: dict[str, str], *args: str) -> Iterator[subprocess.Popen[str]]:
    """`kt run tiny` in the background, ready."""
    command = [sys.executable, *STAND_IN, "run", "tiny", *args]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: process.poll() is not None or servers.running())
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.2)  # the ready event follows the state file
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for server in servers.running():
            wait_for(lambda pid=server.pid: not servers.alive(pid))


def test_one_answer(kt: Run, tmp_path: Path) -> None:
    done = kt("run", "tiny", "-p", "Where?", program=STAND_IN)
    assert done.code == 0 and done.out == ANSWER + "\n"
    lines = done.err.splitlines()
    lines[-1] = re.sub(r"\d\.\d\d s$", "0.00 s", lines[-1])
    assert lines == [
        "Starting",
        "Loading weights 1 of 4 modules",
        "Warning: A warning of the server.",
        "11 tokens in, 50.0 tok/s · 7 tokens out, 7.5 tok/s · first after 0.00 s",
    ]
    assert not servers.running()
    assert not list((tmp_path / "state" / "kt" / "plans").iterdir())


def test_prompt_from_stdin_and_quiet(kt: Run) -> None:
    done = kt("run", "tiny", "-p", "-", "-q", input="Where?", program=STAND_IN)
    assert done.code == 0 and done.out == ANSWER + "\n" and done.err == "Warning: A warning of the server.\n"
    empty = kt("run", "tiny", "-p", "-", input=" \n", program=STAND_IN)
    assert empty.code == 2 and "empty" in empty.err


def test_json_answer(kt: Run) -> None:
    done = kt("run", "tiny", "-p", "Where?", "--json", program=STAND_IN)
    found = done.json
    assert found["answer"] == ANSWER and found["prompt_tokens"] == 11 and found["decode_rate"] == 7.5
    assert done.err == "Warning: A warning of the server.\n"


FAILURES = [
    ("error", 5, ["Error: The file is damaged.", "  Layer 3 is cut.", "  Pull it again.", "  Log: {log}"]),
    ("crash", 1, ["Error: The server ended with code 9.", "  last words of the log", "  Log: {log}"]),
    (
        "killed",
        1,
        ["Error: The server was killed by signal 9.", "  Linux does this when memory runs out", "  Log: {log}"],
    ),
]


@pytest.mark.parametrize(("kind", "code", "said"), FAILURES, ids=[kind for kind, _, _ in FAILURES])
def test_failures_name_reason_and_log(kind: str, code: int, said: list[str], kt: Run, tmp_path: Path) -> None:
    done = kt("run", "tiny", "-p", "x", more={"KT_TEST_SERVER": kind}, program=STAND_IN)
    assert done.code == code and done.out == ""
    lines = done.err.splitlines()[-len(said) :]
    (log,) = (tmp_path / "state" / "kt" / "logs").glob("*tiny.log")
    for line, expected in zip(lines, said, strict=True):
        assert line.startswith(expected.format(log=log))
    assert "last words" in log.read_text()
    as_json = kt("run", "tiny", "-p", "x", "--json", more={"KT_TEST_SERVER": kind}, program=STAND_IN)
    assert as_json.code == code and as_json.json["error"]["exit_code"] == code


def test_serve_until_interrupted(env: dict[str, str]) -> None:
    with serving(env) as process:
        (server,) = servers.running()
        assert server.model == "tiny"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 130 and out == ""
        assert re.search(r"tiny is ready at http://127\.0\.0\.1:\d+", err) and "Log: " in err
        assert not servers.alive(server.pid) and not servers.running()


def test_sigterm_stops_cleanly(env: dict[str, str]) -> None:
    with serving(env, "--json") as process:
        (server,) = servers.running()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 0 and err == "Warning: A warning of the server.\n"
        ready = json.loads(out)
        assert ready["url"] == server.url and ready["pid"] == server.pid and Path(ready["log"]).exists()
        assert not servers.alive(server.pid)


@pytest.mark.parametrize("kind", ["serve", "slow"])
def test_closed_terminal_stops_cleanly(kind: str, env: dict[str, str], tmp_path: Path) -> None:
    """The end of the terminal brings SIGHUP, perhaps several times, and makes every write to it fail."""
    command = [*STAND_IN, "run", "tiny"]
    child = pexpect.spawn(sys.executable, command, env={**env, "KT_TEST_SERVER": kind}, timeout=20)
    child.expect("is ready at" if kind == "serve" else "Loading weights")
    (plan,) = (tmp_path / "state" / "kt" / "plans").iterdir()
    child.ptyproc.fileobj.close()
    wait_for(lambda: not plan.exists())
    wait_for(lambda: not servers.running())
    end = time.monotonic() + 20
    while os.waitpid(child.pid, os.WNOHANG) == (0, 0):
        assert time.monotonic() < end, "kt outlives its terminal"
        time.sleep(0.05)
    assert not (tmp_path / "state" / "kt" / "logs" / "crash.log").exists()


def test_nohup_is_respected(env: dict[str, str]) -> None:
    command = ["nohup", sys.executable, *STAND_IN, "run", "tiny"]
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=-1, stderr=subprocess.PIPE, text=True)
    wait_for(servers.running)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None and servers.running()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 0 and not servers.running()


def test_reader_of_the_messages_that_leaves_stops_nothing(env: dict[str, str]) -> None:
    with serving(env) as process:
        process.stderr.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0 and not servers.running()
        assert not list((paths.state_dir() / "plans").iterdir())


def test_server_dies_with_the_command(env: dict[str, str]) -> None:
    with serving(env) as process:
        (server,) = servers.running()
        process.kill()
        wait_for(lambda: not servers.alive(server.pid))


def test_server_that_dies_is_reported(env: dict[str, str]) -> None:
    with serving(env) as process:
        os.kill(servers.running()[0].pid, signal.SIGKILL)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 1 and "killed by signal 9" in err and "Log: " in err


def test_interrupt_while_loading(env: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, *STAND_IN, "run", "tiny"]
    slow = {**env, "KT_TEST_SERVER": "slow"}
    process = subprocess.Popen(command, env=slow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    logs = tmp_path / "state" / "kt" / "logs"
    wait_for(lambda: logs.exists() and any("last words" in log.read_text() for log in logs.iterdir()))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130 and "Error" not in err


def test_prompt_uses_the_running_server(env: dict[str, str], kt: Run) -> None:
    with serving(env):
        (server,) = servers.running()
        done = kt("run", "tiny", "-p", "x", program=STAND_IN)
        assert done.code == 0 and done.out == ANSWER + "\n" and "Loading" not in done.err
        assert servers.running() == [server]
        own = kt("run", "tiny", "-p", "x", "--threads", "1", program=STAND_IN)  # another plan: a server of its own
        assert own.code == 0 and "Loading" in own.err
        forced = kt("run", "tiny", "-p", "x", more={"KT_KERNEL_CPU_VARIANT": "scalar"}, program=STAND_IN)
        assert forced.code == 0 and "Loading" in forced.err


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_occupied_port(kt: Run, taken_port: int) -> None:
    done = kt("run", "tiny", "--dry-run", "--port", str(taken_port), program=STAND_IN)
    assert done.code == 1 and f"Port {taken_port} is taken" in done.err
    free = int(re.findall(r"--port (\d+)", done.err)[0])
    assert taken_port < free <= taken_port + 100
    preferred = kt("run", "tiny", "--dry-run", "--json", more={"KT_SERVER_PORT": str(taken_port)}, program=STAND_IN)
    assert preferred.json["server"]["port"] == free


def test_port_of_a_server_of_kts_own(env: dict[str, str], kt: Run) -> None:
    with serving(env):
        (server,) = servers.running()
        port = server.url.rpartition(":")[2]
        done = kt("run", "tiny", "--port", port, program=STAND_IN)
        assert done.code == 1 and f"Port {port} is taken by a server of kt" in done.err
        assert f"tiny at {server.url} (process {server.pid})" in done.err and f"kt chat --url {server.url}" in done.err


def test_address_of_another_machine(kt: Run) -> None:
    done = kt("run", "tiny", "--dry-run", "--host", "203.0.113.1", program=STAND_IN)
    assert done.code == 2 and "203.0.113.1" in done.err
    assert kt("run", "tiny", "--dry-run", "--host", "no such host", program=STAND_IN).code == 2


def test_dry_run_shows_reasons(kt: Run, tmp_path: Path) -> None:
    done = kt("run", "tiny", "--dry-run", "--threads", "3", program=STAND_IN)
    assert done.code == 0 and "because of threads" in done.out and "~1.00 GiB" in done.out
    rows = [re.split(r" {2,}", line) for line in done.out.splitlines()]
    assert ["DECISION", "VALUE", "FROM", "REASON"] in rows
    assert ["threads", "3", "command line", "because of threads"] in rows
    assert ["tier", "auto", "machine", "best here"] in rows and ["context", "32", "model", "fits"] in rows
    assert ["Memory needed", "cpu", "~1.00 GiB"] in rows
    chinese = kt("run", "tiny", "--dry-run", more={"KT_LANG": "zh"}, program=STAND_IN).out
    assert "自动" in chinese and "来源" in chinese and "所需内存" in chinese
    assert kt("run", "tiny", "--dry-run", "--threads", "3", "-q", program=STAND_IN).out == "3\n32\nauto\n"
    found = kt("run", "tiny", "--dry-run", "--threads", "3", "--json", program=STAND_IN).json
    assert found["decisions"][0] == {"name": "threads", "value": 3, "reason": "because of threads", "source": "user",
                                     "flag": "--kt-cpuinfer"}  # fmt: skip
    assert found["command"][-2:] == ["--plan", "PLAN"] and "Would start: " in done.out
    assert not (tmp_path / "state").exists()


def test_origin_of_what_the_settings_say(monkeypatch: pytest.MonkeyPatch, kt: Run, tmp_path: Path) -> None:
    """A number from the settings is told from one on the command line, which wins."""
    from kt_cli import launch
    from kt_core import models, plan
    from kt_core.types import Decision, ModelFiles, ModelSpec, Plan, ServerSettings

    spec = ModelSpec("f", 1, 1, 1, 64, 0, 0, 1, {}, 1, {})

    def decide(machine: object, files: ModelFiles, spec: ModelSpec, given: dict[str, object], *_: object) -> Plan:
        decisions = tuple(Decision(name, value, "", "user") for name, value in given.items())
        return Plan(files, spec, decisions, {}, ServerSettings())

    monkeypatch.setattr(models, "read_spec", lambda files: spec)
    monkeypatch.setattr(plan, "make_plan", decide)
    monkeypatch.setenv("KT_INFERENCE_THREADS", "2")
    monkeypatch.setenv("KT_INFERENCE_CONTEXT", "40")
    made = launch.make_plan(ModelFiles("m", "/m", "gguf", ("/m",)), {"context": 50, "threads": None, "rules": None})
    assert {d.name: (d.value, d.source) for d in made.decisions} == {"context": (50, "user"), "threads": (2, "config")}


def test_rules(kt: Run, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("[]\n")
    found = kt("run", "tiny", "--dry-run", "--rules", "my.yaml", "--json", program=STAND_IN).json["decisions"]
    assert {d["name"]: d["value"] for d in found}["rules"] == str(tmp_path / "my.yaml")
    for absent in ("other.yaml", "."):
        done = kt("run", "tiny", "--dry-run", "--rules", absent, program=STAND_IN)
        assert done.code == 4 and f"no rule file {absent}" in done.err


def test_prompt_that_is_too_long(kt: Run) -> None:
    """The server's words in three lines, with advice for this command in place of the server's."""
    refuse = {"KT_TEST_SERVER": "refuse"}
    done = kt("run", "tiny", "-p", "x", more=refuse, program=STAND_IN)
    assert done.code == 1 and done.err.splitlines()[-3:] == [
        "Error: The prompt has 40 tokens.",
        "  One must be left.",
        "  Shorten the prompt, or give room for more tokens with --context.",
    ]
    longest = kt("run", "tiny", "-p", "x", "--context", "64", more=refuse, program=STAND_IN)
    assert "no longer context" in longest.err and "--context" not in longest.err
    error = kt("run", "tiny", "-p", "x", "--json", more=refuse, program=STAND_IN).json["error"]
    assert error["why"] == "One must be left." and "--context" in error["next"]


@pytest.mark.parametrize("text", [b"a\xffb", b"\xc3"])
def test_question_that_is_not_text(text: bytes, env: dict[str, str], tmp_path: Path) -> None:
    """Refused before anything starts, also in a locale in which Python lets such bytes through."""
    for locale in ({}, {"LC_ALL": "POSIX"}, {"PYTHONIOENCODING": "utf-8:surrogateescape"}):
        done = subprocess.run(
            [sys.executable, *STAND_IN, "run", "tiny", "-p", "-"],
            input=text,
            env={**env, **locale},
            capture_output=True,
        )
        assert done.returncode == 2 and done.stdout == b"" and b"not valid UTF-8 text" in done.stderr
        assert b"Traceback" not in done.stderr and not (tmp_path / "state" / "kt" / "plans").exists()


@pytest.mark.parametrize("option", [("--system", "x"), ("--temperature", "1"), ("--max-tokens", "5")])
def test_options_that_need_a_prompt(option: tuple[str, str], kt: Run) -> None:
    done = kt("run", "tiny", *option, program=STAND_IN)
    assert done.code == 2 and option[0] in done.err


def test_request_carries_the_options(server: FakeServer, kt: Run, env: dict[str, str]) -> None:
    """Through a state file that names the fake server; the process behind it is this test's child."""
    holder = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "kt_core.server"])
    try:
        state = paths.state_dir() / "servers" / f"{holder.pid}.json"
        state.parent.mkdir(parents=True)
        told = {"pid": holder.pid, "url": server.url, "model": "tiny", "path": "/models/tiny.gguf"}
        state.write_text(json.dumps(told))
        options = ("--temperature", "0.5", "--max-tokens", "9", "--system", "Be brief.")
        assert kt("run", "tiny", "-p", "Where?", *options, program=STAND_IN).code == 0
        settings = {
            "KT_CHAT_TEMPERATURE": "0",
            "KT_CHAT_SYSTEM": "Be kind.",
            "KT_CHAT_MAX_TOKENS": "3",
            "KT_SERVER_API_KEY": "k",
        }
        assert kt("run", "tiny", "-p", "Where?", more=settings, program=STAND_IN).code == 0
        assert kt("run", "tiny", "-p", "Where?", program=STAND_IN).code == 0
        given, set_, plain = server.requests
        assert (given["temperature"], given["max_tokens"]) == (0.5, 9)
        assert given["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where?"}]
        assert (set_["temperature"], set_["max_tokens"], set_["messages"][0]["content"]) == (0, 3, "Be kind.")
        assert server.headers[1]["Authorization"] == "Bearer k" and "Authorization" not in server.headers[2]
        assert (plain["temperature"], plain["top_p"]) == (0.7, 0.9)
        assert "max_tokens" not in plain and len(plain["messages"]) == 1
    finally:
        holder.kill()
        holder.wait()


def test_stale_state_files_are_dropped() -> None:
    folder = paths.state_dir() / "servers"
    folder.mkdir(parents=True)
    dead = subprocess.Popen(["true"])
    dead.wait()
    (folder / f"{dead.pid}.json").write_text(json.dumps({"pid": dead.pid, "url": "http://x", "model": "m"}))
    (folder / f"{os.getpid()}.json").write_text(json.dumps({"pid": os.getpid(), "url": "http://x", "model": "m"}))
    (folder / "1.json").write_text("{")
    assert servers.running() == []  # dead, a number that another program has, and half a file
    assert [p.name for p in folder.iterdir()] == ["1.json"]


@pytest.mark.parametrize(("name", "near"), [("demoo", "demo"), ("smolm2", "smollm2")])
def test_unknown_model_names_near_ones(name: str, near: str, kt: Run) -> None:
    done = kt("run", name, "-p", "x")
    assert done.code == 4 and near in done.err and len(done.err.splitlines()) <= 3


def test_dry_run_does_not_download(kt: Run, tmp_path: Path) -> None:
    done = kt("run", "demo", "--dry-run")
    assert done.code == 4 and "kt model pull demo" in done.err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all"])
def test_damaged_file(content: bytes, kt: Run, tmp_path: Path) -> None:
    file = tmp_path / "bad.gguf"
    file.write_bytes(content)
    done = kt("run", str(file), "--dry-run")
    assert done.code == 5 and "bad.gguf" in done.err


def test_plans_of_killed_commands_are_removed(env: dict[str, str], kt: Run, tmp_path: Path) -> None:
    with serving(env) as process:
        process.kill()
        process.wait()
    plans = tmp_path / "state" / "kt" / "plans"
    assert len(list(plans.iterdir())) == 1
    assert kt("run", "tiny", "-p", "x", program=STAND_IN).code == 0
    assert not list(plans.iterdir())


def test_registered_model_is_pulled_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from kt_cli import launch
    from kt_core.models import store
    from kt_core.types import ModelFiles, Progress

    files = ModelFiles("demo", "/x", "gguf", ("/x",))

    def pull(name: str, progress: Progress) -> ModelFiles:
        progress("Downloading", 5, 10, "bytes")
        return files

    monkeypatch.setattr(store, "pull", pull)
    assert launch.files_of("smollm2-moe") == files  # an alias
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("demo is not on this disk yet: downloading ") and lines[0].endswith("MiB")
    assert lines[1] == "Downloading 5 B of 10 B"
