"""Whether a model fits, asked before anything is downloaded; where it does not, what is short and what would fit."""

from collections.abc import Callable, Mapping

from kt_core.errors import DoesNotFit, KTError
from kt_core.machine import memory_decision
from kt_core.machine.simulate import KEPT_SHARE
from kt_core.messages import language, t
from kt_core.plan import memory
from kt_core.plan.cache import usual_kv_dtype
from kt_core.types import Machine, ModelSpec, Plan

_GIB = 2**30


def check(
    machine: Machine,
    name: str,
    spec: ModelSpec,
    context: int | None,
    dtype: str | None,
    others: Mapping[str, ModelSpec],
) -> None:
    """Raises DoesNotFit where memory is too small for `context` tokens (None: for any conversation at all), or the model
    was not trained for as many. `others`: repositories of the same model in other formats."""
    dtype = dtype if dtype in memory.KV_DTYPES else usual_kv_dtype(spec.formats)
    if context is not None and context > spec.context:
        raise DoesNotFit("plan.fit_untrained", name=name, context=context, trained=spec.context)
    needed, have = least_bytes(spec, context, dtype), machine.memory_available
    if machine.memory_total <= 0 or needed <= have:
        return
    raise DoesNotFit(
        "plan.fit_memory",
        name=name,
        short=_gib(needed - have),
        needed=_gib(needed),
        weights=_gib(memory.weight_bytes(spec)),
        available=_gib(have),
        limit=memory_decision(machine).reason,
        nearest=(" " if language() == "en" else "").join(_nearest(machine, spec, context, dtype, others)),
    )


def that_fit(others: Mapping[str, ModelSpec], plan: Callable[[ModelSpec], Plan]) -> list[str]:
    """The repositories of a model for which `plan` is made and not refused."""
    found = []
    for repo, spec in others.items():
        try:
            plan(spec)
        except KTError:
            continue
        found.append(repo)
    return found


def check_disk(name: str, needed: int, free: int) -> None:
    """Raises DoesNotFit for a download of `needed` bytes where `free` are."""
    if needed > free:
        raise DoesNotFit("plan.fit_disk", name=name, needed=_gib(needed), free=_gib(free), short=_gib(needed - free))


def least_bytes(spec: ModelSpec, context: int | None, dtype: str) -> int:
    """Memory with one conversation of `context` tokens, or of a page."""
    return memory.predicted_bytes(spec, memory.PAGE if context is None else context, dtype)


def _nearest(
    machine: Machine, spec: ModelSpec, context: int | None, dtype: str, others: Mapping[str, ModelSpec]
) -> list[str]:
    """What would fit, in words: a shorter conversation, the formats that do, and how much memory is enough."""
    have = machine.memory_available
    found = []
    shorter = memory.largest_context(spec, have, dtype)
    if context is not None and shorter:
        found.append(t("plan.nearest_context", context=shorter))
    smaller = [
        repo for repo, other in others.items() if least_bytes(other, context, usual_kv_dtype(other.formats)) <= have
    ]
    if smaller:
        found.append(t("plan.nearest_form", names=", ".join(smaller)))
    else:
        found.append(t("plan.nearest_no_form" if others else "plan.nearest_smaller"))
    needed = least_bytes(spec, context, dtype)
    # The system and other programs keep what they keep here, and more on a larger machine
    enough = max(needed + machine.memory_total - have, int(needed / (1 - KEPT_SHARE)))
    found.append(t("plan.nearest_memory", size=f"{-(-enough // _GIB)} GiB"))
    return found


def _gib(count: int) -> str:
    return f"{count / _GIB:.2f} GiB"
