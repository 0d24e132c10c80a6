"""What computes steps, and which of them a model gets."""

import logging
import re
from functools import partial
from typing import Any

import torch

from kt_core import programs
from kt_core.engine.runners.facts import MAX_TOKENS, Facts, Unfit
from kt_core.engine.runners.fitting import paged_runner
from kt_core.engine.runners.hybrid import HybridRunner
from kt_core.engine.runners.own import OwnCacheRunner
from kt_core.engine.runners.program import ProgramRunner
from kt_core.engine.step import Counted, Runner
from kt_core.operators.crossing import Crossing
from kt_core.operators.experts import Experts
from kt_core.operators.hybrid import HybridExperts
from kt_core.operators.moving import Moves

__all__ = ["device_runner_for", "runner_for"]

log = logging.getLogger(__name__)


def runner_for(
    model: Any, max_context: int | None = None, dtype: torch.dtype = torch.bfloat16, chunk: int | None = None
) -> Runner:
    """The fastest way to run a causal language model of transformers: as one native call where kt knows all its parts,
    else module by module, on pages of `dtype` where its attention can be had on them, else with a cache of its own for
    each sequence. Numbers decide what fits; the reasons are logged. `chunk`: tokens of a step at most, where that is less
    than the runner's own limit.
    """
    runner = _fastest(model, max_context, dtype)
    runner.max_tokens = min(runner.max_tokens, chunk or runner.max_tokens)
    runner.experts = _experts(model)
    return runner


def _experts(model: Any) -> dict[int, Counted]:
    """The routed experts that kt computes, by the number of their layer."""
    found = (module for module in model.modules() if isinstance(module, Experts))
    numbered = {int(re.findall(r"\.(\d+)\.", module.key)[0]): module for module in found}
    return {n: one if isinstance(one, HybridExperts) else one.kernel for n, one in numbered.items()}


def _fastest(model: Any, max_context: int | None, dtype: torch.dtype) -> Runner:
    try:
        runner: Runner = ProgramRunner(programs.build(model), Facts(model, max_context).max_context, dtype)
        log.info("a step is one native call")
    except programs.Unfit as reason:
        log.info("a step runs module by module: %s", reason)
        try:
            runner = paged_runner(model, max_context, dtype)
        except Unfit as reason:
            log.info("each sequence has its own cache, computed one after the other: %s", reason)
            return OwnCacheRunner(model, max_context)
    log.info("keys and values lie in pages of %d tokens and %d bytes, %s", runner.page, runner.page_bytes, dtype)
    return runner


def device_runner_for(
    model: Any,
    max_context: int | None,
    dtype: torch.dtype,
    crossing: Crossing,
    chunk: int = MAX_TOKENS,
    captured: tuple[int, ...] = (),
) -> Runner:
    """The same for a model on a device: on pages there where they fit, else with a cache of its own for each sequence.

    `chunk` are the tokens of a step at most, `captured` the numbers of sequences for which decoding becomes a graph.
    """
    kind = partial(HybridRunner, crossing=crossing, chunk=chunk, captured=captured)
    try:
        with crossing.device.use():
            runner: HybridRunner = paged_runner(model, max_context, dtype, kind, together=False)
            runner.moves = Moves.of(model)
    except Unfit as reason:
        log.info("each sequence has its own cache, computed one after the other: %s", reason)
        own = OwnCacheRunner(model, max_context)
        own.experts = _experts(model)
        return own
    runner.experts = _experts(model)
    log.info("keys and values lie on %s in pages of %d bytes, %s", crossing.device.name, runner.page_bytes, dtype)
    return runner
