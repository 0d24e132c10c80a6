"""Low-rank additions to a model that kt has built: to linear layers in torch, to experts in the native kernels.

A layer is adapted because it is found in the model, by what it is, and never by a name that a library may understand in
another way; what is adapted is counted, and a target that is missing, or there in some layers only, is an error.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from kt_core.errors import Unsupported, UsageError
from kt_core.kernels import UNGATED
from kt_core.kernels.training import LoraFactors, train
from kt_core.operators.experts import Experts
from kt_core.weights import Matrix, decode_matrix

ALL, EXPERTS = "all", "experts"
PARTS = ("gate", "up", "down")
ROUNDED = ("F32", "F16")  # expert formats that are rounded to BF16 for training


@dataclass(frozen=True)
class Shape:
    """Of every addition: rank, the factor of B A, dropout before A (linear layers only), activations kept (experts)."""

    rank: int
    scale: float
    dropout: float = 0.0
    keep: bool = True


class LoraLinear(nn.Module):
    """y = base(x) + scale B A dropout(x); A and B are float32, B is 0 at first."""

    def __init__(self, base: nn.Linear, shape: Shape) -> None:
        super().__init__()
        self.base = base
        self.scale = shape.scale
        self.dropout = nn.Dropout(shape.dropout)
        self.on = True
        self.lora_A = nn.Parameter(torch.empty(shape.rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, shape.rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.on:
            return self.base(x)  # type: ignore[no-any-return]
        added = self.dropout(x).to(self.lora_A.dtype) @ self.lora_A.T @ self.lora_B.T
        y: torch.Tensor = self.base(x)
        return y + (self.scale * added).to(y.dtype)


class TrainedExperts(Experts):
    """Experts in their stored format, with low-rank additions once `adapt` was called."""

    def adapt(self, shape: Shape) -> None:
        """Adds A [experts, rank, in] and B [experts, out, rank] of each projection, float32, B 0."""
        self.shape, self.on = shape, True
        kernel = self.kernel
        hidden, inner = kernel.hidden, kernel.intermediate
        for part, out, cols in zip(PARTS, (inner, inner, hidden), (hidden, hidden, inner), strict=True):
            if part == "gate" and kernel.activation in UNGATED:
                continue
            a = torch.empty(kernel.num_experts, shape.rank, cols).uniform_(-1, 1) / math.sqrt(cols)
            self.register_parameter(f"lora_{part}_A", nn.Parameter(a))
            self.register_parameter(f"lora_{part}_B", nn.Parameter(torch.zeros(kernel.num_experts, out, shape.rank)))

    def factors(self, part: str) -> LoraFactors | None:
        """A and B of "gate", "up" or "down"; None where there are none."""
        a = self._parameters.get(f"lora_{part}_A")
        b = self._parameters.get(f"lora_{part}_B")
        return None if a is None or b is None else LoraFactors(a, b)

    def forward(self, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        shape: Shape | None = self.__dict__.get("shape")
        up, down = self.factors("up"), self.factors("down")
        if shape is None or not self.on or up is None or down is None:
            return train(self.kernel, hidden, ids, weights)
        return train(self.kernel, hidden, ids, weights, (self.factors("gate"), up, down), shape.scale, shape.keep)

    def _matrices(self, index: int, hidden: int, intermediate: int) -> tuple[Matrix | None, Matrix, Matrix]:
        gate, up, down = super()._matrices(index, hidden, intermediate)
        return None if gate is None else _rounded(gate), _rounded(up), _rounded(down)


def _rounded(matrix: Matrix) -> Matrix:
    if matrix.format not in ROUNDED:
        return matrix
    values = torch.from_numpy(decode_matrix(matrix)).to(torch.bfloat16)
    return Matrix("BF16", matrix.rows, matrix.cols, values.view(torch.uint8).numpy().view(np.uint8))


def adapt(model: nn.Module, targets: str | list[str], shape: Shape) -> dict[str, int]:
    """Freeze the model, and add to the targets: layers adapted by kind, "experts" among them.

    targets: "all" (every linear layer but the output matrix, and the experts), or last names of layers, of which gate_proj,
    up_proj and down_proj, as "experts", mean the routed experts too.
    Raises UsageError for a name that no layer has, Unsupported where only some layers' experts can be trained.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    kinds = _kinds(model)
    wanted = _wanted(kinds, targets)
    for kind in wanted:
        for parent, name, module in kinds[kind]:
            if isinstance(module, TrainedExperts):
                module.adapt(shape)
            else:
                parent._modules[name] = LoraLinear(module, shape)
    return {kind: len(kinds[kind]) for kind in wanted}


Place = tuple[nn.Module, str, Any]


def _kinds(model: nn.Module) -> dict[str, list[Place]]:
    """What can be adapted, by the last part of its name."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    kinds: dict[str, list[Place]] = defaultdict(list)
    frozen = []
    for path, module in model.named_modules():
        parent = model.get_submodule(path.rpartition(".")[0])
        name = path.rpartition(".")[2]
        if isinstance(module, TrainedExperts):
            kinds[EXPERTS].append((parent, name, module))
        elif isinstance(module, nn.Linear) and module is not head:
            kinds[name].append((parent, name, module))
        elif name == EXPERTS:
            frozen.append(path)
    if frozen:
        raise Unsupported("train.experts_left", count=len(frozen), first=frozen[0])
    return kinds


def _wanted(kinds: dict[str, list[Place]], targets: str | list[str]) -> list[str]:
    names = [name.strip() for name in targets.split(",")] if isinstance(targets, str) else targets
    if names == [ALL]:
        return sorted(kinds)
    parts = {f"{part}_proj" for part in PARTS} & set(names)
    if parts and EXPERTS in kinds:
        names = [*(name for name in names if name in kinds or name not in parts), EXPERTS]
    for name in names:
        if name not in kinds:
            raise UsageError("train.no_target", name=name, known=", ".join([ALL, *sorted(kinds)]))
    return sorted(set(names))


@contextmanager
def switched_off(model: nn.Module) -> Iterator[None]:
    """The model without its additions, for the length of a block."""
    added = [module for module in model.modules() if isinstance(module, LoraLinear | TrainedExperts)]
    for module in added:
        module.on = False
    try:
        yield
    finally:
        for module in added:
            module.on = True


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """What is trained, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
