"""`kt model`: the store through the command line. Nothing is downloaded."""

import json
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest
from cli_runner import Run


@pytest.fixture
def pulled(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "kt" / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "mine.gguf").write_bytes(b"x" * 2048)
    return folder


def test_list(kt: Run, pulled: Path) -> None:
    models = {m["name"]: m for m in kt("model", "list", "--json").json["models"]}
    assert models["mine"]["pulled"] and models["mine"]["bytes"] == 2048 and models["mine"]["format"] == "gguf"
    assert not models["demo"]["pulled"] and models["demo"]["about"]
    assert kt("model", "list", "--quiet").out.split()[0] == "mine"
    assert kt("model", "list", "--quiet", "--pulled").out == "mine\n"
    shown = kt("model", "list").out
    assert "2.00 KiB" in shown and "demo     93.8 MiB to download" in shown  # not the size of what is made of it
    assert "名称" in kt("model", "list", more={"KT_LANG": "zh"}).out


def test_path(kt: Run, pulled: Path) -> None:
    assert kt("model", "path", "mine").out.strip() == str(pulled / "mine.gguf")
    assert kt("model", "path", "min").code == 4


def test_models_folder_from_the_environment(kt: Run, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere" / "other"
    folder.mkdir(parents=True)
    (folder / "o.gguf").write_bytes(b"x")
    names = kt("model", "list", "-q", more={"KT_PATHS_MODELS": str(folder.parent)}).out.split()
    assert "other" in names


def test_models_folder_from_the_settings(kt: Run, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere" / "other"
    folder.mkdir(parents=True)
    (folder / "o.gguf").write_bytes(b"x")
    kt("config", "set", "paths.models", str(folder.parent))
    assert "other" in kt("model", "list", "-q").out.split()


def test_rm_without_a_terminal_needs_yes(kt: Run, pulled: Path) -> None:
    done = kt("model", "rm", "mine")
    assert done.code == 2 and "--yes" in done.err and pulled.exists()
    assert kt("model", "rm", "mine", "--json").code == 2 and pulled.exists()
    assert kt("model", "rm", "mine", "--yes").code == 0 and not pulled.exists()
    assert kt("model", "rm", "mine", "--yes").code == 4


@pytest.mark.parametrize("with_plan", [True, False])
def test_rm_of_a_model_in_use(with_plan: bool, kt: Run, pulled: Path, tmp_path: Path) -> None:
    """By the files in the server's plan, whatever the server calls the model; by the name where there is no plan."""
    from kt_core import paths
    from kt_core.types import ModelFiles, ModelSpec, Plan, ServerSettings

    file = str(pulled / "mine.gguf")
    spec = ModelSpec("f", 1, 1, 1, 64, 0, 0, 1, {}, 1, {})
    plan = tmp_path / "plan.json"
    if with_plan:
        Plan(ModelFiles("another", file, "gguf", (file,)), spec, (), {}, ServerSettings()).write(plan)
    holder = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "kt_core.server"])
    try:
        state = paths.state_dir() / "servers" / f"{holder.pid}.json"
        state.parent.mkdir(parents=True)
        name = "another" if with_plan else "mine"
        data = {"pid": holder.pid, "url": "http://127.0.0.1:9", "model": name, "plan": str(plan)}
        state.write_text(json.dumps(data))
        done = kt("model", "rm", "mine", "--yes")
        assert done.code == 1 and pulled.exists()
        assert f"http://127.0.0.1:9 runs it (process {holder.pid})" in done.err and f"kill {holder.pid}" in done.err
    finally:
        holder.kill()
        holder.wait()
    assert kt("model", "rm", "mine", "--yes").code == 0 and not pulled.exists()


def test_rm_asks_on_a_terminal(env: dict[str, str], pulled: Path) -> None:
    for answer, gone in (("n", False), ("", False), ("y", True)):
        child = pexpect.spawn(
            sys.executable, ["-m", "kt_cli", "model", "rm", "mine"], env=env, encoding="utf-8", timeout=20
        )
        child.expect(r"\(y/N\)")
        child.sendline(answer)
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == (0 if gone else 1) and pulled.exists() != gone


def test_pull_unknown(kt: Run) -> None:
    done = kt("model", "pull", "demoo")
    assert done.code == 4 and "demo" in done.err


@pytest.mark.parametrize("command", [("run",), ("model", "pull"), ("model", "path")])
def test_a_repository_gets_the_way_to_a_folder(command: tuple[str, ...], kt: Run) -> None:
    done = kt(*command, "Qwen/Qwen3-30B-A3B")
    assert done.code == 4 and "hf download Qwen/Qwen3-30B-A3B --local-dir Qwen3-30B-A3B" in done.err
    for name in ("nope.gguf", "a/b/c", "./a", "a/b.gguf"):
        assert "hf download" not in kt("run", name).err and f"no model at {name}." in kt("run", name).err
