"""The frame: help, languages, exit codes, usage errors, failures, speed."""

import json
import re
import subprocess
import sys
import time
from typing import Any

import pytest
import typer
from cli_runner import Run

from kt_cli import help, main, output
from kt_core import errors


@pytest.mark.parametrize("language", ["en", "zh"])
def test_help_in_both_languages(kt: Run, language: str) -> None:
    done = kt("--help", more={"KT_LANG": language})
    assert done.code == 0 and done.err == ""
    for name in main.COMMANDS:
        assert f"\n  {name}" in done.out
    chinese = any("\u4e00" <= char <= "\u9fff" for char in done.out)
    assert chinese == (language == "zh")


@pytest.mark.parametrize("words", [("run",), ("chat",), ("config", "set"), ("model",), ("model", "rm"), ("doctor",)])
def test_chinese_help_has_no_english_sentence(kt: Run, words: tuple[str, ...]) -> None:
    """Every text line of a Chinese page has Chinese in it; only examples and bare names do not."""
    page = kt(*words, "--help", more={"KT_LANG": "zh"}).out
    body, examples = page.split("示例：") if "示例：" in page else (page, "")
    lines = body.splitlines() + examples.split("\n\n", 1)[-1].splitlines()
    for line in filter(str.strip, lines):
        words_only = line.strip().replace("NO_COLOR", "").replace("FORCE_COLOR", "")
        assert any("\u3000" <= c <= "\u9fff" for c in line) or len(words_only.split()) < 4, line


def test_language_follows_the_setting_then_the_locale(kt: Run) -> None:
    assert "用法" in kt("--help", more={"LANG": "zh_CN.UTF-8"}).out
    assert kt("config", "set", "general.language", "zh").code == 0
    assert "用法" in kt("--help").out
    assert "Usage:" in kt("--help", more={"KT_LANG": "en"}).out


def test_no_arguments_show_help(kt: Run) -> None:
    assert kt().out == kt("--help").out


@pytest.mark.alone
def test_help_is_quick_and_imports_no_torch(env: dict[str, str]) -> None:
    code = "import sys; sys.argv = ['kt', '--help']\nfrom kt_cli.main import run\nrun(['--help'])\n"
    code += "bad = {'torch', 'transformers', 'rich', 'numpy', 'tomlkit', 'prompt_toolkit', 'kt_core._native'} & set(sys.modules)\n"
    code += "assert not bad, bad"
    subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True)
    times: dict[str, list[float]] = {"kt_cli --help": [], "typer": []}
    for _ in range(5):
        for words, seconds in times.items():
            start = time.perf_counter()
            command = (
                [sys.executable, "-c", "import typer"] if words == "typer" else [sys.executable, "-m", *words.split()]
            )
            subprocess.run(command, env=env, check=True, capture_output=True)
            seconds.append(time.perf_counter() - start)
    help, library = map(min, times.values())  # 1.7 times a library's own import, which is 0.12 s on slow CPUs
    assert help < max(0.25, 2.5 * library), times


USAGE = [
    (("confg",), "did you mean config"),
    (("model", "lst"), "did you mean list"),
    (("xyzzy",), "kt has no command 'xyzzy'; it has: run"),
    (("doctor", "--zzz"), "kt doctor has no option --zzz."),
    (("model",), "kt model needs a command: list, pull, verify, add, scan, show, rm, path."),
    (("serve", "x"), "what does that here: kt run NAME"),
    (("model", "delete", "x"), "what does that here: kt model rm NAME"),
    (("run", "x", "--num-threads", "4"), "what does that here: --threads"),
    (("run", "x", "--kt-metod", "BF16"), "did you mean --kt-method"),
    (("plan", "x", "--kt-threadpool", "2"), "did you mean --kt-threadpool-count"),
    (("run", "x", "-p", "--dry-run"), "--prompt needs a value"),
    (("run",), "kt run needs NAME: name of a model"),
    (("frob",), "kt has no command 'frob'; it has: run"),
    (("doctor", "--sysrot", "/"), "did you mean --sysroot"),
    (("config", "get"), "kt config get needs KEY"),
    (("config",), "kt config needs a command"),
    (("run", "x", "--port", "abc"), "--port takes a whole number from 1 to 65535"),
    (("run", "x", "--port", "70000"), "--port takes a whole number from 1 to 65535"),
    (("run", "x", "--temperature", "hot"), "--temperature takes a number from 0"),
    (("run", "x", "--port"), "--port needs a value"),
    (("run", "x", "--dry-run=truee"), "--dry-run takes no value"),
    (("version", "extra"), "kt version does not know what to do with: extra"),
    (("version", "--color", "red"), "--color takes one of: auto, always, never"),
]


@pytest.mark.parametrize(("args", "said"), USAGE, ids=[" ".join(args) for args, _ in USAGE])
def test_usage_errors_tell_what_and_where_to_look(kt: Run, args: tuple[str, ...], said: str) -> None:
    done = kt(*args)
    assert done.code == 2 and done.out == ""
    what, where = done.err.splitlines()
    assert said in what and re.fullmatch(r"  See: kt( \w+){0,2} --help", where)
    assert kt(*where.split()[2:]).out.startswith("Usage: kt")  # the advice works
    as_json = kt(*args, "--json") if args[-1] != "--port" else kt("--json", *args)
    assert as_json.code == 2 and as_json.err == ""
    assert said in as_json.json["error"]["what"] and as_json.json["error"]["next"] == where.strip()
    assert as_json.json["error"]["exit_code"] == 2
    chinese = kt(*args, more={"KT_LANG": "zh"})
    assert chinese.code == 2 and any("\u4e00" <= c <= "\u9fff" for c in chinese.err.partition("：")[2])
    assert chinese.err.splitlines()[1] == "  参见：" + where.partition(": ")[2]


def _failing(monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    def fail() -> None:
        raise failure

    app = help.new_app("cli.version_help")
    app.command(cls=help.Command, help="cli.version_help")(fail)
    monkeypatch.setattr("kt_cli.commands.version.app", app)


KINDS = [
    (errors.KTError, 1),
    (errors.UsageError, 2),
    (errors.DoesNotFit, 3),
    (errors.NotFound, 4),
    (errors.BadData, 5),
    (errors.EnvironmentProblem, 6),
    (errors.Unsupported, 7),
]


@pytest.mark.parametrize(("kind", "code"), KINDS)
def test_expected_failures(kind: type[errors.KTError], code: int, monkeypatch: Any, capsys: Any) -> None:
    _failing(monkeypatch, kind("config.bad_value", name="a.b", value=3, takes="text"))
    assert main.run(["version"]) == code
    shown = capsys.readouterr()
    assert shown.out == "" and len(shown.err.splitlines()) == 3
    assert main.run(["version", "--json"]) == code
    shown = capsys.readouterr()
    error = json.loads(shown.out)["error"]
    assert shown.err == "" and error["exit_code"] == code and error["kind"] == kind.__name__
    assert error["what"] and error["why"] and error["next"]


def test_unexpected_failure_is_a_sentence(monkeypatch: Any, capsys: Any, tmp_path: Any) -> None:
    _failing(monkeypatch, ZeroDivisionError("boom"))
    assert main.run(["version"]) == 1
    shown = capsys.readouterr().err
    assert "ZeroDivisionError: boom" in shown and "KT_DEBUG=1" in shown and "Traceback" not in shown
    assert "Traceback" in (tmp_path / "state" / "kt" / "logs" / "crash.log").read_text()
    monkeypatch.setenv("KT_DEBUG", "1")
    assert main.run(["version"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("failure", "code"),
    [(KeyboardInterrupt(), 130), (typer.Exit(6), 6), (typer.Abort(), 130)],
    ids=["ctrl-c", "exit", "abort"],
)
def test_other_ends(failure: BaseException, code: int, monkeypatch: Any, capsys: Any) -> None:
    _failing(monkeypatch, failure)
    assert main.run(["version"]) == code
    assert capsys.readouterr().err == ""


def test_broken_pipe_is_silent(env: dict[str, str]) -> None:
    command = f"{sys.executable} -m kt_cli config list | true; echo ${{PIPESTATUS[0]}}"
    for _ in range(3):
        done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True)
        assert done.stderr == "" and done.stdout.strip() == "0"


def test_version(kt: Run) -> None:
    found = kt("version", "--json").json
    assert found["schema_version"] == output.SCHEMA_VERSION
    assert {"kt", "python", "torch", "transformers"} < set(found)
    assert kt("--version").out == kt("version").out


@pytest.mark.parametrize(
    ("args", "more", "colored"),
    [
        ((), {}, False),
        (("--color", "always"), {}, True),
        ((), {"FORCE_COLOR": "1"}, True),
        ((), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (("--color", "never"), {"FORCE_COLOR": "1"}, False),
        ((), {"KT_GENERAL_COLOR": "always"}, True),
    ],
)
def test_color(kt: Run, args: tuple[str, ...], more: dict[str, str], colored: bool) -> None:
    done = kt("config", "list", *args, more=more)
    assert ("\x1b[" in done.out) == colored
    failed = kt("config", "get", "nothing", *args, more=more)
    assert ("\x1b[" in failed.err) == colored


def test_global_options_stand_anywhere(kt: Run) -> None:
    assert (
        kt("--json", "config", "path").json
        == kt("config", "--json", "path").json
        == kt("config", "path", "--json").json
    )


def test_numbers_that_json_has_not(capsys: Any) -> None:
    output.document({"a": float("nan"), "b": [float("inf"), 1.5]})
    assert json.loads(capsys.readouterr().out) == {"schema_version": output.SCHEMA_VERSION, "a": None, "b": [None, 1.5]}


def test_text_helpers() -> None:
    assert (
        output.size(512) == "512 B" and output.size(1.5 * 2**30) == "1.50 GiB" and output.size(150 * 2**20) == "150 MiB"
    )
    assert output.cells("中a\x1b[31mb\x1b[0m") == 4
    rows = output.table([("名称", "x"), ("a", "y")]).splitlines()
    assert [output.cells(row.rpartition(" ")[0]) for row in rows] == [5, 5]
    assert output.printable("a\x1b]0;title\x07b\n") == "a]0;titleb\n"
    assert output.wrap("one two three", 7) == ["one two", "three"]
    assert all(output.cells(line) <= 10 for line in output.wrap("中文没有空格也要换行 and words", 10))


@pytest.mark.parametrize("args", [("run", "demo", "-p"), ("config", "set", "chat.system"), ("model", "path")])
def test_words_that_are_not_text(args: tuple[str, ...], kt: Run) -> None:
    """Bytes that are not UTF-8, which Python hands over as lone surrogates, are refused at once."""
    done = kt(*args, "a\udcffb")
    assert done.code == 2 and done.out == "" and "'a?b' on the command line is not valid UTF-8" in done.err
    assert kt("--json", *args, "a\udcffb").json["error"]["exit_code"] == 2


@pytest.mark.parametrize("value", ["fr", "zzz", "english"])
def test_unknown_language(value: str, kt: Run) -> None:
    """A usage error that names the known ones, and a warning where nothing depends on the settings."""
    more = {"KT_LANG": value}
    done = kt("config", "list", more=more)
    assert done.code == 2 and f"KT_LANG is '{value}'" in done.err and "auto | en | zh" in done.err
    for args in (("--help",), ("version",), (), ("config", "--help")):
        done = kt(*args, more=more)
        assert done.code == 0 and done.out == kt(*args).out
        assert done.err.startswith(f"Warning: The environment variable KT_LANG is '{value}'")


def test_doctor_tells_of_an_unknown_language(kt: Run) -> None:
    found = {check["name"]: check for check in kt("doctor", "--json", more={"KT_LANG": "fr"}).json["checks"]}
    assert found["settings"]["status"] == "warn" and "auto | en | zh" in found["settings"]["value"]


def test_known_languages(kt: Run) -> None:
    for known in ("en", "en_GB.UTF-8", "auto", "EN", "zh", "zh_CN", "zh-Hans", "zh.utf8"):
        assert kt("config", "path", more={"KT_LANG": known}).err == ""


def test_quiet_shows_only_values(kt: Run) -> None:
    found = kt("version", "--json").json
    assert kt("version", "-q").out.split("\n")[:-1] == [
        found[name] for name in ("kt", "python", "torch", "transformers")
    ]


def test_no_locale_is_needed_for_chinese(kt: Run) -> None:
    more = {"KT_LANG": "zh", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    assert kt("--help", more=more).code == 0


def test_plain_progress_is_sparse(capsys: Any) -> None:
    with output.progress() as report:
        for done in range(1001):
            report("weights", done, 1000, "modules")
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 3 and lines[-1].startswith("Loading weights 1000 of 1000")
