"""The routed experts of one layer, computed on the CPU in their stored format.

The seam is transformers' own: every MoE family calls
`experts(hidden_states [T, H], top_k_index [T, K], top_k_weights [T, K]) -> [T, H]`, and its class says by flags
how it keeps its parameters (`transformers.integrations.moe.use_experts_implementation`).
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from kt_core import kernels
from kt_core.errors import BadData
from kt_core.kernels import reference
from kt_core.messages import t
from kt_core.operators.base import Operator
from kt_core.operators.linear import check_shape
from kt_core.weights import Matrix

PIECE_BYTES = 1 << 28  # of experts that are packed before the pages of the file that they came from are given back


class Experts(Operator):
    """Replaces the module named `experts` of any family whose activation has a kernel."""

    @classmethod
    def unfit(cls, module: nn.Module, config: Any) -> str:
        name = type(module).__name__
        missing = [flag for flag in ("has_gate", "has_bias", "is_transposed") if not hasattr(module, flag)]
        if missing or (module.has_gate and not hasattr(module, "_apply_gate")):
            return t("inject.experts_layout", cls=name)
        if getattr(module, "has_post_expert_norm", False):
            return t("inject.experts_norm", cls=name)
        try:
            gating(module)
        except Unfit:
            known = ", ".join(kernels.ACTIVATIONS)
            return t("inject.activation", cls=name, activation=getattr(config, "hidden_act", None), known=known)
        return ""

    def load(self) -> None:
        experts = self._stored()
        self.kernel = self._kernel()
        for first, part in _pieces(experts):
            self.kernel.load_all(part, first)
            self.weights.forget_pages()  # a layer of a large model has gigabytes, which would count twice meanwhile

    def _stored(self) -> list[tuple[Any, ...]]:
        """Every expert as kernels.Experts.load takes it. Raises BadData for one that is not as the configuration says."""
        original = self.orig_module
        hidden, intermediate = self._sizes()
        self.num_experts = original.num_experts
        if (found := self.weights.experts(self.key)) != self.num_experts:
            raise BadData("inject.experts_count", module=self.key, found=found, expected=self.num_experts)
        biases = self._biases(original, hidden, intermediate)
        return [
            (
                *self._matrices(index, hidden, intermediate),
                *(None if bias is None else bias[index] for bias in biases),
            )
            for index in range(self.num_experts)
        ]

    def _kernel(self, elsewhere: torch.Tensor | None = None) -> kernels.Experts:
        """Without weights; its sizes are those that _stored has found all experts to have."""
        activation, limit, alpha = gating(self.orig_module)
        return kernels.Experts(self.num_experts, *self._sizes(), activation, limit, alpha, elsewhere)

    def _sizes(self) -> tuple[int, int]:
        """hidden, intermediate"""
        _, hidden, intermediate = self.orig_module.down_proj.shape
        return (intermediate, hidden) if self.orig_module.is_transposed else (hidden, intermediate)

    def _matrices(self, index: int, hidden: int, intermediate: int) -> tuple[Matrix | None, Matrix, Matrix]:
        def part(name: str, rows: int, cols: int) -> Matrix:
            found = self.weights.expert(self.key, index, name)
            check_shape(f"{self.key}.{index}.{name}", found, rows, cols)
            return found

        gate = part("gate", intermediate, hidden) if self.orig_module.has_gate else None
        return gate, part("up", intermediate, hidden), part("down", hidden, intermediate)

    def _biases(self, original: Any, hidden: int, intermediate: int) -> list[torch.Tensor | None]:
        """Of gate, up and down: each [experts, rows], or None."""
        if not original.has_bias:
            return [None, None, None]
        down = self._bias("down_proj_bias", hidden)
        if not original.has_gate:
            return [None, self._bias("up_proj_bias", intermediate), down]
        both = self._bias("gate_up_proj_bias", 2 * intermediate)
        return [*_split(both, original.is_concatenated), down]

    def _bias(self, name: str, rows: int) -> torch.Tensor:
        bias = self.weights.tensor(f"{self.key}.{name}")
        if bias.shape != (self.num_experts, rows):
            found, expected = list(bias.shape), [self.num_experts, rows]
            raise BadData("inject.shape", name=f"{self.key}.{name}", found=found, expected=expected)
        return bias

    def forward(self, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return self.kernel(hidden, ids, weights.float())


def _pieces(experts: list[tuple[Any, ...]]) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
    """(the first one's number, experts that follow each other): few bytes together, but work for all threads."""
    each = sum(matrix.data.nbytes for matrix in experts[0] if isinstance(matrix, Matrix)) if experts else 0
    count = max(1, PIECE_BYTES // max(1, each))
    for first in range(0, len(experts), count):
        yield first, experts[first : first + count]


def _split(both: torch.Tensor, concatenated: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """gate and up of a fused last dimension."""
    if not concatenated:
        return both[..., ::2], both[..., 1::2]
    gate, up = both.chunk(2, dim=-1)
    return gate, up


def _number(module: Any, *names: str) -> float | None:
    """The first of the attributes that is a finite number above 0."""
    found = (getattr(module, name, None) for name in names)
    numbers = (float(value) for value in found if isinstance(value, int | float))
    return next((value for value in numbers if 0 < value < math.inf), None)


class Unfit(Exception):
    """No kernel computes what the module does between gate, up and down."""


def gating(module: Any) -> tuple[str, float | None, float]:
    """The kernel's activation, limit and alpha that compute what the module does. Raises Unfit.

    Families name, clamp and round in their own ways, so the module itself is asked, with numbers from far
    below to far above its limit.
    """
    limit = _number(module, "limit", "swiglu_limit")
    alpha = _number(module, "alpha", "swiglu_alpha") or 1.702
    points = np.linspace(-1, 1, 26) * 2.5 * (limit or 4)
    gate, up = (values.ravel() for values in np.meshgrid(points, points))
    found = _asked(module, torch.from_numpy(gate), torch.from_numpy(up)).numpy()
    for name in kernels.ACTIVATIONS:
        if (name in kernels.UNGATED) == module.has_gate:
            continue
        if np.allclose(found, reference.hidden(gate, up, name, limit, alpha), rtol=1e-5, atol=1e-6):
            return name, limit, alpha
    raise Unfit


def _asked(module: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    if not module.has_gate:
        result: torch.Tensor = module.act_fn(up)
        return result
    both = torch.cat((gate, up)) if module.is_concatenated else torch.stack((gate, up), -1).flatten()
    gated: torch.Tensor = module._apply_gate(both)
    return gated
