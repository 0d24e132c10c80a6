"""A linear layer computed on the CPU from weights in their stored format."""

import torch
from torch import nn

from kt_core import kernels
from kt_core.errors import BadData
from kt_core.operators.base import Operator
from kt_core.weights import Matrix


def check_shape(name: str, matrix: Matrix, rows: int, cols: int) -> None:
    """Raises BadData when a stored matrix is not [rows, cols]."""
    if (matrix.rows, matrix.cols) != (rows, cols):
        raise BadData("inject.shape", name=name, found=[matrix.rows, matrix.cols], expected=[rows, cols])


class Linear(Operator):
    """y = x W^T + b; x [..., in] float32 or bfloat16, y [..., out] in x's dtype."""

    def weight_name(self) -> str:
        """The checkpoint's name of the weight: a tied head is the embedding's."""
        name = f"{self.key}.weight"
        if name not in self.weights and self.config.tie_word_embeddings and self.key.endswith("lm_head"):
            return next(n for n in sorted(self.weights.names()) if n.endswith("embed_tokens.weight"))
        return name

    def load(self) -> None:
        self._check_plain(nn.Linear)
        name = self.weight_name()
        matrix = self.weights.matrix(name)
        check_shape(name, matrix, self.orig_module.out_features, self.orig_module.in_features)
        has_bias = self.orig_module.bias is not None
        self.kernel = kernels.Linear(matrix, bias=self.weights.tensor(f"{self.key}.bias") if has_bias else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel(x)
