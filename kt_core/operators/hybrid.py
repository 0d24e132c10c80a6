"""The routed experts of one layer, some on a device and the others on the CPU."""

import logging
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import nn

from kt_core.operators.crossing import Crossing
from kt_core.operators.experts import Experts
from kt_core.operators.resident import Resident
from kt_core.operators.streamed import Streamed, Streamer, Unfit
from kt_core.weights import Weights

log = logging.getLogger(__name__)


class HybridExperts(Experts):
    """Experts whose rows come and go on a device. Those of `on_device` are computed there, while the CPU computes the others
    in their stored format; the sum is float32, the device's part first, and rounded once. No expert is in both memories. From `streamer`'s number of
    tokens on, the CPU's experts are copied to the device and computed there as well.
    """

    def __init__(
        self,
        key: str,
        weights: Weights,
        config: Any,
        orig_module: nn.Module,
        crossing: Crossing,
        on_device: Sequence[int] = (),
        streamer: Streamer | None = None,
    ) -> None:
        super().__init__(key, weights, config, orig_module)
        self.crossing, self.streamer = crossing, streamer
        self.on_device = sorted(on_device)
        self.resident: Resident | None = None
        self.streamed: Streamed | None = None

    def load(self) -> None:
        experts = self._stored()
        elsewhere = torch.zeros(self.num_experts, dtype=torch.bool)
        elsewhere[self.on_device] = True
        self.kernel = self._kernel(elsewhere)
        here = [number for number in range(self.num_experts) if not elsewhere[number]]
        for _, run in groupby(enumerate(here), lambda pair: pair[1] - pair[0]):  # numbers without a gap
            numbers = [number for _, number in run]
            self.kernel.load_all([experts[number] for number in numbers], numbers[0])
        if self.on_device:
            chosen = [experts[number] for number in self.on_device]
            self.resident = Resident(self.orig_module, self.on_device, chosen, self.crossing.device)
        if self.streamer and here:
            try:
                self.streamed = Streamed(self.orig_module, self.kernel, here, self.streamer)
            except Unfit as reason:
                log.info("%s is not streamed: %s", self.key, reason)

    def forward(self, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        resident = self.resident
        if resident and len(self.on_device) == self.num_experts:
            return resident(hidden, ids, weights).to(hidden.dtype)
        captured = self.crossing.relay is not None  # a graph's few rows are not worth the copies
        if self.streamed and not captured and self.streamed.takes(len(hidden)):
            there = self.streamed(hidden, ids, weights)
            return (there if resident is None else resident(hidden, ids, weights) + there).to(hidden.dtype)
        self.crossing.send(hidden, ids, weights)
        here = resident(hidden, ids, weights) if resident else None
        there = self.crossing.answer(self.kernel)
        return there if here is None else (here + there).to(hidden.dtype)
