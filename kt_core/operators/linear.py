"""A linear layer computed on the CPU from weights in their stored format."""

from typing import Any

import torch
from torch import nn

from kt_core import kernels
from kt_core.errors import BadData
from kt_core.operators.base import Operator, own_forward
from kt_core.weights import Matrix


def check_shape(name: str, matrix: Matrix, rows: int, cols: int) -> None:
    """Raises BadData when a stored matrix is not [rows, cols]."""
    if (matrix.rows, matrix.cols) != (rows, cols):
        raise BadData("inject.shape", name=name, found=[matrix.rows, matrix.cols], expected=[rows, cols])


class Linear(Operator):
    """y = x W^T + b; x [..., in] float32 or bfloat16, y [..., out] in x's dtype."""

    @classmethod
    def unfit(cls, module: nn.Module, config: Any) -> str:
        return own_forward(module, nn.Linear)

    def load(self) -> None:
        name = f"{self.key}.weight"
        matrix = self.weights.matrix(name)
        check_shape(name, matrix, self.orig_module.out_features, self.orig_module.in_features)
        has_bias = self.orig_module.bias is not None
        self.bias = self.weights.tensor(f"{self.key}.bias") if has_bias else None
        self.kernel = kernels.Linear(matrix, self.bias, between=self.weights.forget_pages)  # a head has gigabytes too

    @property
    def weight(self) -> torch.Tensor:
        """[out, in] float32, decoded anew at each use: a few families read it besides calling the layer."""
        return self.weights.tensor(f"{self.key}.weight")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel(x)
