"""The routed experts of one layer, computed on the CPU in their stored format.

The seam is transformers' own: every MoE family calls
`experts(hidden_states [T, H], top_k_index [T, K], top_k_weights [T, K]) -> [T, H]`.
"""

from typing import Any

import torch

from kt_core import kernels
from kt_core.errors import Unsupported
from kt_core.operators.base import Operator
from kt_core.operators.linear import check_shape
from kt_core.weights import Matrix

# config.hidden_act -> the kernel's activation of the gate
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


class Experts(Operator):
    """Replaces the module named `experts` of any family in the standard layout (gate, up, down; no bias)."""

    def load(self) -> None:
        original = self.orig_module
        self._check_layout(original)
        _, hidden, intermediate = original.down_proj.shape
        self.num_experts = original.num_experts
        activation = self._activation()
        # All are checked before the kernel takes the sizes, which the configuration alone says.
        experts = [self._matrices(index, hidden, intermediate) for index in range(self.num_experts)]
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

    def _check_layout(self, original: Any) -> None:
        for flag, expected in (("has_gate", True), ("has_bias", False), ("is_transposed", False)):
            if getattr(original, flag, expected) != expected:
                raise Unsupported("inject.experts_layout", module=self.key, reason=f"{flag} = {not expected}")
        if getattr(original, "has_post_expert_norm", False):
            raise Unsupported("inject.experts_layout", module=self.key, reason="has_post_expert_norm = True")
        # A class with a gate of its own (clamped, scaled, ...) is not the plain act(gate) * up.
        apply_gate = getattr(type(original), "_apply_gate", None)
        if apply_gate is not None and not apply_gate.__module__.startswith("transformers.integrations"):
            raise Unsupported("inject.experts_layout", module=self.key, reason=f"{type(original).__name__}._apply_gate")
        if self.weights.experts(self.key) != original.num_experts:
            found = self.weights.experts(self.key)
            raise Unsupported(
                "inject.experts_layout",
                module=self.key,
                reason=f"{found} experts stored, {original.num_experts} expected",
            )

    def _activation(self) -> str:
        name = str(getattr(self.config, "hidden_act", None))
        if name not in ACTIVATIONS:
            raise Unsupported("inject.activation", module=self.key, activation=name, known=", ".join(ACTIVATIONS))
        return ACTIVATIONS[name]

    def forward(self, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return self.kernel(hidden, ids, weights.float())
