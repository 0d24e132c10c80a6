"""transformers' rotary embedding of a family as one kernel, while a step is computed on a GPU."""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

log = logging.getLogger(__name__)

NAME = "apply_rotary_pos_emb"  # as most families call theirs
CLOSE = 1e-5  # of float32 numbers of about 1, and sums of two products


def rotations(layers: Sequence[Any], device: torch.device) -> list[ModuleType]:
    """The families' files whose function the kernel stands in for: it is compared with each. Empty where there are no kernels."""
    if device.type != "cuda" or not find_spec("triton"):
        return []
    files = {name: sys.modules[name] for name in (type(layer).__module__ for layer in layers)}
    return [file for file in files.values() if hasattr(file, NAME) and _same(file, device)]


def _same(file: ModuleType, device: torch.device) -> bool:
    kernel = import_module("kt_core.device.turning")
    generator = torch.Generator().manual_seed(1)
    q, k, cos, sin = (torch.randn(*size, generator=generator).to(device) for size in ((1, 5, 3, 64), (1, 2, 3, 64), (1, 3, 64), (1, 3, 64)))  # fmt: skip
    try:
        pairs = zip(getattr(file, NAME)(q, k, cos, sin), kernel.turned(q, k, cos, sin), strict=True)
        return all(own.shape == ours.shape and float((own - ours).abs().max()) < CLOSE for own, ours in pairs)
    except Exception as e:  # whatever a family's function asks for, and whatever a compiler says
        log.info("%s.%s stays as it is: %s", file.__name__, NAME, str(e).splitlines()[:1])
        return False


@contextmanager
def as_kernels(files: Sequence[ModuleType]) -> Iterator[None]:
    """Within this block these families turn queries and keys on a GPU with the kernel, and all others as they did."""
    before = [getattr(file, NAME) for file in files]
    try:
        for file, own in zip(files, before, strict=True):
            setattr(file, NAME, _instead(own))
        yield
    finally:
        for file, own in zip(files, before, strict=True):
            setattr(file, NAME, own)


def _instead(own: Any) -> Any:
    kernel = import_module("kt_core.device.turning")

    def turn(q: torch.Tensor, k: torch.Tensor, cos: Any, sin: Any, unsqueeze_dim: int = 1, **more: Any) -> Any:
        if more or not kernel.fits(q, k, cos, sin, unsqueeze_dim):
            return own(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim, **more)
        return kernel.turned(q, k, cos, sin)

    return turn
