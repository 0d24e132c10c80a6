"""The routed experts of one layer, computed on the CPU in their stored format.

The seam is transformers' own: every MoE family calls
`experts(hidden_states [T, H], top_k_index [T, K], top_k_weights [T, K]) -> [T, H]`.
"""

from typing import Any

import torch
from torch import nn

from kt_core import kernels
from kt_core.errors import BadData
from kt_core.messages import t
from kt_core.operators.base import Operator
from kt_core.operators.linear import check_shape
from kt_core.weights import Matrix

# config.hidden_act -> the kernel's activation of the gate
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}

# What transformers' decorator of experts modules must say of one: gate, up and down, [out, in], no bias.
LAYOUT = {
    "has_gate": True,
    "has_bias": False,
    "is_transposed": False,
    "is_concatenated": True,
}


class Experts(Operator):
    """Replaces the module named `experts` of any family in the standard layout (gate, up, down; no bias)."""

    @classmethod
    def unfit(cls, module: nn.Module, config: Any) -> str:
        for flag, expected in LAYOUT.items():
            found = getattr(module, flag, None)
            if found is not expected:
                return t("inject.experts_layout", cls=type(module).__name__, flag=flag, found=found)
        if getattr(module, "has_post_expert_norm", False):  # newer than the oldest transformers that kt takes
            return t("inject.experts_layout", cls=type(module).__name__, flag="has_post_expert_norm", found=True)
        # A class with a gate of its own (clamped, scaled, ...) is not the plain act(gate) * up.
        if not type(module)._apply_gate.__module__.startswith("transformers.integrations"):
            return t("inject.own_gate", cls=type(module).__name__)
        activation = getattr(config, "hidden_act", None)
        return "" if activation in ACTIVATIONS else t("inject.activation", activation=activation)

    def load(self) -> None:
        original = self.orig_module
        _, hidden, intermediate = original.down_proj.shape
        self.num_experts = original.num_experts
        if (found := self.weights.experts(self.key)) != self.num_experts:
            raise BadData("inject.experts_count", module=self.key, found=found, expected=self.num_experts)
        # All are checked before the kernel takes the sizes, which the configuration alone says.
        experts = [self._matrices(index, hidden, intermediate) for index in range(self.num_experts)]
        activation = ACTIVATIONS[str(self.config.hidden_act)]
        self.kernel = kernels.Experts(self.num_experts, hidden, intermediate, activation)
        for index, parts in enumerate(experts):
            self.kernel.load(index, *parts)

    def _matrices(self, index: int, hidden: int, intermediate: int) -> list[Matrix]:
        shapes = {"gate": (intermediate, hidden), "up": (intermediate, hidden), "down": (hidden, intermediate)}
        found = []
        for part, shape in shapes.items():
            found.append(self.weights.expert(self.key, index, part))
            check_shape(f"{self.key}.{index}.{part}", found[-1], *shape)
        return found

    def forward(self, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return self.kernel(hidden, ids, weights.float())
