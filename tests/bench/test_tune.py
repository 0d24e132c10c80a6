"""`kt tune`: the search against all combinations, what is kept, and plans that use it."""

import itertools
import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kt_cli import launch, output
from kt_cli.commands import tune
from kt_cli.main import main
from kt_core.bench import tuned
from kt_core.bench.serving.search import Repeat, Settings, Trial, best, search
from kt_core.errors import DoesNotFit
from kt_core.machine import probe
from kt_core.types import Decision, ModelFiles, ModelSpec, Node, Plan, ServerSettings


@pytest.fixture(autouse=True)
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("STATE", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    monkeypatch.setenv("KT_LANG", "en")


KNOBS = {"threads": [1, 2, 4, 8], "chunk": [128, 256, 512, 1024], "batch": [4, 8, 16, 32]}


@pytest.mark.parametrize("seed", range(30))
def test_the_search_finds_nearly_the_best_of_all_combinations(seed: int) -> None:
    """Surfaces as machines have them: each knob has one best value, and two of them meet a little."""
    chance = random.Random(seed)
    tops = {name: chance.choice(values) for name, values in KNOBS.items()}
    tilt = chance.uniform(-0.03, 0.03)

    def speed(settings: Settings) -> dict[str, float]:
        value = 100.0
        steps = []
        for name, values in KNOBS.items():
            place = values.index(settings.get(name, values[0])) - values.index(tops[name])
            value *= 0.8 ** abs(place)
            steps.append(place)
        return {"decode": value * (1 + tilt * steps[0] * steps[2]), "prefill": value}

    trials = search(KNOBS, lambda settings: speed(settings))
    found = speed(best(trials).settings)
    everything = [dict(zip(KNOBS, values, strict=True)) for values in itertools.product(*KNOBS.values())]
    most = max(min(speed(s)["decode"], speed(s)["prefill"]) for s in everything)
    assert min(found.values()) >= 0.95 * most
    assert len(trials) < len(everything) / 2


def test_the_knobs_are_those_of_the_plan() -> None:
    """Threads, tokens of a step, sequences; none of them the plan's own choice."""
    from kt_core.machine import default_threads
    from kt_core.plan import OVERRIDES

    knobs = tune.knobs(probe())
    assert list(knobs) == ["threads", "chunk", "max_running"] and set(knobs) <= set(OVERRIDES)
    assert default_threads(probe())[0] not in knobs["threads"]


def chosen(**values: Any) -> Plan:
    spec = ModelSpec("glm4_moe", 2, 8, 32, 64, 4, 2, 1000, {"experts": 1, "other": 1}, 16, {"F32": 2})
    decisions = tuple(Decision(name, value, "", "machine") for name, value in values.items())
    return Plan(ModelFiles("tiny", "", "gguf", ()), spec, decisions, {}, ServerSettings(served_name="tiny"))


def test_more_knobs_where_a_plan_has_more_to_choose() -> None:
    """Pools on two nodes; experts, streaming and, if asked for, deferral on a GPU; nothing that the plan has as it is."""
    from kt_core.plan import OVERRIDES

    alone = probe()
    node = Node(tuple(alone.allowed_cpus))
    two = replace(alone, numa_nodes={0: node, 1: node})
    plan = chosen(pools=[1, 2], devices=["cuda:0"], gpu_experts=64, prefill_threshold=800, deferred=0)
    more = {name: values for name, values in tune.knobs(two, plan).items() if name not in tune.knobs(two)}
    assert more == {"pools": [1], "gpu_experts": [32, 48], "prefill_threshold": [400, 1600]}
    found = tune.knobs(two, plan, deferral=True)
    assert found["deferred"] == [1, 2] and set(found) <= set(OVERRIDES)
    nothing = chosen(pools=[1], devices=["cuda:0"], gpu_experts=0, prefill_threshold=None)
    assert tune.knobs(replace(alone, numa_nodes={0: node}), nothing) == tune.knobs(alone)
    assert list(tune.knobs(two, chosen(pools=[1, 2], devices=[]))) == [*tune.knobs(two), "pools"]


def test_what_does_not_fit_is_no_winner() -> None:
    trials = search({"batch": [8, 64]}, lambda s: None if s.get("batch") == 64 else {"all": 1.0 + s.get("batch", 0)})
    assert best(trials).settings == {"batch": 8}
    assert [trial.score for trial in trials][-1] == 0
    with pytest.raises(ValueError, match="default"):
        search({}, lambda settings: None)


def test_of_equals_the_default_wins() -> None:
    assert best(search(KNOBS, lambda settings: {"all": 5.0})).settings == {}


@pytest.fixture
def model(tmp_path: Path) -> ModelFiles:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return ModelFiles("tiny", str(path), "gguf", (str(path),))


def test_kept_by_model_and_machine(model: ModelFiles) -> None:
    machine = probe()
    found = tuned.Tuned({"threads": 1}, 1.2, 5.0)
    assert tuned.find(machine, model) is None
    tuned.keep(machine, model, found)
    assert tuned.find(machine, model) == found
    assert tuned.find(replace(machine, cpu_model="another"), model) is None
    Path(model.path).write_bytes(b"other weights")
    assert tuned.find(machine, model) is None
    tuned.keep(machine, model, found)
    assert tuned.forget(machine, model) and not tuned.forget(machine, model)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 1, "fingerprint": {}, "models": []}'])
def test_a_damaged_file_is_no_knowledge(model: ModelFiles, text: str) -> None:
    tuned.path().parent.mkdir(parents=True, exist_ok=True)
    tuned.path().write_text(text)
    assert tuned.find(probe(), model) is None


def run(args: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    output.reset()
    with pytest.raises(SystemExit) as ended:
        main([*args, "--json"])
    assert ended.value.code in (0, None)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(("gain", "kept"), [(1.3, True), (1.001, False), (0.7, False)])
def test_the_command(
    gain: float, kept: bool, model: ModelFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gain that the second measurement does not show is none."""
    calls = []

    def rates(files: ModelFiles, settings: Settings, repeats: int) -> dict[str, float]:
        again = len(calls) > 1 and not settings and calls[-1] != {}  # the default anew: the confirmation
        calls.append(settings)
        confirming = again or any(not call for call in calls[1:])
        faster = (gain if confirming else 1.5) if settings.get("max_running") == 16 else 1.0
        return {"prefill": 100 * faster, "decode": 10 * faster, "together": 50 * faster}

    monkeypatch.setattr(launch, "files_of", lambda name, **_: model)
    monkeypatch.setattr(tune, "_rates", rates)
    monkeypatch.setattr(launch, "make_plan", lambda *_, **__: chosen(devices=[]))
    data = run(["tune", "tiny"], capsys)
    assert data["settings"] == ({"max_running": 16} if kept else {})
    assert data["gain"] == pytest.approx(gain if kept else 1.0)
    assert [(repeat["default"]["decode"], repeat["fastest"]["decode"]) for repeat in data["repeats"]] == [
        (10, pytest.approx(10 * gain))
    ] * tune.REPEATS
    found = tuned.find(probe(), model)
    assert found is not None and found.settings == data["settings"] and found.repeats == data["repeats"]


def test_the_report_shows_what_decided(model: ModelFiles) -> None:
    def rates(decode: float) -> dict[str, float]:
        return {"prefill": 100.0, "decode": decode, "together": 50.0}

    trials = [Trial({}, 1.0, rates(10.0)), Trial({"threads": 3}, 1.5, rates(33.3))]
    again = [Repeat(rates(10.1), rates(12.2), 1.21), Repeat(rates(10.3), rates(9.9), 0.99)]
    shown = tune._text(model, trials, again, {}, 1.0)
    for figure in ("33.3", "10.1", "12.2", "1.21", "10.3", "9.9", "0.99"):
        assert figure in shown
    assert shown.index("33.3") < shown.index("Measured again") < shown.index("12.2")
    assert shown.endswith("tiny keeps the plan's own.")
    kept = tune._text(model, trials, again[:1], {"threads": 3}, 1.21)
    assert kept.endswith("1.21 times as fast with threads=3. kt run takes these from now on.")
    assert "Measured again" not in tune._text(model, trials[:1], [], {}, 1.0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 1), (signal.SIGINT, 130)])
@pytest.mark.parametrize("moment", ["trial", "stop"])
def test_a_signal_ends_the_search_whatever_trial_runs(
    number: signal.Signals, code: int, moment: str, tmp_path: Path
) -> None:
    """After a first trial, whose server is gone: while a second one is measured, and while its server, which takes its time, ends."""
    deaf = "signal.signal(signal.SIGTERM, lambda *_: None)" if moment == "stop" else "pass"
    server = f"import signal, time; {deaf}; print('up', flush=True); time.sleep(60)"
    program = f"""
import sys, time
from kt_cli import launch
from kt_cli.commands import tune
from kt_core.types import ModelFiles
launch.files_of = lambda name, **_: ModelFiles("tiny", "/tiny.gguf", "gguf", ())
tune.knobs = lambda *_, **__: {{"threads": list(range(100))}}
launch.make_plan = lambda *_, **__: None
trials = []

def rates(files, settings, repeats):
    trials.append(settings)
    second = len(trials) > 1
    with launch.running([sys.executable, "-c", {server!r} if second else "pass"], "trial") as child:
        if second:
            while "up" not in child.log.read_text():
                time.sleep(0.02)
            print("ready", flush=True)
            time.sleep(60 if {moment == "trial"} else 0)
    print("next", flush=True)
    return {{"prefill": 1.0, "decode": 1.0, "together": 1.0}}

tune._rates = rates
from kt_cli.main import main
main(["tune", "tiny"])
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = [process.stdout.readline().strip() for _ in range(2)]
    time.sleep(0.3)
    process.send_signal(number)
    out, err = process.communicate(timeout=15)
    assert lines == ["next", "ready"] and process.returncode == code and "next" not in out, err
    assert not tuned.path().exists()


def test_plans_use_it_unless_the_user_chose(monkeypatch: pytest.MonkeyPatch, model: ModelFiles) -> None:
    from kt_core import models
    from kt_core import plan as planning

    seen: list[dict[str, Any]] = []

    def decide(machine: Any, files: Any, spec: Any, wishes: dict[str, Any], *rest: Any) -> Plan:
        seen.append(wishes)
        if wishes.get("max_running", 0) > 16:
            raise DoesNotFit("plan.download", name="tiny", needed="1", total="0")
        decisions = (Decision("max_running", wishes.get("max_running", 8), "own", "machine"),)
        return Plan(model, spec, decisions, {}, ServerSettings(served_name="tiny"))

    spec = ModelSpec("glm4_moe", 2, 8, 32, 64, 4, 2, 1000, {"experts": 1, "other": 1}, 16, {"F32": 2})
    monkeypatch.setattr(models, "read_spec", lambda files: spec)
    monkeypatch.setattr(planning, "make_plan", decide)
    tuned.keep(probe(), model, tuned.Tuned({"max_running": 16}, 1.25, 1.0))
    decision = launch.make_plan(model, {}).decisions[0]
    assert (decision.value, decision.source) == (16, "tuned")
    assert "1.25" in decision.reason
    assert launch.make_plan(model, {"max_running": 4}).decisions[0].value == 4
    assert launch.make_plan(model, {}, use_tuned=False).decisions[0].source == "machine"
    tuned.keep(probe(), model, tuned.Tuned({"max_running": 32}, 1.25, 1.0))
    assert launch.make_plan(model, {}).decisions[0].source == "machine"  # there is less memory now
