"""`kt plan`: what a model would take and how fast it would be, on this machine or another, before any download."""

import sys
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from kt_cli import flags, launch, model_show, output, planned
from kt_cli.flags import Launching
from kt_cli.help import new_app
from kt_cli.model_show import Found
from kt_core import paths
from kt_core.errors import DoesNotFit
from kt_core.messages import t
from kt_core.types import Machine, MachineProfile, ModelSpec, Plan

app = new_app("plan.help")


@dataclass(frozen=True)
class Place:
    """Where the model would run. `disk` are free bytes for models, `prefixes` for prefixes; 0: not known."""

    machine: Machine
    profile: MachineProfile | None
    disk: int
    prefixes: int
    other: bool  # not all of it is this machine


@app.command(cls=Launching, help="plan.help", epilog="plan.examples")
def plan(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="model.any_name", metavar="NAME")],
    simulate: Annotated[str | None, typer.Option("--simulate", help="plan.simulate", metavar="PARTS")] = None,
    context: Annotated[int | None, typer.Option("--context", help="run.context", metavar="TOKENS", min=1)] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="run.threads", metavar="COUNT", min=1)] = None,
    max_running: Annotated[
        int | None, typer.Option("--max-running", help="run.max_running", metavar="COUNT", min=1)
    ] = None,
    kv_dtype: Annotated[str | None, typer.Option("--kv-dtype", help="run.kv_dtype", metavar="TYPE")] = None,
    pasted: Annotated[str | None, typer.Option("--from", help="flags.from_help", metavar="COMMAND")] = None,
    hub: Annotated[bool, typer.Option("--hub", help="model.hub")] = False,
) -> None:
    wishes = flags.wishes(ctx)
    wishes.pop("served_name", None)
    wishes |= {"context": context, "threads": threads, "max_running": max_running, "kv_dtype": kv_dtype}
    place = _place(simulate)
    model = model_show.look(name, hub)
    about = _about(place, model, flags.notes(ctx))
    try:
        made = _plan(place, model, wishes)
    except DoesNotFit as failure:
        if not output.is_json():
            raise
        output.document({**about, "fits": False, "error": output.error_data(failure)})
        raise typer.Exit(failure.exit_code) from None
    reason = _basis(place, made)
    data = {
        **about,
        "notes": [*_notes(place), *flags.notes(ctx)],
        "fits": True,
        "decisions": planned.document(made),
        "memory": _memory(place, made),
        "predicted": {**made.predicted, "reason": reason},
    }
    output.result(
        data, lambda: _shown(place, model, made, reason), names=[planned.value(d.value) for d in made.decisions]
    )


def _place(simulated: str | None) -> Place:
    """This machine, with the parts that `simulated` names in place of its own. Raises UsageError."""
    from kt_core.machine import hardware, probe
    from kt_core.machine.folder import free_bytes
    from kt_core.machine.simulate import simulate
    from kt_core.models import store

    here = probe()
    disk, prefixes = free_bytes(store.models_dir()), free_bytes(paths.cache_dir())
    if simulated is None:
        return Place(here, hardware.expected(here), disk, prefixes, other=False)
    made = simulate(simulated, here)
    profile = made.profile or hardware.expected(here)
    return Place(made.machine, profile, made.disk or disk, made.disk or prefixes, other=True)


def _memory(place: Place, made: Plan) -> dict[str, Any]:
    """Of each device: what is needed, what there is for kt, and the parts of the need; of the CPU also the most that loading
    takes, before a step's rows and the cache are touched, and the weights in each NUMA node's memory."""
    from kt_core.plan import memory

    parts = {"cpu": made.memory_parts, **made.gpu_parts}
    budgets = made.value("vram_budget") if made.gpu_parts else []
    there = dict(zip(made.value("devices"), budgets, strict=True)) | {"cpu": place.machine.memory_available}
    found: dict[str, Any] = {
        device: {"needed": needed, "available": there[device], "parts": parts[device]}
        for device, needed in made.device_bytes.items()
    }
    later = sum(made.memory_parts.get(part, 0) for part in ("rows", "cache"))
    nodes = memory.by_node(made.value("pools"), made.memory_parts["weights"])
    found["cpu"] |= {"load_peak": made.device_bytes["cpu"] - later, "nodes": nodes}
    return found


def _plan(place: Place, model: Found, options: dict[str, Any]) -> Plan:
    """Raises DoesNotFit, by memory first, and what make_plan raises. Settings hold for this machine alone."""
    from kt_core.plan import devices, fit, make_plan
    from kt_core.plan.abilities import THIS

    wishes, settings = (options, set[str]()) if place.other else launch.wished(options)
    asked = (wishes.get("context"), wishes.get("kv_dtype"), _others(model))
    alone = not devices.candidates(place.machine, wishes, THIS)[0]
    if alone:
        fit.check(place.machine, model.name, model.spec, *asked)
    download = _download(place, model)
    if place.disk:
        fit.check_disk(model.name, download, place.disk)
    prefixes = max(0, place.prefixes - download)

    def plan_for(spec: ModelSpec) -> Plan:
        return make_plan(place.machine, model.files, spec, wishes, place.profile, prefixes)

    try:
        made = plan_for(model.spec)
    except DoesNotFit as failure:
        if not alone and failure.key.startswith("plan."):  # no GPU could take a part: what would fit the CPU alone
            fit.check(place.machine, model.name, model.spec, *asked)
        if failure.key == "gpus.ram" and (names := fit.that_fit(_others(model), plan_for)):
            raise DoesNotFit("gpus.ram_others", **failure.args_, names=", ".join(names)) from None
        raise
    return launch.marked(made, settings)


def _others(model: Found) -> dict[str, ModelSpec]:
    """The model's other repositories whose shapes are known."""
    from kt_core.models import catalogue

    if model.known is None:
        return {}
    specs = {repo: catalogue.spec(replace(model.known, form=form)) for form, repo in model.known.repos.items()}
    return {repo: spec for repo, spec in specs.items() if spec and spec.formats != model.spec.formats}


def _download(place: Place, model: Found) -> int:
    """Bytes that the disk must still take."""
    here = model.source == model_show.FILES and not place.other
    return 0 if here else sum(model.spec.bytes_by_part.values())


def _about(place: Place, model: Found, notes: list[str]) -> dict[str, Any]:
    machine = place.machine
    return {
        "model": {"name": model.name, "source": model.source, "path": model.path},
        "machine": {
            "cpu": machine.cpu_model,
            "sockets": machine.sockets,
            "cores": machine.physical_cores,
            "memory": machine.memory_total,
            "gpus": [gpu.name for gpu in machine.gpus],
            "simulated": place.other,
        },
        "disk": {"download": _download(place, model), "free": place.disk},
        "notes": [*_notes(place), *notes],
    }


def _notes(place: Place) -> list[str]:
    """What this version does not do with the GPUs of such a machine."""
    from kt_core.plan.abilities import THIS

    idle = [gpu.name for gpu in place.machine.gpus if gpu.kind not in THIS.kinds]
    return [t("plan.no_gpu_yet", gpus=output.listed(dict.fromkeys(idle)))] if idle else []


def _basis(place: Place, made: Plan) -> str:
    """What the predicted speed rests on, or why there is none."""
    if place.profile is None:
        return t("plan.speed_unknown")
    if not made.predicted:
        return t("plan.speed_scalar", architecture=place.machine.architecture)
    if place.profile.measured:
        return t("plan.speed_measured")
    rate = max(place.profile.read_rates.values()) / 1e9
    return t("plan.speed_expected", cpu=place.machine.cpu_model, rate=f"{rate:.0f}")


def _shown(place: Place, model: Found, made: Plan, reason: str) -> str:
    machine = place.machine
    cpu = machine.cpu_model if machine.sockets == 1 else f"{machine.sockets} x {machine.cpu_model}"
    title = t("plan.title", name=model.name, cpu=cpu, memory=output.size(machine.memory_total))
    source = t(model_show.SOURCES[model.source], path=model.path or "")
    lines = [
        *_notes(place),
        t("plan.speed_basis", reason=reason),
        t("plan.model_from", source=source),
    ]
    if download := _download(place, model):
        lines.append(t("plan.download_size", size=output.size(download), free=output.size(place.disk)))
    tables = ["", planned.decisions(made), "", planned.figures(made), ""]
    return "\n".join([_folded(title), *tables, *map(_folded, lines)])


def _folded(line: str) -> str:
    return output.folded(line, sys.stdout)
