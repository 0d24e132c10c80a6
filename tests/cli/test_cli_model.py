"""`kt model`: the store through the command line. Nothing is downloaded."""

import json
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest
import small_hub
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


def test_a_model_of_this_machine_is_pulled_and_what_rm_would_do(kt: Run, pulled: Path, tmp_path: Path) -> None:
    (tmp_path / "usb").mkdir()
    (tmp_path / "usb" / "other.gguf").write_bytes(b"GGUF" * 100)
    would = kt("model", "pull", "./usb/other.gguf", "--dry-run", "--json").json
    assert would["files"] == [{"file": "other.gguf", "bytes": 400}] and would["name"] == "other" and not would["there"]
    target = pulled.parent / "other" / "other.gguf"
    assert kt("model", "pull", "./usb/other.gguf").out == f"{target}\n" and target.read_bytes() == b"GGUF" * 100
    done = kt("model", "rm", "other", "--dry-run")
    assert done.code == 0 and "would be deleted" in done.out and target.exists()
    assert kt("model", "rm", "nothing", "--dry-run").code == 4
    assert kt("model", "add", "own", str(target)).code == 0
    assert "would be forgotten" in kt("model", "rm", "own", "--dry-run").out and "own" in kt("model", "list", "-q").out
    assert kt("model", "pull", "pypi:a b").code == 2 and kt("model", "pull", "./nothing").code == 4


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
        assert f"http://127.0.0.1:9 runs it (process {holder.pid})" in done.err and f"kt stop {holder.pid}" in done.err
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


@pytest.mark.parametrize("command", [("run",), ("model", "path")])
def test_a_repository_gets_the_way_to_it(command: tuple[str, ...], kt: Run) -> None:
    done = kt(*command, "Qwen/Qwen3-30B-A3B")
    assert done.code == 4 and "kt model pull Qwen/Qwen3-30B-A3B" in done.err
    for name in ("nope.gguf", "a/b/c", "./a", "a/b.gguf"):
        assert "hf download" not in kt("run", name).err and f"no model at {name}." in kt("run", name).err


def test_show_of_a_known_model(kt: Run) -> None:
    """Offline, by the built-in shapes; every alias and the repository mean the same."""
    data = kt("model", "show", "r1", "--json").json
    assert data["name"] == "DeepSeek-R1-0528" and data["source"] == "shapes" and data["path"] is None
    assert data["spec"]["experts"] == 256 and data["spec"]["method"] == "FP8"
    assert data["cache_bytes_per_token"] == 70_272
    assert kt("model", "show", "deepseek-ai/DeepSeek-R1-0528", "--json").json == data
    assert kt("model", "show", "r1", "-q").out == "DeepSeek-R1-0528\n"
    shown = kt("model", "show", "r1").out
    for words in ("685 B, 37.6 B active", "58 with 256 experts", "method FP8", "latent x 61", "deepseek-v3"):
        assert words in shown
    assert "激活 37.6 B" in kt("model", "show", "r1", more={"KT_LANG": "zh"}).out


def test_show_of_files(kt: Run, tmp_path: Path) -> None:
    from kt_core.models.gguf_writer import Tensor, header

    metadata = {"general.architecture": "strange", "strange.block_count": 1, "strange.embedding_length": 64}
    metadata |= {"strange.attention.head_count": 4, "strange.context_length": 512}
    data, _ = header(
        metadata, [Tensor("token_embd.weight", "F32", (32, 64)), Tensor("blk.0.attn_q.weight", "F32", (64, 64))]
    )
    (tmp_path / "own.gguf").write_bytes(data + bytes(4 * 64 * 96))
    found = kt("model", "show", str(tmp_path / "own.gguf"), "--json").json
    assert (
        found["source"] == "files" and found["spec"]["family"] == "strange" and found["spec"]["parameters"] == 64 * 96
    )
    assert "no chat template" in kt("model", "show", str(tmp_path / "own.gguf")).out


def test_show_of_what_is_not_there(kt: Run) -> None:
    done = kt("model", "show", "deepsek-r1")
    assert done.code == 4 and "deepseek-r1" in done.err
    assert kt("model", "show", "nobody/nothing", more={"HF_HUB_OFFLINE": "1"}).code == 6
    assert kt("model", "show", "smollm2").out.startswith(
        "model        smollm2"
    )  # can be pulled, and its shape is known


def test_run_of_a_known_model_names_the_way(kt: Run) -> None:
    done = kt("run", "m2")
    assert done.code == 4 and "MiniMaxAI/MiniMax-M2" in done.err and "kt model pull MiniMax-M2" in done.err


def test_list_of_known_models(kt: Run) -> None:
    rows = {row["name"]: row for row in kt("model", "list", "--known", "--json").json["models"]}
    assert len(rows) >= 70 and rows["GLM-5"]["repository"] == "zai-org/GLM-5" and rows["GLM-5"]["bytes"] > 10**12
    shown = kt("model", "list", "--known").out
    assert "685 B, 37.6 B active" in shown and "8.19 B  " in shown


def test_show_of_a_configuration_alone(kt: Run, tmp_path: Path) -> None:
    from kt_core.models import catalogue

    file = tmp_path / "later" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(dict(catalogue.builtin()["Qwen3-30B-A3B"].config)))
    for name in (file, file.parent):
        found = kt("model", "show", str(name), "--json").json
        assert found["source"] == "config" and found["spec"]["parameters"] / 1e9 > 30 and not found["spec"]["exact"]
    file.write_text("{}")
    assert kt("model", "show", str(file)).code == 5


# ---- models elsewhere, and those of the hub


def test_folders_that_are_searched(here: Run, pulled: Path, tmp_path: Path) -> None:
    """Models of other folders are found and never deleted; a folder that is gone is shown."""
    other = tmp_path / "disk" / "owner" / "Other-Model"
    other.mkdir(parents=True)
    (other / "m.gguf").write_bytes(b"x")
    disk = tmp_path / "disk"
    assert here("model", "path", "add", str(disk)).code == 0 and here("model", "path", "add", str(disk)).code == 0
    assert "Other-Model" in here("model", "list", "--pulled", "-q").out.split()
    assert here("model", "path", "other-model").out.strip() == str(other / "m.gguf")
    refused = here("model", "rm", "other-model", "--yes")
    assert refused.code == 1 and "only searched" in refused.err and (other / "m.gguf").exists()
    disk.rename(tmp_path / "unplugged")
    first, second = here("model", "path", "list", "--json").json["folders"]
    assert first["downloads"] and not first["missing"] and first["models"] == 1
    assert second == {"path": str(disk), "models": 0, "missing": True, "downloads": False}
    assert here("model", "list").code == 0 and "not there now" in here("model", "path", "list").out
    assert here("model", "path", "add", str(disk)).code == 4
    assert here("model", "path", "remove", str(disk)).code == 0 and here("model", "path", "remove", str(disk)).code == 4
    comma = tmp_path / "a,b"
    comma.mkdir()
    assert here("model", "path", "add", str(comma)).code == 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tree with two models, a split one, and things that are none."""
    root = tmp_path / "disk"
    for file in (
        "a/one.gguf",
        "b/c/two-00001-of-00002.gguf",
        "b/c/two-00002-of-00002.gguf",
        "a/mmproj-x.gguf",
        "d/x.txt",
    ):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(b"1234")
    broken = root / "broken"
    broken.mkdir()
    (broken / "three-00001-of-00002.gguf").write_bytes(b"")
    return root


def test_scan_and_add(kt: Run, folder: Path) -> None:
    found = kt("model", "scan", str(folder), "--json").json["models"]
    assert [(one["name"], one["bytes"]) for one in found if not one["problem"]] == [
        ("one", 4), ("two", 8),
    ]  # fmt: skip
    assert [one["name"] for one in found if one["problem"]] == ["three"]
    assert kt("model", "scan", str(folder), "--add", "-q").out.split()[:1] == ["one"]
    listed = {entry["name"]: entry for entry in kt("model", "list", "--json").json["models"]}
    assert listed["one"]["bytes"] == 4 and listed["one"]["path"] == str(folder / "a" / "one.gguf")
    assert kt("model", "path", "one").out == f"{folder / 'a' / 'one.gguf'}\n"
    (folder / "a" / "one.gguf").unlink()
    row = next(line for line in kt("model", "list").out.splitlines() if line.startswith("one"))
    assert "not there" in row  # shown, and not dropped
    assert kt("model", "rm", "one").code == 0
    assert "one" not in kt("model", "list", "-q").out.split() and (folder / "b" / "c").exists()
    assert kt("model", "scan", str(folder / "nowhere")).code == 4


def test_the_cache_of_other_programs(
    here: Run, env: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Hugging Face's: snapshots of links under a repository's name."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    hub = tmp_path / "hub"
    snapshot, blobs = hub / "models--Me--Tiny-1B" / "snapshots" / "0a1b", hub / "models--Me--Tiny-1B" / "blobs"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (blobs / f"of-{name}").write_bytes(b"{}")
        (snapshot / name).symlink_to(blobs / f"of-{name}")
    assert here("model", "scan", str(hub), "-q").out.split() == ["Tiny-1B"]
    assert here("model", "path", "add", str(hub)).code == 0
    assert here("model", "list", "--pulled", "-q").out.split() == ["Tiny-1B"]
    assert here("model", "path", "Me/Tiny-1B").out == here("model", "path", "tiny-1b").out == f"{snapshot}\n"
    assert here("model", "rm", "tiny-1b", "--yes").code == 1 and snapshot.exists()


def test_add(kt: Run, folder: Path) -> None:
    file = str(folder / "a" / "one.gguf")
    assert kt("model", "add", "mine", file, "--alias", "m").code == 0
    assert kt("model", "path", "m").out == f"{file}\n"
    assert kt("model", "add", "big", "me/big", "--like", "r1").code == 0
    assert kt("model", "show", "big", "--json").json["repos"] == {"": "me/big"}
    for args, code in (
        (("x", str(folder / "d")), 5),
        (("x", str(folder / "nowhere")), 4),
        (("demo", file), 2),
        (("a/b", file), 2),
        (("x", file, "--like", "no such"), 5),
    ):
        done = kt("model", "add", *args)
        assert done.code == code, done.err
    assert "x" not in kt("model", "list", "-q").out.split()


def test_pull_of_a_repository(kt: Run, tmp_path: Path) -> None:
    """From the dry run to a repaired file, through a hub on this machine."""
    with small_hub.serving() as (handler, address):
        more = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hf")}
        would = kt("model", "pull", "me/tiny", "--exclude", "tok*", "--dry-run", "--json", more=more).json
        assert len(would["files"]) == 4 and would["bytes"] > 6000 and not would["there"] and handler.sent == []
        assert "would go to" in kt("model", "pull", "me/tiny", "--dry-run", more=more).out
        done = kt("model", "pull", "me/tiny", "-q", more=more)
        assert done.code == 0 and done.out == "tiny\n"
        shard = tmp_path / "data" / "kt" / "models" / "tiny" / "model-00002-of-00002.safetensors"
        shard.write_bytes(b"")
        bad = kt("model", "verify", "tiny", "-q", more=more)
        assert bad.code == 5 and bad.out == f"{shard.name}\n"
        assert kt("model", "verify", "tiny", "--repair", "--json", more=more).json["repaired"] == [shard.name]
        assert "Nothing is broken" in kt("model", "verify", "tiny").err
    assert kt("model", "pull", "me/other").code == 6  # offline
    assert kt("model", "pull", "demo", "--include", "x").code == 2
