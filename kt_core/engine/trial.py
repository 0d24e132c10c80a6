"""The first step of a model that has just been loaded, so that one which cannot run is refused before anybody asks it."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from kt_core.engine.runners.facts import CACHE_NAMES
from kt_core.errors import BadData, KTError, Unsupported
from kt_core.events import one_line
from kt_core.formats.problems import shown

STEPS = ([0, 0, 0], [0])  # a prompt and one token more; every vocabulary has a token 0


def try_out(model: PreTrainedModel) -> None:
    """Compute a prompt of three tokens and one more.

    Raises Unsupported where the model's code fails, BadData where its logits are not finite; both name the module.
    """
    try:
        with _first_not_finite(model) as found:
            logits = _steps(model)
    except (KTError, MemoryError):
        raise
    except Exception as e:  # whatever the model's code raises
        module = failing_module(model, e) or type(model).__name__
        raise Unsupported(
            "inject.cannot_run", family=shown(model.config.model_type), module=module, reason=shown(one_line(e))
        ) from e
    if not logits.isfinite().all():
        raise BadData("inject.not_finite", module=found[0] if found else type(model).__name__)


def _steps(model: PreTrainedModel) -> torch.Tensor:
    parameters = inspect.signature(model.forward).parameters
    name = next(name for name in CACHE_NAMES if name in parameters)
    cache: Any = DynamicCache(config=model.config)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))  # operators have none, and are the CPU's
    with torch.inference_mode():
        for ids in STEPS:
            tokens = torch.tensor([ids], device=device)
            logits: torch.Tensor = model(input_ids=tokens, use_cache=True, **{name: cache}).logits
    return logits


def failing_module(model: nn.Module, error: BaseException) -> str:
    """The path of the innermost module of `model` whose code `error` passed through; "" when there is none."""
    paths = {id(module): path for path, module in model.named_modules()}
    found, trace = "", error.__traceback__
    while trace:
        found = paths.get(id(trace.tb_frame.f_locals.get("self"))) or found
        trace = trace.tb_next
    return found


@contextmanager
def _first_not_finite(model: nn.Module) -> Iterator[list[str]]:
    """Within this block, the modules whose results are not finite while what they got was, in order, go into the list."""
    found: list[str] = []

    def look(path: str) -> Any:
        def hook(module: nn.Module, given: Any, result: Any) -> None:
            if not found and not _finite(result):
                found.append(path)

        return hook

    hooks = [module.register_forward_hook(look(path)) for path, module in model.named_modules()]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _finite(values: Any) -> bool:
    if isinstance(values, torch.Tensor):
        return not values.is_floating_point() or bool(values.isfinite().all())
    return not isinstance(values, list | tuple) or all(_finite(value) for value in values)
