"""How a plan looks to a person: its decisions, and the memory and speed that follow from them."""

from dataclasses import asdict
from typing import Any

from kt_cli import names, output
from kt_core.messages import t
from kt_core.types import Decision, Plan

PARTS = {
    "experts": "gpus.memory_experts",
    "layer": "gpus.memory_layer",
    "weights": "run.memory_weights",
    "runtime": "run.memory_runtime",
    "templates": "run.memory_templates",
    "rows": "run.memory_rows",
    "adapters": "run.memory_adapters",
    "prefixes": "run.memory_prefixes",
    "cache": "run.memory_cache",
}
SOURCES = {
    "user": "run.from_user",
    "config": "run.from_config",
    "tuned": "tune.from_tuning",
    "machine": "run.from_machine",
    "model": "run.from_model",
    "default": "run.from_default",
}
BYTES = ("cache", "prefix_host", "prefix_disk")  # decisions that are sizes
SPEEDS = {"decode_tokens_per_second": "run.predicted_decode", "prefill_tokens_per_second": "run.predicted_prefill"}


def decisions(plan: Plan) -> str:
    rows = [(names.of("decision", d.name), shown(d), t(SOURCES[d.source]), d.reason) for d in plan.decisions]
    header = (t("run.column_decision"), t("run.column_value"), t("run.column_from"), t("run.column_reason"))
    return output.table(rows, header)


def figures(plan: Plan) -> str:
    """Memory by device and part, and tokens a second."""
    rows: list[tuple[str, ...]] = []
    for device, parts in {"cpu": plan.memory_parts, **plan.gpu_parts}.items():
        rows.append(("" if rows else t("run.memory_needed"), device, f"~{output.size(plan.device_bytes[device])}"))
        rows += [("", t(PARTS[name]), f"~{output.size(count)}") for name, count in parts.items()]
    speeds = [
        (t(SPEEDS[name]), t("run.tokens_per_second", rate=f"{rate:.3g}")) for name, rate in plan.predicted.items()
    ]
    rows += [("" if number else t("run.predicted"), *speed) for number, speed in enumerate(speeds)]
    return output.table(rows)


def shown(decision: Decision) -> str:
    """A decision's value; a size with its unit, and what may be none at all as that."""
    if decision.name == "vram_budget":
        return output.listed(map(output.size, decision.value))
    if decision.name == "prefill_threshold" and not decision.value:
        return t("gpus.off")
    return output.size(decision.value) if decision.name in BYTES and decision.value else value(decision.value)


def value(chosen: Any) -> str:
    if isinstance(chosen, list | tuple):
        return (output.listed if any(isinstance(item, dict) for item in chosen) else ",".join)(map(value, chosen))
    if isinstance(chosen, dict):  # a pool of threads
        return t("run.pool" if chosen["node"] is None else "run.pool_node", **chosen)
    return t("run.auto") if chosen is None else str(chosen)


def document(made: Plan) -> list[dict[str, Any]]:
    """The decisions as data, each with the flag of KTransformers or SGLang that it is called after, if there is one."""
    from kt_core.flags import OF_DECISION

    return [asdict(decision) | {"flag": OF_DECISION.get(decision.name)} for decision in made.decisions]
