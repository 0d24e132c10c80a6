"""A home of its own for every test, a runner for `kt`, and a stand-in for the OpenAI-compatible server."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runner import Done, Run
from fake_openai import FakeServer
from prepared import Prepared

from kt_cli import output
from kt_core import messages

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment with empty XDG folders, no settings of ours, and English."""
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("KT_", "XDG_", "LC_", "LANG", "NO_COLOR", "FORCE_"))
    }
    homes = {f"XDG_{kind}_HOME": str(tmp_path / kind.lower()) for kind in ("CONFIG", "STATE", "CACHE", "DATA")}
    return {**kept, **homes, "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="session")
def prepared() -> Iterator[Prepared]:
    process = Prepared(ROOT)
    yield process
    process.close()


@pytest.fixture
def kt(env: dict[str, str], tmp_path: Path, prepared: Prepared) -> Run:
    """Run `kt` as a process: kt("config", "list", input="", more={"KT_LANG": "zh"}).

    It starts Python anew only where `program` or `more` say how, since that is most of a short command's time.
    """

    def run(
        *args: str, input: str = "", more: dict[str, str] | None = None, program: tuple[str, ...] | None = None
    ) -> Done:
        whole = {**env, **(more or {})}
        if program is None and not any(name.startswith(("PYTHON", "LC_")) for name in more or {}):
            done = Done(*prepared.run(args, input, whole, tmp_path, timeout=120))
        else:
            command = [sys.executable, *(program or ("-m", "kt_cli")), *args]
            ended = subprocess.run(
                command, input=input, capture_output=True, text=True, timeout=120, env=whole, cwd=tmp_path
            )
            done = Done(ended.returncode, ended.stdout, ended.stderr)
        assert "Traceback" not in done.err, done.err
        return done

    return run


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `kt` in this process, which is quicker: nothing but arguments, and no standard input."""
    from kt_cli.main import run as run_line

    def run(*args: str) -> Done:
        output.reset()
        capsys.readouterr()
        code = run_line(list(args))
        shown = capsys.readouterr()
        return Done(code, shown.out, shown.err)

    return run


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> Iterator[None]:
    """In-process tests see the same clean environment, and leave no language or mode behind."""
    for name in list(os.environ):
        if name.startswith(("KT_", "LC_", "NO_COLOR", "FORCE_")):
            monkeypatch.delenv(name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    messages.set_language("en")
    output.reset()
    yield
    messages.set_language(None)
    output.reset()
