"""The extension: loaded at first use, with errors that a person can act on."""

import importlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from kt_core import errors
from kt_core.kernels.policy import SUPPORTED
from kt_core.weights import Matrix

Weight = tuple[str, int, int, Any, Any, Any, str, int, float]


@cache
def load() -> Any:
    """The extension module. Raises EnvironmentProblem when it is missing, broken, or told to use a tier it cannot."""
    try:
        module: Any = importlib.import_module("kt_core._native")
    except ImportError as error:
        raise errors.EnvironmentProblem("kernels.missing", why=str(error)) from error
    choice = module.chosen()
    if choice["verdict"] == "ok":
        return module
    tiers = module.tiers()
    names = {
        "known": ", ".join(tier["name"] for tier in tiers),
        "runnable": ", ".join(tier["name"] for tier in tiers if tier["runnable"]),
    }
    if choice["verdict"] == "unknown":
        raise errors.EnvironmentProblem("kernels.unknown_tier", name=choice["forced"], **names)
    raise errors.EnvironmentProblem(
        "kernels.tier_not_runnable", name=choice["tier"], missing=", ".join(choice["missing"]), **names
    )


def weight(matrix: Matrix) -> Weight:
    """A matrix as the extension takes it. Raises Unsupported for a format without a kernel."""
    if matrix.format not in SUPPORTED:
        raise errors.Unsupported("kernels.format", format=matrix.format, known=", ".join(sorted(SUPPORTED)))
    return (
        matrix.format,
        matrix.rows,
        matrix.cols,
        matrix.data,
        matrix.scales,
        matrix.zeros,
        matrix.scale_format,
        matrix.group,
        matrix.multiplier,
    )


def dtype_name(x: torch.Tensor) -> str:
    """The extension's name of x's dtype. Raises ValueError for one that it does not take, or another device."""
    _check_device(x)
    if x.dtype == torch.float32:
        return "float32"
    if x.dtype == torch.bfloat16:
        return "bfloat16"
    raise ValueError(f"expected float32 or bfloat16, got {x.dtype}")


def new_result(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Memory for a kernel's result; NaN, or the least integer, while `set_poison` is on."""
    y = torch.empty(shape, dtype=dtype)
    if load().poisoned():
        y.fill_(math.nan if dtype.is_floating_point else torch.iinfo(dtype).min)
    return y


def plain(x: torch.Tensor) -> torch.Tensor:
    """x with its numbers in memory as they are: contiguous, and no negation left as a bit of the tensor.

    Raises ValueError for a tensor that is not on the CPU: whatever goes to the extension by address comes through here.
    """
    _check_device(x)
    if x.is_contiguous() and not (x.is_neg() or x.requires_grad):  # three calls of torch take as long as a small layer
        return x
    return x.detach().resolve_neg().contiguous()


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """x [T, ...] with each token's numbers in memory as they are; tokens may be any distance apart. Raises as plain does."""
    _check_device(x)
    if x.is_neg() or x.shape[0] == 0 or not x[0].is_contiguous():
        return plain(x)
    return x.detach()


def _check_device(x: torch.Tensor) -> None:
    if not x.is_cpu:
        raise ValueError(f"expected a tensor on the CPU, got one on {x.device}")


def info() -> dict[str, Any]:
    """What was compiled, what can run here, what was chosen and why.

    Keys: tiers (name, compiled, runnable, needs, missing; lowest first), chosen, reason, features, formats
    (policy, block, the tier whose kernel serves it, the rows from which the prefill path does, None for never,
    and prefill_tier, where that path comes from), deterministic, compiler, dropped_tiers, and Pool.info of the
    process's own pool.
    """
    native = load()
    choice = native.chosen()
    return {
        "tiers": native.tiers(),
        "chosen": choice["tier"],
        "reason": choice["reason"],
        "features": native.features(),
        "formats": native.formats(),
        "deterministic": native.deterministic(),
        "compiler": native.compiler(),
        "dropped_tiers": native.dropped_tiers().split(),
        **native.default_pool().info(),
    }


def set_deterministic(on: bool) -> None:
    """Whether a row's result must be the same bits whatever other rows it comes with.

    Off by default, on with KT_DETERMINISTIC=1: then many rows never take a path with other rounding, at the
    price of slower prompts where such a path exists.
    """
    load().set_deterministic(on)


@contextmanager
def deterministic() -> Iterator[None]:
    """set_deterministic(True) for the length of a block."""
    before = load().deterministic()
    set_deterministic(True)
    try:
        yield
    finally:
        set_deterministic(before)


def set_poison(on: bool) -> None:
    """For tests: whether results, and the memory between the steps of a call, begin as NaN, so that what a kernel does not
    write shows. Off by default, on with KT_POISON=1.
    """
    load().set_poison(on)
