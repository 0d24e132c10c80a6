"""Routed experts whose weights lie on a device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kt_core.device import Device
from kt_core.kernels import Experts
from kt_core.operators.grouped import Dense, Grouped, Stored
from kt_core.operators.packed import Form, memory
from kt_core.weights import Matrix, decode_matrix

PLAIN = {"BF16", "F32"}  # formats that the device's own numbers hold as well


class Resident:
    """The experts `numbers` of a layer; each is given as kernels.Experts.load takes it.

    They are kept as the CPU's kernels pack them where a device can use that, `form` says how; else, and where they are
    stored as plain numbers, in the device's dtype. `module` is transformers' experts, `packing` an Experts of one place.
    """

    def __init__(
        self,
        module: Any,
        numbers: Sequence[int],
        experts: Sequence[Any],
        device: Device,
        form: Form | None,
        packing: Experts,
        biases: tuple[torch.Tensor, torch.Tensor] | None,
        moves: bool = False,
    ) -> None:
        self.numbers = list(numbers)  # by their place here, which changes where they move
        self.grouped = Grouped(module, self.numbers, device, biases)
        self._form, self._device = form, device
        self.word: torch.Tensor | None = None  # of host memory: 1, but for while one of the experts is on its way here
        self.weights: Dense | Stored
        if form is not None and not form.formats <= PLAIN:
            self.weights = Stored(_packed(experts, form, packing, device), form, device)
        else:
            self.weights = decoded(module, experts, device)
        # where an expert is taken apart that comes here
        self._room = torch.empty(form.bytes if form and moves else 0, dtype=torch.uint8, device=device.torch)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights on the device."""
        weights = self.weights
        return int(weights.raw.nbytes if isinstance(weights, Stored) else sum(part.nbytes for part in weights.values))

    def put(self, slot: int, parts: Sequence[torch.Tensor]) -> None:
        """An expert's packed bytes, in host memory, go to that place, which nobody is using."""
        assert self._form is not None
        raw = self.weights.raw[slot] if isinstance(self.weights, Stored) else self._room
        at = 0
        for part in parts:
            raw[at : at + part.numel()].copy_(part, non_blocking=True)
            at += part.numel()
        if isinstance(self.weights, Dense):
            first, down = (values[slot : slot + 1] for values in self.weights.values)
            self._form.first(raw[None], first)
            self._form.down(raw[None], down)

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """As Grouped: float32 [..., T, hidden], the sums over these experts."""
        if self.word is not None:
            self._device.wait(self.word.data_ptr(), 1)
        return self.grouped(self.weights, x, ids, weights)


def biases_of(module: Any, experts: Sequence[Any], device: Device) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Of all of a layer's experts, as Grouped takes them."""
    if not module.has_bias:
        return None
    gates, ups, downs = ([expert[part] for expert in experts] for part in (3, 4, 5))
    pairs = zip(gates, ups, strict=True)
    return _on(device, [_joined(module, gate, up) for gate, up in pairs]), _on(device, downs)


def _packed(experts: Sequence[Any], form: Form, packing: Experts, device: Device) -> torch.Tensor:
    raw = torch.empty(len(experts), form.bytes, dtype=torch.uint8, device=device.torch)
    for place, expert in zip(raw, experts, strict=True):
        packing.load_all([expert])
        places = packing.places(0)
        form.check(places)
        place.copy_(torch.cat([memory(part) for part in places]))
    return raw


def decoded(module: Any, experts: Sequence[Any], device: Device) -> Dense:
    """Experts, as kernels.Experts.load takes each, in the device's dtype."""
    gates, ups, downs = ([expert[part] for expert in experts] for part in (0, 1, 2))
    pairs = zip(gates, ups, strict=True)
    first = _on(device, [_joined(module, gate and _values(gate), _values(up)) for gate, up in pairs])
    return Dense(first, _on(device, [_values(matrix) for matrix in downs]), device)


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
