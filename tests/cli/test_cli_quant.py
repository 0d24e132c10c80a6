"""`kt quant`: what a person and a program get, refusals, an end in the middle, and the dialogue."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import checkpoint
import pexpect
import pytest
from cli_runner import Run

from kt_core.models import store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoint.save(tmp_path / "source")


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ([], 2, "kt quant demo --method int4"),
        (["SOURCE"], 2, "int4, int8"),
        (["SOURCE", "-m", "int5"], 2, "Q4_K_M"),
        (["SOURCE", "-m", "int4", "--group", "48"], 2, "32, 64, 128"),
        (["SOURCE", "-m", "int8", "--group", "64"], 2, "--group"),
        (["SOURCE", "-m", "fp8", "--zero-point"], 2, "--zero-point"),
        (["SOURCE", "-m", "int4", "--only", "heads"], 2, "all, experts, other"),
        (["SOURCE", "-m", "int4", "--override", "x=Q4_K"], 2, "--override"),
        (["SOURCE", "-m", "int4", "--override", "w2=int8"], 2, "--override"),
        (["SOURCE", "-m", "fp8", "--gptq", "text.txt"], 2, "int4, int8"),
        (["SOURCE", "-m", "int4", "--gptq", "a.txt", "--importance", "b.txt"], 2, "--importance"),
        (["SOURCE", "-m", "moe_int4"], 2, "Nothing"),
        (["SOURCE", "-m", "int4", "--out", "source"], 2, "there already"),
        (["SOURCE", "-m", "int4", "--out", ""], 2, "--out is empty"),
        (["SOURCE", "-m", "int4", "--out", "  "], 2, "--out is empty"),
        (["SOURCE", "-m", "int4", "--out", "nope/.."], 2, "there already"),
        (["SOURCE", "-m", "int4", "--out", "nope/../source"], 2, "there already"),
        (["SOURCE", "-m", "int4", "--out", "."], 2, "there already"),
        (["nowhere/at/all", "-m", "int4"], 4, "nowhere"),
    ],
)
def test_refusals(kt: Run, folder: Path, args: list[str], code: int, words: str) -> None:
    before = sorted(folder.parent.iterdir())
    done = kt("quant", *(str(folder) if word == "SOURCE" else word for word in args))
    assert done.code == code, done.err
    assert words in done.err and done.out == ""
    assert {path.name for path in folder.parent.iterdir()} <= {*(path.name for path in before), "state", "cache"}


def test_a_plan_then_a_folder_that_goes_by_its_name(kt: Run, folder: Path, tmp_path: Path) -> None:
    plan = kt("quant", str(folder), "-m", "int4", "--dry-run", "--json").json
    assert [row["to"] for row in plan["rows"]] == ["INT4 g32", "BF16"] and not Path(plan["out"]).exists()
    done = kt("quant", str(folder), "-m", "int4", "--threads", "1", more={"KT_LANG": "zh"})
    assert done.code == 0 and "运行：kt run source-int4" in done.err, done.err
    out = Path(done.out.strip())
    assert out == Path(plan["out"])
    assert sum(path.stat().st_size for path in out.iterdir()) == plan["after"]
    about = kt("model", "list", "--pulled").out
    assert "int4 of source" in about and str(folder) not in about
    assert kt("model", "rm", "source-int4", "-y").code == 0 and not out.exists()


def test_an_output_that_lies_elsewhere_is_a_link(kt: Run, folder: Path) -> None:
    assert store.adopt("elsewhere", folder)
    assert kt("model", "list", "--pulled", "-q").out.split() == ["elsewhere"]
    assert kt("model", "rm", "elsewhere", "-y").code == 0
    assert (folder / "config.json").exists() and store.list_models() == ()


def test_a_name_that_another_model_has(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, store.models_dir() / "mine")
    assert not store.adopt("mine", folder) and not store.adopt("demo", folder)
    assert store.adopt("mine", store.models_dir() / "mine")


@pytest.mark.parametrize("out", ["two words", "it's $HOME", "line\nbreak"])
def test_the_next_command_is_one_for_a_shell(kt: Run, folder: Path, tmp_path: Path, out: str) -> None:
    """Whatever the folder is called: as its name, and as its path where another model has that name."""
    for number, expected in enumerate((out, str(tmp_path / "deep" / "1" / out))):
        done = kt("quant", str(folder), "-m", "int4", "--out", f"deep/{number}/{out}", "--threads", "1")
        assert done.code == 0, done.err
        line = done.err[done.err.index("Run it with: ") + len("Run it with: ") :]
        assert shlex.split(line) == ["kt", "run", expected]


def test_a_dry_run_says_what_is_there(kt: Run, folder: Path, tmp_path: Path) -> None:
    """The same figures as without it; the exit code is the one that the command itself would have."""
    command = ("quant", str(folder), "-m", "int4", "--out", "out", "--dry-run")
    fresh = kt(*command, "--json").json
    assert not fresh["exists"] and fresh["finished"] == 0 and fresh["groups"] == 2
    (tmp_path / "out").mkdir()
    there = kt(*command)
    assert there.code == 2 and "INT4 g32" in there.out and "there already" in there.err and "--out" in there.err
    (tmp_path / "out").rmdir()
    assert kt(*command).code == 0 and not (tmp_path / "out").exists() and not (tmp_path / ".out.partial").exists()


def test_a_dry_run_over_an_existing_output_is_one_document(kt: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    done = kt("quant", str(folder), "-m", "int4", "--out", "out", "--dry-run", "--json")
    assert done.code == 2 and done.json["exists"] and done.json["rows"]


SLOW = (
    "import sys, time\nfrom kt_core.quantise import write\nold = write._record\n"
    "def record(*a):\n    {before}\n    print('one layer', file=sys.stderr, flush=True)\n    time.sleep(60)\n"
    "write._record = record\nfrom kt_core.quantise.__main__ import main\nmain()\n"
)


@pytest.mark.parametrize(
    ("moment", "words", "language"),
    [
        ("before", "begins anew", "en"),
        ("before", "重新开始", "zh"),
        ("after", "goes on with what is finished", "en"),
        ("after", "继续", "zh"),
    ],
)
def test_ctrl_c_says_what_the_same_command_would_do(
    env: dict[str, str], folder: Path, tmp_path: Path, moment: str, words: str, language: str
) -> None:
    """Before the first layer is on the disk, and after it."""
    slow = SLOW.format(before="pass" if moment == "before" else "old(*a)")
    program = f"import sys\nfrom kt_cli.commands import quant\nquant.QUANTISE = [sys.executable, '-c', {slow!r}]\n"
    program += "from kt_cli.main import main\nmain()\n"
    command = [sys.executable, "-c", program, "quant", str(folder), "-m", "int4", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        command, env=env | {"KT_LANG": language}, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    logs, partial = tmp_path / "state" / "kt" / "logs", tmp_path / ".out.partial"
    while not any("one layer" in log.read_text() for log in logs.glob("*.log")):
        assert process.poll() is None, process.stderr
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and words in err
    assert (partial / "journal.json").exists() == (moment == "after") and not (tmp_path / "out").exists()


def test_a_dry_run_says_how_far_an_interrupted_run_came(kt: Run, folder: Path, tmp_path: Path) -> None:
    from kt_core.models.files import local_files
    from kt_core.quantise import make, write
    from kt_core.quantise.job import Job

    kept, record = [], write._record

    def first_only(*args: object) -> None:
        if kept:
            raise KeyboardInterrupt
        kept.append(record(*args))

    prepared = make.prepare(Job(local_files(folder), "int4", str(tmp_path / "out"), "out"))
    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(write, "_record", first_only)
        make.run(prepared, lambda *_: None)
    command = ("quant", str(folder), "-m", "int4", "--out", "out", "--dry-run")
    assert "1 of 2 layers are finished; the command goes on with the next one." in kt(*command).out
    assert kt(*command[:3], "int8", *command[4:], "--json").json["finished"] == 0  # another job begins anew


@pytest.mark.full
def test_the_dialogue(env: dict[str, str], folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "data" / "kt" / "models" / "mine")
    child = pexpect.spawn(sys.executable, ["-m", "kt_cli", "quant"], env=env, encoding="utf-8", timeout=60)
    child.expect("Which model")
    child.send("\r")
    child.expect("Which precision")
    child.send("\r")
    child.expect("INT4 g32")
    child.expect("Start")
    child.send("y")
    child.expect("kt run mine-int4")
    child.expect(pexpect.EOF)
