"""What a dry run refuses, as the run would: parsers, rule files, families."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runner import Run

from kt_cli import before
from kt_core.errors import KTError, RemoteError, Unsupported, UsageError
from kt_core.types import ModelFiles, ModelSpec, Plan, ServerSettings

STAND_IN = (str(Path(__file__).parent / "stand_in.py"),)
SPEC = ModelSpec("qwen3_moe", 2, 8, 32, 64, 4, 2, 1000, {"experts": 1, "other": 1}, 16, {"F32": 2})
PLAN = Plan(ModelFiles("tiny", "/tiny", "gguf", ()), SPEC, (), {}, ServerSettings())


def test_an_unknown_parser(kt: Run) -> None:
    for option in ("--tool-parser", "--reasoning-parser"):
        for more in ((), ("--dry-run",)):
            done = kt("run", "tiny", option, "nope", *more, program=STAND_IN)
            assert done.code == 2 and "no parser called nope" in done.err and "auto, none" in done.err
    assert kt("run", "tiny", "--dry-run", "--tool-call-parser", "glm47", program=STAND_IN).code == 0
    told = kt("run", "tiny", "--dry-run", more={"KT_SERVER_TOOL_PARSER": "nope"}, program=STAND_IN)
    assert told.code == 2 and "nope" in told.err


def test_families() -> None:
    before.check(PLAN)
    with pytest.raises(Unsupported) as caught:
        before.check(replace(PLAN, spec=replace(SPEC, family="no_such_family")))
    assert caught.value.exit_code == 7 and "no_such_family" in str(caught.value) and "pip install" in str(caught.value)
    with pytest.raises(UsageError):
        before.check(replace(PLAN, server=ServerSettings(reasoning_parser="nope")))


@pytest.mark.parametrize("tables", [None, "missing"])
def test_families_are_not_judged_without_the_tables(monkeypatch: pytest.MonkeyPatch, tables: str | None) -> None:
    monkeypatch.setattr(before, "find_spec", lambda name: None)
    if tables:
        monkeypatch.setattr(before, "_TABLES", ("nothing.py",))
    before.check(replace(PLAN, spec=replace(SPEC, family="no_such_family")))


def test_a_wrong_rule_file_in_the_servers_words(kt: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("- match: {nam: x}\n")
    done = kt("run", "tiny", "--dry-run", "--rules", "bad.yaml", program=STAND_IN)
    assert done.code == 5 and "bad.yaml:1" in done.err and done.out == ""
    told = kt("run", "tiny", "--dry-run", "--rules", "bad.yaml", "--json", program=STAND_IN)
    assert told.code == 5 and "'match' needs" in told.json["error"]["why"]


def test_a_check_that_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch, say: the last words of its process."""
    monkeypatch.setattr(before, "_CHECK_RULES", ["python3", "-c", "import no_such_module"])
    with pytest.raises(KTError, match="No module named 'no_such_module'") as caught:
        before.check_rules("my.yaml")
    assert caught.value.exit_code == 1
    event = json.dumps({"event": "error", "what": "W.", "why": "Y.", "next": "N.", "exit_code": 5})
    monkeypatch.setattr(before, "_CHECK_RULES", ["python3", "-c", f"print('noise'); print({event!r}); exit(5)"])
    with pytest.raises(RemoteError) as remote:
        before.check_rules("my.yaml")
    assert remote.value.exit_code == 5 and remote.value.lines() == ("W.", "Y.", "N.")


def test_flags_about_gpus_are_told_to_be_idle(kt: Run) -> None:
    done = kt("run", "tiny", "--dry-run", "--kt-num-gpu-experts", "2", "--kt-cpuinfer", "3", program=STAND_IN)
    assert done.code == 0 and "for the CPU alone: --kt-num-gpu-experts." in done.err
    assert "Warning" not in kt("run", "tiny", "--dry-run", "--kt-cpuinfer", "3", program=STAND_IN).err


def test_what_the_api_calls_the_model(kt: Run) -> None:
    done = kt("run", "tiny", "-p", "Where?", "--served-model-name", "mine", program=STAND_IN)
    assert done.code == 0
