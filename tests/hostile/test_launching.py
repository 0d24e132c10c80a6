"""`kt run` and `kt chat` under a hostile neighbourhood: other servers, foreign state files, odd names, signals."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_openai import FakeServer

from kt_cli import servers

ROOT = Path(__file__).parents[2]
FAULT = "in a way that it should not"


def clean(done):
    """A failure told in kt's own words, not as a fault of its own."""
    return FAULT not in done.stderr and "Traceback" not in done.stderr


def state(env):
    return Path(env["XDG_STATE_HOME"]) / "kt"


def test_two_runs_at_the_same_time_both_get_a_port(env, tiny, tmp_path):
    """Nobody asked for a port, so the one that loses the race for the preferred one takes the next."""
    command = [sys.executable, "-m", "kt_cli", "run", str(tiny), "-p", "hi", "--max-tokens", "2"]
    homes = [{**env, "XDG_STATE_HOME": str(tmp_path / f"state{i}")} for i in range(2)]
    runs = [subprocess.Popen(command, env=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for home in homes]
    ended = [run.communicate(timeout=90) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], [err for _, err in ended]


def test_a_running_server_of_another_model_with_the_same_name_is_not_asked(kt, env, stand_in):
    """/elsewhere/tiny is not /models/tiny: its answers are another model's."""
    program = "import sys, time; time.sleep(60)"
    elsewhere = {"model": {"name": "tiny", "path": "/elsewhere/tiny", "format": "gguf", "files": []}}
    with FakeServer() as other:
        other.answer = "from the other model"
        process = subprocess.Popen([sys.executable, "-c", program, "kt_core.server"])
        try:
            folder = state(env) / "servers"
            folder.mkdir(parents=True)
            plan = folder.parent / "plan.json"
            plan.write_text(json.dumps(elsewhere))
            told = {"pid": process.pid, "url": other.url, "model": "tiny", "plan": str(plan), "started": 1.0}
            (folder / f"{process.pid}.json").write_text(json.dumps(told))
            done = kt("run", "tiny", "-p", "x", program=stand_in)
        finally:
            process.kill()
            process.wait()
    assert done.returncode == 0
    assert "Loading" in done.stderr, "the running server of another model answered"


def test_a_state_folder_that_is_not_utf8_does_not_hang(kt, tiny, tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/state\xff")
    done = kt(
        "run", str(tiny), "-p", "hi", "--max-tokens", "2", program=("-m", "kt_cli"), more={"XDG_STATE_HOME": folder},
    )  # fmt: skip
    assert clean(done)


def test_a_foreign_file_among_the_plans(kt, env, stand_in):
    plans = state(env) / "plans"
    plans.mkdir(parents=True)
    (plans / "x.json").touch()
    done = kt("run", "tiny", "-p", "x", program=stand_in)
    assert clean(done) and done.returncode == 0


@pytest.mark.parametrize(
    "text",
    ['{"pid": "1", "url": "u", "model": "m"}', '{"pid": 1e9999, "url": "u", "model": "m"}',
     '{"pid": 99999999999999999999, "url": "u", "model": "m"}', "[" * 100_000],
    ids=["text", "infinite", "huge", "deep"],
)  # fmt: skip
def test_a_nonsense_state_file_is_no_server(here, env, text):
    folder = state(env) / "servers"
    folder.mkdir(parents=True)
    (folder / "1.json").write_text(text)
    assert servers.running() == []


def test_a_model_with_a_long_name(kt, tiny, tmp_path, env):
    folder = tmp_path / ("a" * 240)
    folder.symlink_to(tiny)
    assert clean(kt("run", str(folder), "-p", "x", "--max-tokens", "1"))


def test_a_model_whose_name_is_not_utf8(kt, tiny, tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff"))
    folder.symlink_to(tiny)
    assert clean(kt("run", str(folder), "-p", "x", "--max-tokens", "1"))


def test_a_full_disk_leaves_no_half_plan(kt, env, stand_in):
    """A file-size limit fails a write in its middle, as a full disk does."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # noqa: E731
    done = kt("run", "tiny", "-p", "x", program=stand_in, preexec_fn=limit)
    assert done.returncode == 1 and clean(done), done.stderr
    assert not list((state(env) / "plans").iterdir())


def test_a_full_disk_leaves_no_half_file_of_settings(kt, tmp_path):
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # noqa: E731
    done = kt("sft", "init", "demo", "--output", str(tmp_path / "run.yaml"), preexec_fn=limit)
    assert done.returncode == 1 and clean(done), done.stderr
    assert not list(tmp_path.glob("*run.yaml*"))


def signalled(env, where, stand_in):
    """kt with the stand-in, where `where` (Python text) has put a signal at an exact place."""
    code = f"import os, signal, sys\nsys.argv = [{stand_in[0]!r}, 'run', 'tiny', '-p', 'x']\n"
    code += f"sys.path.insert(0, {str(Path(stand_in[0]).parent)!r})\nfrom kt_cli import launch\n{where}\n"
    code += "import stand_in\nstand_in.command_line()\n"
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=20)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 1), (signal.SIGINT, 130)])
def test_a_signal_while_the_server_is_being_started(env, stand_in, number, code):
    where = f"def popen(*a, **k):\n    os.kill(os.getpid(), {int(number)})\nlaunch.subprocess.Popen = popen"
    done = signalled(env, where, stand_in)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    assert not list((state(env) / "plans").iterdir()), "the plan, which may hold the API key, was left behind"


def test_a_second_sigterm_while_the_server_is_being_stopped(env, stand_in):
    where = (
        "real = launch.stop\n"
        "class Process:\n"
        "    def __init__(self, it): self.it = it\n"
        "    def __getattr__(self, name): return getattr(self.it, name)\n"
        "    def wait(self, *a):\n"
        "        Process.wait = lambda self, *a: self.it.wait(*a)\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        return self.it.wait(*a)\n"
        "def stop(child):\n"
        "    child.process = Process(child.process)\n"
        "    real(child)\n"
        "launch.stop = stop"
    )
    done = signalled(env, where, stand_in)
    assert "Traceback" not in done.stderr, done.stderr
    assert not list((state(env) / "plans").iterdir())


def test_ctrl_c_during_the_imports(env, tmp_path):
    (tmp_path / "typer.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(1)\n")
    more = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-m", "kt_cli", "version"]
    done = subprocess.run(command, env={**env, **more}, capture_output=True, text=True, timeout=30)
    assert "Traceback" not in done.stderr and done.returncode == 130, done.stderr[-300:]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_ended_pull_leaves_no_download_running(env, number, tmp_path):
    """An orphan would go on writing into the folder whose lock the next pull gets."""
    (tmp_path / "hub.py").write_text("import time\ntime.sleep(30)\n")
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom kt_core.models import download, store\n"
        "real = download.run\n"
        f"download.run = lambda arguments, *rest: real([{str(tmp_path / 'hub.py')!r}], *rest)\n"
        "from kt_cli.main import main\nmain(['model', 'pull', 'smollm2'])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    end = time.monotonic() + 20
    while not (found := children.read_text().split()):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(number)
    process.wait(20)
    time.sleep(0.5)
    command = Path(f"/proc/{found[0]}/cmdline")
    left = command.exists() and b"hub.py" in command.read_bytes()
    if left:
        os.kill(int(found[0]), signal.SIGKILL)
    assert not left
