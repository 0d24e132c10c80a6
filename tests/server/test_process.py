"""The server as a process: events, state file, and every way to its end."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
from live import USER

from kt_core.errors import KTError
from kt_core.events import born
from kt_core.server.serve import listen, url_of
from kt_core.types import ModelFiles, ModelSpec, Plan, ServerSettings

ROOT = Path(__file__).parents[2]
SPEC = ModelSpec("qwen3_moe", 2, 32, 300, 1024, 6, 2, 1000, {"experts": 1, "other": 1}, 64, {"F32": 1})


class Process:
    """A server process with a pipe on its standard input, as the command line starts it."""

    def __init__(self, folder, mode="ok", command=None, **settings):
        self.folder = folder
        self.plan = folder / "plan.json"
        model = ModelFiles("tiny", str(folder), "safetensors", ())
        if not self.plan.exists():
            Plan(model, SPEC, (), {"cpu": 1}, ServerSettings(**{"port": 0, **settings})).write(self.plan)
        self.log = folder / "server.log"
        read, write = os.pipe()
        script = [str(ROOT / "tests/server/serve_tiny.py"), str(self.plan), str(write), mode]
        command = command or script
        environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": str(ROOT), "KT_LANG": "en"}
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                [sys.executable, *[c.replace("FD", str(write)) for c in command]],
                stdin=subprocess.PIPE, stderr=log, pass_fds=[write], env=environment, cwd=folder,
            )  # fmt: skip
        os.close(write)
        self._events = os.fdopen(read)
        self.seen = []

    def until(self, kind):
        for line in self._events:
            event = json.loads(line)
            assert event.pop("time") > 1.7e9
            self.seen.append(event)
            if event["event"] == kind:
                return event
        raise AssertionError(f"no {kind} in {self.seen}: {self.log.read_text()}")

    def states(self):
        return list((self.folder / "state/kt/servers").glob("*"))

    def ended(self):
        code = self.child.wait(20)
        assert not self.states()
        return code

    def kill(self):
        self.child.kill()
        self.child.wait()
        self.child.stdin.close()
        self._events.close()


@pytest.fixture
def process(tmp_path):
    running = []

    def start(*args, **kwargs):
        running.append(Process(tmp_path, *args, **kwargs))
        return running[-1]

    yield start
    for p in running:
        p.kill()


def test_a_chat_template_without_an_end_does_not_hold_up_the_servers(process):
    """Others are answered meanwhile, and the process that renders ends with the server's."""
    p = process("template")
    url = p.until("ready")["url"]
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))) as client:
        body = json.dumps({"messages": [USER]})
        client.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        end = time.monotonic() + 30
        while not (renderers := psutil.Process(p.child.pid).children()):
            assert time.monotonic() < end
            body = {"prompt": "hello", "max_tokens": 2, "ignore_eos": True}
            answer = httpx.post(f"{url}/v1/completions", json=body, timeout=30, trust_env=False)
            assert answer.json()["usage"]["completion_tokens"] == 2
        p.child.send_signal(signal.SIGTERM)
        assert p.ended() == 0 and not renderers[0].is_running()


def get(url, path):
    return httpx.get(url + path, timeout=10, trust_env=False)


def test_life(process):
    p = process(served_name="my/tiny")
    ready = p.until("ready")
    assert next(e for e in p.seen if e["event"] == "progress") == {
        "event": "progress", "stage": "weights", "done": 0, "total": 4, "unit": "layers",
    }  # fmt: skip
    assert ready["model"] == "my/tiny"
    (file,) = p.states()
    state = json.loads(file.read_text())
    assert file.name == f"{p.child.pid}.json" and state["pid"] == p.child.pid
    assert state["ready"] is True and state["born"] == born(p.child.pid) > 0
    assert state["url"] == ready["url"] and state["model"] == "my/tiny" and state["plan"] == str(p.plan)
    assert state["log"] == str(p.log) and abs(state["started"] - time.time()) < 60
    assert get(ready["url"], "/health").json()["status"] == "ok"
    body = {"messages": [USER], "max_tokens": 3, "model": "my/tiny", "ignore_eos": True}
    answer = httpx.post(f"{ready['url']}/v1/chat/completions", json=body, timeout=30, trust_env=False)
    assert answer.json()["usage"]["completion_tokens"] == 3
    with socket.create_connection(("127.0.0.1", int(ready["url"].rsplit(":", 1)[1]))) as half:
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n{")
    assert get(ready["url"], "/v1/models").status_code == 200
    time.sleep(0.2)
    assert "Traceback" not in p.log.read_text()  # a client that leaves is no fault of the server's
    p.child.stdin.close()  # the one who started it has gone
    assert p.ended() == 0


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_listens_while_loading_and_stops_then(process):
    port = free_port()
    p = process("slow", port=port)
    p.until("progress")
    health = get(f"http://127.0.0.1:{port}", "/health")
    assert health.status_code == 503
    assert health.json() == {"status": "loading", "stage": "weights", "done": 0, "total": 4}
    (file,) = p.states()
    state = json.loads(file.read_text())
    assert state["ready"] is False and state["url"].endswith(f":{port}")
    p.child.send_signal(signal.SIGTERM)
    assert p.ended() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals_in_mid_answer(process, number, code):
    p = process("endless")
    url = p.until("ready")["url"]
    with httpx.stream(
        "POST", f"{url}/v1/chat/completions", json={"messages": [USER], "stream": True}, timeout=20, trust_env=False
    ) as response:
        lines = response.iter_lines()
        next(lines)
        begun = time.monotonic()
        p.child.send_signal(number)
        rest = list(lines)
    assert '"closed"' in "".join(rest) and "[DONE]" not in "".join(rest)
    assert p.ended() == code
    assert time.monotonic() - begun < 10


def test_port_in_use(process):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        p = process(port=port)
        error = p.until("error")
        assert str(port) in error["what"] and error["next"] and error["exit_code"] == 1
        assert p.ended() == 1
    assert [e["event"] for e in p.seen] == ["error"]


def test_the_next_port_where_several_are_allowed():
    with listen(ServerSettings(port=0)) as first:
        port = first.getsockname()[1]
        with listen(ServerSettings(port=port, ports=20)) as second:
            assert port < second.getsockname()[1] < port + 20
        with pytest.raises(KTError):
            listen(ServerSettings(port=port))


def test_a_known_failure_is_passed_on(process):
    p = process("refused")
    error = p.until("error")
    words = {"what": "too big", "why": "by far", "next": "buy memory"}
    assert error == {"event": "error", "kind": "DoesNotFit", **words, "exit_code": 3}
    assert p.ended() == 3


@pytest.mark.parametrize("setting", ["tool_parser", "reasoning_parser"])
def test_a_parser_that_does_not_exist_is_refused_before_loading(process, setting):
    p = process(**{setting: "qwen"})
    error = p.until("error")
    assert "qwen" in error["what"] and "harmony" in error["next"]
    assert p.ended() == 2 and not [event for event in p.seen if event["event"] == "progress"]


def test_an_unknown_failure_names_the_log(process):
    p = process("crash")
    error = p.until("error")
    assert "RuntimeError" in error["what"] and str(p.log) in error["next"] and error["exit_code"] == 1
    assert p.ended() == 1
    assert "Traceback" not in json.dumps(p.seen) and "Traceback" in p.log.read_text()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"version": 99}'])
def test_a_bad_plan(process, tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    p = process(command=["-m", "kt_core.server", "--plan", str(tmp_path / "plan.json"), "--events-fd", "FD"])
    error = p.until("error")
    assert str(tmp_path / "plan.json") in error["what"] and error["exit_code"] == 5
    assert p.ended() == 5


def test_a_wide_bind_warns_unless_a_key_is_set(process):
    p = process("refused", host="0.0.0.0")
    p.until("error")
    assert [e["event"] for e in p.seen if e["event"] != "progress"] == ["warning", "error"]
    assert "0.0.0.0" in next(e["what"] for e in p.seen if e["event"] == "warning")


def test_a_wide_bind_with_a_key_does_not_warn(process):
    p = process("refused", host="0.0.0.0", api_keys=["secret"])
    p.until("error")
    assert [e["event"] for e in p.seen if e["event"] != "progress"] == ["error"]


def test_a_warning_in_the_log_is_an_event_too(process):
    p = process("warns")
    p.until("ready")
    warnings = [e["what"] for e in p.seen if e["event"] == "warning"]
    assert warnings == ["a rule matches nothing"] and "a rule matches nothing" in p.log.read_text()


def test_events_go_to_standard_output_by_default(tmp_path):
    (tmp_path / "plan.json").write_text("{")
    command = [sys.executable, "-m", "kt_core.server", "--plan", str(tmp_path / "plan.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 5
    assert json.loads(done.stdout)["event"] == "error"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:8"),
        ("127.0.0.1", "http://127.0.0.1:8"),
        ("::1", "http://[::1]:8"),
        ("::", "http://[::1]:8"),
        ("box", "http://box:8"),
    ],
)
def test_url(host, url):
    assert url_of(host, 8) == url
