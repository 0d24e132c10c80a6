"""What computes steps, and which of them a model gets."""

import logging
from typing import Any

import torch

from kt_core.engine.runners.facts import Unfit
from kt_core.engine.runners.fitting import paged_runner
from kt_core.engine.runners.own import OwnCacheRunner
from kt_core.engine.step import Runner

__all__ = ["runner_for"]

log = logging.getLogger(__name__)


def runner_for(model: Any, max_context: int | None = None, dtype: torch.dtype = torch.bfloat16) -> Runner:
    """The fastest way to run a causal language model of transformers: on pages of `dtype` where its attention can be
    had on them, as a check with numbers says, else with a cache of its own for each sequence. The reason is logged.
    """
    try:
        runner = paged_runner(model, max_context, dtype)
    except Unfit as reason:
        log.info("each sequence has its own cache, computed one after the other: %s", reason)
        return OwnCacheRunner(model, max_context)
    log.info("keys and values lie in pages of %d tokens and %d bytes, %s", runner.page, runner.page_bytes, dtype)
    return runner
