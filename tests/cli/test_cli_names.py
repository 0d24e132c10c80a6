"""Under zh no row of a plan, of kt doctor or of kt model show goes by an English name; sizes have units."""

import pytest

from kt_cli import checks, names, planned
from kt_cli.main import run
from kt_core import messages
from kt_core.models import catalogue
from kt_core.types import Decision, ModelFiles, Plan, ServerSettings


def test_of() -> None:
    assert names.of("decision", "context") == "context" and names.of("check", "numpy") == "numpy"
    messages.set_language("zh")
    assert names.of("decision", "context") == "上下文" and names.of("check", "numpy") == "numpy"


def test_every_part_and_cache_has_a_name() -> None:
    specs = [spec for known in catalogue.builtin().values() if (spec := catalogue.spec(known))]
    parts = {part for spec in specs for part in spec.parameters_by_part}
    kinds = {part.kind for spec in specs for part in spec.cache}
    room = messages.room("names")
    assert len(parts) > 5 and len(kinds) > 3
    assert {f"names.part_{part}" for part in parts} | {f"names.cache_{kind}" for kind in kinds} <= set(room)


def test_every_decision_and_check_has_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    assert run(["plan", "r1", "--simulate", "cpu=9654:2,ram=2TiB,disk=9TiB", "--json"]) == 0
    decisions = json.loads(capsys.readouterr().out)["decisions"]
    shown = [*checks.python_version(), *checks.settings(), *checks.folders(), *checks.running_servers()]
    keys = {f"names.decision_{d['name']}" for d in decisions} | {f"names.check_{check.name}" for check in shown}
    assert len(keys) > 12 and keys <= set(messages.room("names"))


def test_sizes_have_units() -> None:
    spec = next(spec for known in catalogue.builtin().values() if (spec := catalogue.spec(known)))
    decisions = (Decision("cache", 3 * 2**29, "room", "machine"), Decision("prefix_disk", 0, "off", "user"))
    files = ModelFiles("m", "/m", "gguf", ())
    text = planned.decisions(Plan(files, spec, decisions, {}, ServerSettings()))
    assert "1.50 GiB" in text and str(3 * 2**29) not in text
