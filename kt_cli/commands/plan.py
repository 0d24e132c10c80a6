"""`kt plan`: what a model would take and how fast it would be, on this machine or another, before any download."""

import sys
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from kt_cli import launch, model_show, output, planned
from kt_cli.help import Command, new_app
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


@app.command(cls=Command, help="plan.help", epilog="plan.examples")
def plan(
    name: Annotated[str, typer.Argument(help="model.any_name", metavar="NAME")],
    simulate: Annotated[str | None, typer.Option("--simulate", help="plan.simulate", metavar="PARTS")] = None,
    context: Annotated[int | None, typer.Option("--context", help="run.context", metavar="TOKENS", min=1)] = None,
    hub: Annotated[bool, typer.Option("--hub", help="model.hub")] = False,
) -> None:
    place = _place(simulate)
    model = model_show.look(name, hub)
    about = _about(place, model)
    try:
        made = _plan(place, model, {"context": context})
    except DoesNotFit as failure:
        if not output.is_json():
            raise
        output.document({**about, "fits": False, "error": output.error_data(failure)})
        raise typer.Exit(failure.exit_code) from None
    reason = _basis(place, made)
    memory = {
        device: {"needed": needed, "available": place.machine.memory_available, "parts": made.memory_parts}
        for device, needed in made.device_bytes.items()
    }
    data = {
        **about,
        "fits": True,
        "decisions": made.decisions,
        "memory": memory,
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


def _plan(place: Place, model: Found, options: dict[str, Any]) -> Plan:
    """Raises DoesNotFit, by memory first, and what make_plan raises. Settings hold for this machine alone."""
    from kt_core.plan import fit, make_plan

    wishes, settings = launch.wished(options)
    if place.other:
        wishes, settings = options, set()
    fit.check(place.machine, model.name, model.spec, wishes.get("context"), wishes.get("kv_dtype"), _others(model))
    download = _download(place, model)
    if place.disk:
        fit.check_disk(model.name, download, place.disk)
    prefixes = max(0, place.prefixes - download)
    return launch.marked(make_plan(place.machine, model.files, model.spec, wishes, place.profile, prefixes), settings)


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


def _about(place: Place, model: Found) -> dict[str, Any]:
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
        "notes": _notes(machine),
    }


def _notes(machine: Machine) -> list[str]:
    gpus = output.listed(dict.fromkeys(gpu.name for gpu in machine.gpus))
    return [t("plan.no_gpu_yet", gpus=gpus)] if gpus else []


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
    lines = [*_notes(machine), t("plan.speed_basis", reason=reason), t("plan.model_from", source=source)]
    if download := _download(place, model):
        lines.append(t("plan.download_size", size=output.size(download), free=output.size(place.disk)))
    tables = ["", planned.decisions(made), "", planned.figures(made), ""]
    return "\n".join([_folded(title), *tables, *map(_folded, lines)])


def _folded(line: str) -> str:
    return output.folded(line, sys.stdout)
