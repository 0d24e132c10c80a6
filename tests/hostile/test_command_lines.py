"""Command lines and settings at random: every command, option and argument, with values that fit and values that cannot.

Whatever is typed ends with a documented exit code and in words, and leaves nothing half-written. Nothing is started and
nothing is downloaded: a process that a command would start ends at once, as a broken one does.
"""

import io
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kt_cli import checks, output, tree
from kt_cli.docs import EXIT_CODES
from kt_cli.main import COLORS, run
from kt_core import config, messages, paths

COUNT = 250  # command lines in the suite; KT_FUZZ_SECONDS, 60 where it is not set, is how long the full test goes on
NUMBERS = (
    "0",
    "1",
    "-1",
    "7",
    "1.5",
    "1e309",
    "nan",
    "-inf",
    "9" * 40,
    "1_0",
    "\uff11",
    "0x10",
    "",
    " ",
    "many",
    "4GiB",
    "50%",
)
WORDS = (
    "", " ", "-", "--", "@work", "@absent", "@", "auto", "none", "a b", "\u6a21\u578b", "\U0001f600", "\x1b[2J", "a\nb", "\udcff",
    "x" * 300, "%s{0}{x}", "'\"", "true", "[1]", "cpu=6454s:2,ram=1TiB", "cpu=,ram=,=", "http://127.0.0.1:9", "http://[", "1,2,x",
)  # fmt: skip
NAMES = (
    "demo",
    "r1",
    "mine",
    "broken",
    "qwen3-30b-a3b",
    "demos",
    "nobody/nothing",
    "a/b:Q4_K_M",
    "../..",
    "/",
    "~nobody/x",
)
FILES = (
    "absent",
    "empty.gguf",
    "broken.gguf",
    "text.txt",
    "folder",
    ".",
    "/dev/null",
    "n" * 300,
    "text.txt/below",
    "rows.json",
)


class EndsAtOnce(subprocess.Popen):  # type: ignore[type-arg]
    """A process that fails without a word, whatever should have been started."""

    def __init__(self, command: Any, **more: Any) -> None:
        super().__init__(["false"], **more)


@pytest.fixture
def place(here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a profile, damaged models and files; processes that end at once, and no network."""
    (tmp_path / "folder").mkdir()
    for name, content in (("empty.gguf", b""), ("broken.gguf", b"GGUF\3\0\0\0" + b"\xff" * 40), ("text.txt", b"hello")):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "rows.json").write_text('[{"prompt": "a", "response": "b"}]')
    for name in ("mine", "broken"):
        folder = tmp_path / "data" / "kt" / "models" / name
        folder.mkdir(parents=True)
        (folder / "m.gguf").write_bytes((tmp_path / "broken.gguf").read_bytes())
    profile = tmp_path / "config" / "kt" / "profiles" / "work.toml"
    profile.parent.mkdir(parents=True)
    profile.write_text('model = "demo"\ncontext = 8\n')
    monkeypatch.setattr(subprocess, "Popen", EndsAtOnce)
    monkeypatch.setattr(checks, "_python", lambda code: subprocess.CompletedProcess([], 1, "", "no"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("what?"))
    monkeypatch.setenv("EDITOR", "true")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def finish() -> Iterator[None]:
    yield
    messages.set_language(None)
    output.reset()


def line(pick: random.Random, nodes: list[tree.Node]) -> list[str]:
    """One command line: mostly the words of a command, some of its options and arguments, in any order."""
    node = pick.choice(nodes)
    words: list[str] = []
    for param in node.options:
        if pick.random() < min(0.5, 2.5 / len(node.options)) and ("--help" not in param.opts or pick.random() < 0.1):
            words.append(pick.choice([*param.opts, *param.secondary_opts]))
            if not param.is_flag and pick.random() < 0.95:
                words.append(value(pick, param))
    for param in node.arguments:
        for _ in range(pick.choice((0, 1, 1, 1, 1, 1, 2))):
            words.insert(pick.randint(0, len(words)), value(pick, param))
    if pick.random() < 0.1:
        words.insert(pick.randint(0, len(words)), pick.choice(WORDS))
    return [*node.words, *words]


def value(pick: random.Random, param: Any) -> str:
    """A value that may be meant for this parameter, or any other."""
    kinds = {
        "NAME": NAMES,
        "MODEL": NAMES,
        "FILE": FILES,
        "DIR": FILES,
        "SOURCE": FILES,
        "ADAPTER": FILES,
        "FOLDER": FILES,
    }
    usual = tree.choices(param) or kinds.get(str(param.metavar), NUMBERS)
    return pick.choice(usual if pick.random() < 0.7 else pick.choice((WORDS, NAMES, FILES, NUMBERS, COLORS)))


def check(words: list[str], place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run one line and look at what it left."""
    output.reset()
    settings = paths.config_file().read_bytes() if paths.config_file().exists() else b""
    code = run(list(words))
    out, err = capsys.readouterr()
    assert code in EXIT_CODES, (words, code)
    assert not (place / "state" / "kt" / "logs" / "crash.log").exists(), (words, err)
    assert "Traceback" not in out + err, words
    if code and code != 130:
        assert (out + err).strip(), (words, code)
    if "--json" in words and code in (0, 3) and not out.startswith("Usage"):
        for document in out.splitlines():
            json.loads(document)
    left = [file for file in place.rglob(f"*.{os.getpid()}") if file.is_file()]
    assert not left, (words, left)
    if code and paths.config_file().exists():
        assert paths.config_file().read_bytes() == settings, words


def lines(seed: int) -> Callable[[], list[str]]:
    pick, nodes = random.Random(seed), list(tree.walk())
    return lambda: line(pick, nodes)


# What random lines have found.
FOUND = (
    ["sft", "chat", "n" * 300],
    ["sft", "init", "-o", "text.txt/below", "demo"],
    ["sft", "init", "-o", "absent/below", "demo"],
    ["sft", "init", "-o", "--json", "demo"],
    ["sft", "train", "text.txt", "cpu=,ram=,="],
    ["model", "scan", "n" * 300],
    ["logs", "-n", "9" * 40],
    ["quant", "-m", "", "qwen3-30b-a3b"],
)


@pytest.mark.parametrize("words", FOUND, ids=" ".join)
def test_lines_that_once_failed(
    words: list[str], place: Path, finish: None, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = place / "state" / "kt" / "logs"
    logs.mkdir(parents=True)
    (logs / "20261201-000000-1-mine.log").write_text("x\n")
    check(words, place, capsys)


def test_command_lines(place: Path, finish: None, capsys: pytest.CaptureFixture[str]) -> None:
    make = lines(20261201)
    for _ in range(COUNT):
        check(make(), place, capsys)


@pytest.mark.full
@pytest.mark.timeout(0)  # it ends by itself
def test_many_command_lines(place: Path, finish: None, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("KT_FUZZ_SEED", "0")) or time.time_ns()
    make, end = lines(seed), time.monotonic() + float(os.environ.get("KT_FUZZ_SECONDS", "60"))
    try:
        while time.monotonic() < end:
            check(make(), place, capsys)
    except BaseException:
        print(f"seed {seed}", file=sys.__stderr__)
        raise


def settings(pick: random.Random) -> str:
    """A settings file: tables and keys that there are, with values of any kind, and now and then no TOML."""
    values = (
        "1",
        "-1",
        "1e999",
        '"x"',
        '""',
        "true",
        "[1]",
        "{a=1}",
        "1979-05-27",
        "'''\n'''",
        "9" * 30,
        "nan",
        "=",
        "\x00",
        '"\\ud800"',
    )
    rows = []
    for setting in pick.sample(config.SETTINGS, pick.randint(0, 6)):
        table, _, key = setting.key.partition(".")
        rows.append(
            pick.choice((f"[{table}]\n{key} = {pick.choice(values)}", f"{setting.key} = {pick.choice(values)}", table))
        )
    text = "\n".join(rows)
    cut = pick.randint(0, len(text)) if pick.random() < 0.2 else len(text)
    return text[:cut]


def test_settings_files(place: Path, finish: None, capsys: pytest.CaptureFixture[str]) -> None:
    pick = random.Random(7)
    file = paths.config_file()
    profile = file.with_name("profiles") / "work.toml"
    tried = (["config", "list"], ["config", "set", "chat.temperature", "0.5"], ["ps", "--json"], ["model", "list"])
    for _ in range(60):
        file.write_text(settings(pick), encoding="utf-8")
        check(list(pick.choice(tried)), place, capsys)
        file.unlink(missing_ok=True)
        profile.write_text(settings(pick).replace("[", "").replace("]", ""), encoding="utf-8")
        check(["run", "@work", "--dry-run"], place, capsys)
        check(["config", "profiles", "--json"], place, capsys)
