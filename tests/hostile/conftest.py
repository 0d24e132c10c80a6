"""A home of its own for every test, `kt` as a process, and a tiny real model folder."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
for folder in ("engine", "cli", "server"):
    sys.path.insert(0, str(ROOT / "tests" / folder))


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment with empty XDG folders, no settings of ours, English, and a port that is free."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("KT_", "XDG_", "LC_", "LANG", "PYTHONIO"))}
    homes = {f"XDG_{kind}_HOME": str(tmp_path / kind.lower()) for kind in ("CONFIG", "STATE", "CACHE", "DATA")}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    more = {"LANG": "C.UTF-8", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "KT_SERVER_PORT": port}
    return {**kept, **homes, **more, "HOME": str(tmp_path)}


@pytest.fixture
def here(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same environment for code that runs in this process."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    yield


@pytest.fixture
def kt(env: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """kt("model", "list", more={...}, stdin=...): the finished process, without a traceback."""

    def run(
        *args: str, more: dict[str, str] | None = None, program: tuple[str, ...] = ("-m", "kt_cli"), **popen: object
    ):
        command = [sys.executable, *program, *args]
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        options |= {"errors": "replace", "timeout": 60, "env": {**env, **(more or {})}, "cwd": tmp_path}
        return subprocess.run(command, **{**options, **popen})  # type: ignore[call-overload]

    return run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two layers as a Hugging Face folder, tokenizer and chat template included."""
    import tinymodel
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("models") / "tiny"
    model = tinymodel.model()
    model.config.save_pretrained(folder)
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, folder / "model.safetensors")
    tinymodel.tokenizer().save_pretrained(folder)
    return folder


STAND_IN = (str(ROOT / "tests/cli/stand_in.py"),)


@pytest.fixture(scope="session")
def stand_in() -> tuple[str, ...]:
    """The program that is `kt` with a stand-in for the engine."""
    return STAND_IN
