"""Modules that a rule would replace and that stay transformers' own: what they cost, and whether that fits."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from kt_core.errors import DoesNotFit
from kt_core.inject import Decision
from kt_core.machine import probe
from kt_core.messages import t
from kt_core.plan import memory
from kt_core.types import Plan
from kt_core.weights import Weights

log = logging.getLogger(__name__)

WORTH_SAYING = 0.01  # of the model's weights: a router of a few MiB slows nothing down
_GIB = 2**30


@dataclass(frozen=True)
class Kept:
    """The modules kept, by path, with the reason; their bytes in the checkpoint and decoded to float32."""

    reasons: dict[str, str]
    stored: int
    decoded: int


def kept(model: nn.Module, decisions: Mapping[str, Decision], weights: Weights) -> Kept:
    """What `decisions` keep against a rule. `model` is still as transformers made it, on the meta device."""
    reasons = {key: decision.unfit for key, decision in decisions.items() if decision.unfit}
    stored = decoded = 0
    for key in reasons:
        for name, parameter in model.get_submodule(key).named_parameters(prefix=key):
            if name in weights:
                stored += weights.nbytes(name)
                decoded += 4 * parameter.numel()
    return Kept(reasons, stored, decoded)


def report(found: Kept, weight_bytes: int) -> None:
    """Every module and its reason into the log; a warning when the modules are more than a small part of the model."""
    for key, reason in found.reasons.items():
        log.info("kept as transformers' own: %s: %s", key, reason)
    if found.decoded > WORTH_SAYING * weight_bytes:
        key, reason = next(iter(found.reasons.items()))
        log.warning(
            "%s",
            t(
                "inject.kept",
                count=len(found.reasons),
                module=key,
                reason=reason,
                more=_gib(found.decoded - found.stored),
            ),
        )


def fitting_context(plan: Plan, found: Kept) -> int:
    """The plan's context, or the longest below it that leaves room for the decoded weights, with a warning.

    Raises DoesNotFit when the user chose the context or none fits; the decision "force" goes on all the same.
    """
    context = int(plan.value("context"))
    extra, machine = found.decoded - found.stored, probe()
    forced = any(decision.name == "force" for decision in plan.decisions)
    if extra <= 0 or forced or not machine.memory_total:
        return context
    available = machine.memory_available + memory.RUNTIME_BYTES  # this process has its libraries already
    dtype = plan.value("kv_dtype")
    fits = memory.largest_context(plan.spec, available - extra, dtype)
    if fits >= context:
        return context
    source = next(decision.source for decision in plan.decisions if decision.name == "context")
    numbers = {
        "name": plan.model.name,
        "needed": _gib(memory.predicted_bytes(plan.spec, context, dtype) + extra),
        "more": _gib(extra),
        "available": _gib(available),
    }
    if fits < 1:
        raise DoesNotFit("inject.kept_too_big", **numbers)
    if source in ("user", "config"):
        raise DoesNotFit("inject.kept_context", context=context, fits=fits, **numbers)
    log.warning("%s", t("inject.context_reduced", context=context, fits=fits, **numbers))
    return fits


def _gib(count: int) -> str:
    return f"{max(0, count) / _GIB:.2f} GiB"
