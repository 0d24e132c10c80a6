"""A dense feed-forward part: down(silu(gate x) * up x)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from kt_core import kernels
from kt_core.kernels.program import Norm, Rows, Source
from kt_core.programs.code import Code
from kt_core.programs.unfit import Unfit, kernel_of, only

NEEDED = {"gate_proj", "up_proj", "down_proj"}


class Mlp:
    """llama's, and with it that of nearly every family, shared experts included."""

    def __init__(self, module: nn.Module, config: Any = None) -> None:
        only(module, NEEDED | {"act_fn"})
        self.gate, self.up, self.down = (kernel_of(module, f"{name}_proj") for name in ("gate", "up", "down"))
        x = torch.linspace(-9, 9, 64)
        act = getattr(module, "act_fn", None)
        if act is None or not torch.allclose(act(x), F.silu(x), rtol=1e-5, atol=1e-6):
            raise Unfit("programs.activation", cls=type(module).__name__)

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Whether the module is one of these, by its parts."""
        return set(module._modules) >= NEEDED

    def emit(self, code: Code, x: Rows, before: Norm) -> None:
        """x += mlp(norm(x))"""
        self.begin(code, Source(x, norm=before))
        self.end(code, x, True)

    def begin(
        self, code: Code, source: Source, beside: Sequence[tuple[kernels.Linear, Rows | None, bool]] = ()
    ) -> None:
        """Gate and up of the source's rows, with other products of them."""
        code.program.linear(source, [*beside, (self.gate, self._gate(code), False), (self.up, self._up(code), False)])

    def end(self, code: Code, y: Rows, add: bool) -> None:
        """down of what `begin` left."""
        code.program.linear(Source(self._gate(code), other=self._up(code)), [(self.down, y, add)])

    def _gate(self, code: Code) -> Rows:
        return code.rows("mlp.gate", self.gate.out_features)

    def _up(self, code: Code) -> Rows:
        return code.rows("mlp.up", self.up.out_features)
