"""A token embedding that stays in its stored format; only the rows asked for are decoded."""

import numpy as np
import torch
from torch import nn

from kt_core.errors import Unsupported
from kt_core.operators.base import Operator
from kt_core.operators.linear import check_shape
from kt_core.weights import decode


class Embedding(Operator):
    """ids [...] int64 -> rows [..., hidden] float32, straight from the memory map."""

    def load(self) -> None:
        self._check_plain(nn.Embedding)
        name = f"{self.key}.weight"
        self.matrix = self.weights.matrix(name)
        if self.matrix.scales is not None:
            raise Unsupported("inject.embedding", name=name, format=self.matrix.format)
        check_shape(name, self.matrix, self.orig_module.num_embeddings, self.orig_module.embedding_dim)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = np.ascontiguousarray(self.matrix.data[ids.flatten().numpy()])
        values = decode(self.matrix.format, rows).reshape(*ids.shape, self.matrix.cols)
        return torch.from_numpy(values)
