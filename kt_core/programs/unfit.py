"""What makes a model run module by module."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from kt_core import errors, kernels
from kt_core.operators.linear import Linear
from kt_core.weights import Matrix


class Unfit(errors.Unsupported):
    """The model, or a part of it, has no program; the text says why."""


def kernel_of(module: nn.Module, name: str) -> kernels.Linear:
    """The kernel of a linear child. Raises Unfit where transformers computes it, or there is none."""
    child = getattr(module, name, None)
    if child is None:
        raise Unfit("programs.missing", cls=type(module).__name__, part=name)
    if not isinstance(child, Linear):
        raise Unfit("programs.not_ours", part=name, cls=type(child).__name__)
    kernel: kernels.Linear = child.kernel
    return kernel


def only(module: nn.Module, known: Iterable[str]) -> None:
    """Raises Unfit when the module has children, parameters or buffers besides the known ones."""
    held: dict[str, Any] = {**module._modules, **module._parameters, **module._buffers}
    others = sorted(name for name, value in held.items() if value is not None and name not in set(known))
    if others:
        names = ", ".join(sorted(known))
        raise Unfit("programs.parts", cls=type(module).__name__, parts=", ".join(others), known=names)


def float_matrix(weight: torch.Tensor) -> Matrix:
    """A weight [rows, cols] of any float dtype in float32, for parts that transformers computes in it."""
    numbers = weight.detach().float().contiguous()
    return Matrix("F32", numbers.shape[0], numbers.shape[1], numbers.view(torch.uint8).numpy())
