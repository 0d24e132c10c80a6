"""Multi-head latent attention over a device's pages: they hold the latent and the rotary columns, not the keys of every head.

For single tokens the projections from the latent go into the queries and out of the sums, so that no key is expanded; for
prompts the sequence's keys are, once for all queries of a step.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from kt_core.device.pages import Attending, Form, Pages, Sequences, last_keys, prompt

SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


class Latent:
    """One attention module whose keys and values come out of its own `expand_kv(latent, rotary columns)`."""

    def __init__(self, module: Any) -> None:
        self._latent, self._nope, self._rope, self._value = (int(getattr(module, name)) for name in SIZES)
        self._projection: torch.Tensor = module.kv_b_proj.weight  # [heads * (nope + value), latent]
        parts = self._projection.view(-1, self._nope + self._value, self._latent)
        self._up_keys, self._up_values = parts[:, : self._nope], parts[:, self._nope :]  # of every head

    @staticmethod
    def fits(module: Any) -> bool:
        """Whether the module is one of these. What comes of it is compared with the module like everything else."""
        projection: Any = getattr(module, "kv_b_proj", None)
        own = type(projection) is nn.Linear and projection.bias is None and hasattr(module, "expand_kv")
        return own and all(isinstance(getattr(module, name, None), int) for name in SIZES)

    def form(self, page: int, dtype: torch.dtype) -> Form:
        """Of pages for it."""
        return Form(1, self._latent + self._rope, self._latent, page, dtype, shared=True)

    def last_keys(self, q: torch.Tensor, pages: Pages, sequences: Sequences, how: Attending) -> torch.Tensor:
        """As device.pages has it, for q [B, heads, nope + rope], to [B, heads, value]."""
        plain, rotary = q.split([self._nope, self._rope], -1)
        absorbed = torch.cat((torch.einsum("bhn,hnl->bhl", plain, self._up_keys), rotary), -1)
        sums = last_keys(absorbed, pages, sequences, how)
        return torch.einsum("bhl,hvl->bhv", sums, self._up_values)

    def prompt(self, q: torch.Tensor, keys: torch.Tensor, latent: torch.Tensor, how: Attending) -> torch.Tensor:
        """As device.pages has it, for q [T, heads, nope + rope] and rows of the pages, to [T, heads, value]."""
        rows = latent[:, 0].to(q.dtype)
        both = F.linear(rows, self._projection).unflatten(-1, (-1, self._nope + self._value))
        plain, values = both.split([self._nope, self._value], -1)
        rotary = keys[..., self._latent :].to(q.dtype).expand(-1, plain.shape[1], -1)
        return prompt(q, torch.cat((plain, rotary), -1), values, how)


@contextmanager
def kept_latent(modules: Sequence[Any]) -> Iterator[None]:
    """Within this block these modules hand on what they would expand: latent and rotary columns as the keys of one head, and the
    latent as its values."""
    try:
        for module in modules:
            module.expand_kv = _kept
        yield
    finally:
        for module in modules:
            module.__dict__.pop("expand_kv", None)


def _kept(latent: torch.Tensor, rotary: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat((latent, rotary), -1), latent
