"""How many pages the planned bytes are, once the model says what a page of its takes."""

import logging
from typing import Any

import torch

from kt_core.engine.placing import WORK_BYTES, Placing
from kt_core.engine.runners import device_runner_for, runner_for
from kt_core.engine.runners.own import OwnCacheRunner
from kt_core.engine.step import Runner
from kt_core.errors import DoesNotFit
from kt_core.machine import probe
from kt_core.messages import t
from kt_core.plan import memory
from kt_core.types import Plan

log = logging.getLogger(__name__)

_GIB = 2**30
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "fp8_e4m3": torch.float8_e4m3fn}


def runner_and_pages(model: Any, plan: Plan, context: int, extra: int) -> tuple[Runner, int]:
    """The model's runner, and the pages of its cache; `extra` bytes of the planned cache are used by something else.

    Where a model takes more for a token than planned, the cache grows if memory is free for it. If not, the context is
    reduced with a warning. Raises DoesNotFit when the user chose the context.
    """
    runner = runner_for(model, context, _DTYPES[plan.value("kv_dtype")], plan.get("chunk", None))
    own = OwnCacheRunner(model, context)
    planned = int(plan.value("cache")) - max(extra, 0)
    if _needed(plan, own) < _needed(plan, runner) > planned:
        log.info(
            "keys and values in pages would take %s, so each sequence has its own cache", _gib(_needed(plan, runner))
        )
        runner = own
    needed = _needed(plan, runner)
    forced = any(decision.name == "force" for decision in plan.decisions)
    machine = probe()
    if needed > planned and (forced or not machine.memory_total or machine.memory_available >= needed):
        planned = needed
    if isinstance(runner, OwnCacheRunner):  # half of what one conversation leaves
        runner.state_bytes = max(0, planned - needed) // 2
        planned -= runner.state_bytes
        log.info("of the planned cache, %s are for states at borders of prompts", _gib(runner.state_bytes))
    pages = planned // _page_bytes(plan, runner)
    if needed > planned:
        _reduce(plan, runner, pages * runner.page, planned)
    return runner, pages


def device_runner_and_pages(model: Any, plan: Plan, placing: Placing) -> tuple[Runner, int]:
    """The same for a model on a device, whose pages lie there: the plan's, or what the device has left.

    A context that they do not hold is reduced with a warning. Raises DoesNotFit when the user chose it.
    """
    device, context = placing.device, int(plan.value("context"))
    dtype = _DTYPES[plan.value("kv_dtype")]
    runner = device_runner_for(model, context, dtype, placing.crossing, placing.chunk, placing.captured)
    free, _ = device.memory()
    planned = min(int(plan.value("cache")), max(0, free - WORK_BYTES))
    log.info("%s has %s free, of which %s are for keys and values", device.name, _gib(free), _gib(planned))
    pages = planned // _page_bytes(plan, runner)
    if _needed(plan, runner) > planned:
        _reduce(plan, runner, pages * runner.page, planned)
    return runner, pages


def _page_bytes(plan: Plan, runner: Runner) -> int:
    """Bytes of a page; for a runner without, what the same number of tokens takes in its own caches."""
    return max(1, runner.page_bytes or runner.page * memory.own_token_bytes(plan.spec))


def _needed(plan: Plan, runner: Runner) -> int:
    """Bytes of one sequence of the whole context."""
    return -(-runner.max_context // runner.page) * _page_bytes(plan, runner)


def _reduce(plan: Plan, runner: Runner, fits: int, planned: int) -> None:
    numbers = {
        "name": plan.model.name,
        "context": runner.max_context,
        "fits": fits,
        "needed": _gib(_needed(plan, runner)),
        "planned": _gib(planned),
    }
    source = next(decision.source for decision in plan.decisions if decision.name == "context")
    if fits < 1 or source in ("user", "config"):
        raise DoesNotFit("engine.cache_small", **numbers)
    log.warning("%s", t("engine.context_reduced", **numbers))
    runner.max_context = fits


def _gib(count: int) -> str:
    return f"{max(0, count) / _GIB:.2f} GiB"
