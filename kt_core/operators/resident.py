"""Routed experts whose weights lie on a device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kt_core.device import Device
from kt_core.operators.grouped import Grouped, Weights
from kt_core.weights import Matrix, decode_matrix


class Resident:
    """The experts `numbers` of a layer, decoded to the device's dtype; each is given as kernels.Experts.load takes it.

    `module` is transformers' experts.
    """

    def __init__(self, module: Any, numbers: list[int], experts: Sequence[Any], device: Device) -> None:
        self.numbers = numbers
        self._grouped = Grouped(module, numbers, device)
        gates, ups, downs, gate_bias, up_bias, down_bias = zip(*experts, strict=True)
        pairs = zip(gates, ups, strict=True)
        first = _on(device, [_joined(module, gate and _values(gate), _values(up)) for gate, up in pairs])
        down = _on(device, [_values(matrix) for matrix in downs])
        self.weights = Weights(first, down)
        if module.has_bias:
            pairs = zip(gate_bias, up_bias, strict=True)
            biases = _on(device, [_joined(module, gate, up) for gate, up in pairs])
            self.weights = Weights(first, down, biases, _on(device, down_bias))

    @property
    def nbytes(self) -> int:
        """Bytes of the weights on the device."""
        return int(self.weights.first.nbytes + self.weights.down.nbytes)

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """As Grouped: float32 [T, hidden], the sum over these experts."""
        return self._grouped(self.weights, x, ids, weights)


def _on(device: Device, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """[count, ...] in the device's dtype."""
    whole = torch.empty(len(parts), *parts[0].shape, dtype=device.dtype, device=device.torch)
    for place, part in zip(whole, parts, strict=True):
        place.copy_(part)
    return whole


def _joined(module: Any, gate: torch.Tensor | None, up: torch.Tensor) -> torch.Tensor:
    """Rows of gate and up as the module's gating takes them apart again; up alone where there is no gate."""
    if gate is None:
        return up
    return torch.cat((gate, up)) if module.is_concatenated else torch.stack((gate, up), 1).flatten(0, 1)


def _values(matrix: Matrix) -> torch.Tensor:
    """[rows, cols]: bfloat16 as it is stored, anything else decoded to float32."""
    if matrix.format == "BF16":
        data = np.array(matrix.data)  # a copy that torch may own
        return torch.from_numpy(data).view(torch.bfloat16).view(matrix.rows, matrix.cols)
    return torch.from_numpy(decode_matrix(matrix))
