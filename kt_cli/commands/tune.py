"""`kt tune`: a short measured search for the settings that make a model fastest on this machine."""

import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from kt_cli import launch, output
from kt_cli.help import Command, new_app
from kt_core.bench import serving, tuned
from kt_core.bench.serving import Case, requests
from kt_core.bench.serving.search import Rates, Repeat, Settings, Trial, best, score, search
from kt_core.bench.serving.workload import Length
from kt_core.errors import DoesNotFit, UsageError
from kt_core.machine import default_threads, probe
from kt_core.messages import t
from kt_core.types import Machine, ModelFiles, Plan

app = new_app("tune.help")
# What a trial asks: one long prompt, one long answer, and as many answers at a time as the widest setting runs.
PROMPT = 512
ANSWER = 48
TOGETHER = 16
CONFIRMED = 1.02  # the gain that every repeat must show; below it runs differ by themselves
REPEATS = 2  # of the default and the winner in turn
FIGURES = ("prefill", "decode", "together")  # of a trial, tokens a second
COLUMNS = (
    "tune.column_settings",
    "bench.column_prefill",
    "bench.column_decode",
    "bench.column_all",
    "tune.column_score",
)
SEQUENCES = (4, 8, 16, 32)
DEFERRED = (1, 2)  # experts of a token that a layer leaves to the next one
CHUNKS = (128, 256, 512, 1024)  # tokens of a step at most; the plan takes as many as are cheapest for a prompt alone


@app.command(cls=Command, help="tune.help", epilog="tune.examples")
def tune(
    name: Annotated[str, typer.Argument(help="run.name", metavar="NAME")],
    repeats: Annotated[int, typer.Option("--repeats", help="tune.repeats", metavar="COUNT", min=1)] = 2,
    deferral: Annotated[bool, typer.Option("--deferral", help="tune.deferral")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="tune.forget")] = False,
) -> None:
    machine, files = probe(), launch.files_of(name)
    if forget:
        known = tuned.forget(machine, files)
        output.result(
            {"model": files.name, "forgotten": known},
            lambda: t("tune.forgotten" if known else "tune.unknown", name=files.name),
        )
        return
    with output.progress() as report:
        trials = _search(machine, files, repeats, deferral, report)
        again = _measured_again(files, best(trials), repeats, report)
    gain = _gain(again)
    settings = best(trials).settings if gain > 1 else {}
    found = tuned.Tuned(settings, gain, time.time(), list(map(asdict, trials)), list(map(asdict, again)))
    path = tuned.keep(machine, files, found)
    output.result(
        {"model": files.name, **asdict(found), "path": str(path)}, lambda: _text(files, trials, again, settings, gain)
    )


def knobs(machine: Machine, plan: Plan | None = None, deferral: bool = False) -> dict[str, list[Any]]:
    """The settings that are tried: threads from half of the usual number to all CPUs, tokens of a step, sequences at a time.

    What else the plan without settings has to choose from comes after: pools on several NUMA nodes; on a GPU experts, whose
    room the cache could have, and from which length on prompts stream experts. With `deferral` experts left to the next layer,
    which changes answers.
    """
    usual = default_threads(machine)[0]
    threads = {max(1, usual // 2), max(1, usual - 1), usual + 1, machine.physical_cores, len(machine.allowed_cpus)}
    allowed = len(machine.allowed_cpus) or usual
    found = {
        "threads": sorted(count for count in threads if 0 < count <= allowed and count != usual),
        "chunk": list(CHUNKS),
        "max_running": list(SEQUENCES),
    }
    if plan is None:
        return found
    nodes = sum(1 for node in machine.numa_nodes.values() if set(node.cpus) & set(machine.allowed_cpus))
    if nodes > 1:
        found["pools"] = sorted({1, nodes} - {len(plan.get("pools", [None]))})
    if plan.get("devices", []):
        experts, threshold = plan.get("gpu_experts", 0), plan.get("prefill_threshold", 0)
        found["gpu_experts"] = sorted({experts // 2, experts * 3 // 4} - {experts})
        found["prefill_threshold"] = [threshold // 2, threshold * 2] if threshold > 1 else []
        found["deferred"] = list(DEFERRED) if deferral else []
    return {name: values for name, values in found.items() if values}


def _search(machine: Machine, files: ModelFiles, repeats: int, deferral: bool, report: Any) -> list[Trial]:
    tried = knobs(machine, launch.make_plan(files, {}, use_tuned=False), deferral)
    total = 1 + sum(map(len, tried.values()))
    done = 0

    def measure(settings: Settings) -> Rates | None:
        nonlocal done
        report(t("tune.stage"), min(done, total), total, "")
        done += 1
        return _rates(files, settings, repeats)

    return search(tried, measure)


def _measured_again(files: ModelFiles, winner: Trial, repeats: int, report: Any) -> list[Repeat]:
    """The default and the winner in turn, REPEATS times; none where the default won, and fewer where the settings fit no more."""
    found: list[Repeat] = []
    for number in range(REPEATS if winner.settings else 0):
        report(t("tune.stage_again"), number, REPEATS, "")
        base, rates = _rates(files, {}, repeats), _rates(files, winner.settings, repeats)
        if base and rates:
            found.append(Repeat(base, rates, round(score(rates, base), 4)))
    return found


def _gain(again: list[Repeat]) -> float:
    """The least that a repeat shows; 1.0 where that is none."""
    least = min((repeat.gain for repeat in again), default=1.0)
    return least if least >= CONFIRMED else 1.0


def _rates(files: ModelFiles, settings: Settings, repeats: int) -> Rates | None:
    """A server with these settings, asked for all that counts. None where the settings do not fit, or not together."""
    try:
        plan = launch.make_plan(files, settings, use_tuned=False)
    except (DoesNotFit, UsageError):
        return None
    plan = launch.with_server(plan, None, None)
    room = int(plan.value("context"))
    prompt = min(PROMPT, room // 2)
    answer = min(ANSWER, room // 4)
    alone = Case(Length(prompt, prompt), Length(answer, answer), 1, 0, repeats)
    together = Case(Length(prompt // 8 or 1, prompt // 8 or 1), Length(answer, answer), TOGETHER, 0, 1)
    with launch.serving(plan) as child:
        url = launch.wait_ready(child, launch.events(child))
        server = requests.Server(url, plan.server.served_name, next(iter(plan.server.api_keys), ""))
        server.warm_up()
        one, many = (serving.summary(case, server.run(case, lambda done: None)) for case in (alone, together))
    return dict(zip(FIGURES, (one.prefill_rate, one.decode_rate, many.output_rate), strict=True))


def _text(files: ModelFiles, trials: list[Trial], again: list[Repeat], settings: Settings, gain: float) -> str:
    """The search, then what was measured again, which decides."""
    parts = [t("tune.searched"), _table([(_words(trial.settings), trial.rates, trial.score) for trial in trials])]
    if again:
        winner = _words(best(trials).settings)
        rows: list[tuple[str, Rates, float]] = []
        for repeat in again:
            rows += [(t("tune.plans_own"), repeat.default, 1.0), (winner, repeat.fastest, repeat.gain)]
        parts += ["", t("tune.again"), _table(rows)]
    if settings:
        verdict = t("tune.found", settings=_words(settings), gain=f"{gain:.2f}", name=files.name)
    else:
        verdict = t("tune.not_confirmed" if again else "tune.default", name=files.name)
    return "\n".join([*parts, "", verdict])


def _table(rows: list[tuple[str, Rates, float]]) -> str:
    cells = [
        [name, *(f"{rates.get(figure, 0):.1f}" for figure in FIGURES), f"{gain:.2f}"] for name, rates, gain in rows
    ]
    return output.table(cells, [t(key) for key in COLUMNS])


def _words(settings: Settings) -> str:
    return output.listed(f"{name}={value}" for name, value in settings.items()) or t("tune.plans_own")
