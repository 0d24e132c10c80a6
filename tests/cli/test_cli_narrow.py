"""On a narrow terminal no word is cut in two by the terminal's edge, in any command and either language."""

import sys
from pathlib import Path

import pytest

from kt_cli import checks, output
from kt_cli.commands.run import _plan_text
from kt_cli.main import COMMANDS, command_tree, run
from kt_core import messages
from kt_core.types import Decision, ModelFiles, ModelSpec, Plan, ServerSettings

LONG = (
    "avx512_bf16 chosen; runnable: scalar, avx2, avx512, avx512_vnni; not here, for want of: amx (amx_tile, amx_int8)"
)


@pytest.fixture(params=[40, 60, 80])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(output, "is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", str(request.param))
    monkeypatch.setenv("NO_COLOR", "1")
    found = [checks.Check("kernels", "ok", LONG), checks.Check("disk", "warn", "12.0 GiB free", f"Free some. {LONG}")]
    monkeypatch.setattr(checks, "run_all", lambda sysroot: found)
    return int(request.param)


def check(text: str, columns: int) -> None:
    """Each line fits, but for one that is a single word (a path) or meant to be copied as it is."""
    for line in text.splitlines():
        copied = line.startswith(("  kt ", "Usage: ", "用法："))
        assert output.cells(line) <= columns or copied or " " not in line.strip(), repr(line)


def pages() -> list[list[str]]:
    root = command_tree()
    found = [["--help"]]
    for name in COMMANDS:
        command = root.get_command(None, name)
        below = getattr(command, "commands", {})
        found += [[name, "--help"], *([name, other, "--help"] for other in below)]
    return found


@pytest.mark.parametrize("language", ["en", "zh"])
def test_help(columns: int, language: str, capsys: pytest.CaptureFixture[str]) -> None:
    messages.set_language(language)
    for args in pages():
        assert run(args) == 0
        check(capsys.readouterr().out, columns)


@pytest.mark.parametrize(
    "args",
    [
        "model list",
        "config list",
        "doctor",
        "rum",
        "config set server.port x",
        "model path nosuch",
        "run nosuch",
        "plan r1 --simulate cpu=9654:2,ram=2TiB,gpu=4090,disk=2TiB",
        "plan r1 --simulate ram=9GiB",
    ],
)
def test_commands(columns: int, args: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["kt"])
    run(args.split())
    shown = capsys.readouterr()
    assert shown.out or shown.err
    check(shown.out + shown.err, columns)


def test_plan(columns: int, tmp_path: Path) -> None:
    files = ModelFiles("a-model-with-a-long-name", str(tmp_path), "gguf", ())
    spec = ModelSpec("glm4_moe", 2, 8, 32, 64, 4, 2, 1000, {"experts": 1, "other": 1}, 16, {"F32": 2})
    decisions = (
        Decision(
            "context", 8192, "the longest that fits: 131072 tokens would take 80.00 GiB, 20 are available", "machine"
        ),
        Decision("tier", None, "the best kernels that this CPU runs; by its flags avx512_vnni", "machine"),
    )
    text = _plan_text(Plan(files, spec, decisions, {"cpu": 2**30}, ServerSettings()))
    check(text, columns)
    assert all(word in text for word in decisions[0].reason.split())


def test_a_pipe_gets_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert output.table([("a", LONG)]) == f"a  {LONG}" and output.folded(LONG, sys.stdout) == LONG
