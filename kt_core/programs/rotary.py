"""Rotary embedding: tables of transformers' rotary module."""

import torch
from torch import nn

from kt_core.kernels import rope
from kt_core.programs.unfit import Unfit

ENDS = 8  # positions at either end at which the tables are compared


class Rotary:
    """Any kind whose frequencies are fixed (default, linear, llama3, yarn)."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def tables(self, length: int) -> rope.Tables:
        """cos and sin [length, pairs].

        Raises Unfit when the module does not give the same numbers for a text of that length, as dynamic kinds do not.
        """
        if not hasattr(self.module, "inv_freq") or not hasattr(self.module, "attention_scaling"):
            raise Unfit("programs.rotary", cls=type(self.module).__name__)
        cosine, sine = rope.tables(self.module.inv_freq, length, float(self.module.attention_scaling))
        positions = torch.cat((torch.arange(min(ENDS, length)), torch.arange(max(length - ENDS, 0), length)))
        found = self.module(torch.zeros(1), positions[None])
        if isinstance(found, torch.Tensor):  # deepseek_v2 has them as complex numbers
            found = (found.real, found.imag)
        for given, ours in zip(found, (cosine, sine), strict=True):
            # families repeat each pair's number for its second column, or do not
            parts = given[0].split(cosine.shape[1], dim=-1)
            if len(parts) > 2 or not all(torch.allclose(part, ours[positions], rtol=0, atol=1e-5) for part in parts):
                raise Unfit("programs.rotary", cls=type(self.module).__name__)
        return cosine, sine
