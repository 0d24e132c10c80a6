"""The routed experts of one layer, some on a device and the others on the CPU."""

import logging
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kt_core.operators.ahead import Ahead
from kt_core.operators.crossing import Crossing, Left
from kt_core.operators.experts import Experts
from kt_core.operators.packed import Form, Unfit
from kt_core.operators.resident import Resident, biases_of
from kt_core.operators.streamed import Streamed, Streamer
from kt_core.weights import Weights

log = logging.getLogger(__name__)


class HybridExperts(Experts):
    """Experts whose rows come and go on a device. Those of `on_device` are computed there, while the CPU computes the others
    in their stored format; the sum is float32, the device's part first, and rounded once. No expert is in both memories, unless
    they `move`: then the CPU has all. From `streamer`'s number of tokens on, the CPU's experts are copied to the device and
    computed there as well.

    Of every token the `deferred` experts of the smallest weights are added to the result of the next layer of experts; `before`
    is the crossing of the layer before this one, and the last layer defers nothing.
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
        moves: bool = False,
        deferred: int = 0,
        before: Crossing | None = None,
    ) -> None:
        super().__init__(key, weights, config, orig_module)
        self.crossing, self.streamer, self.moves = crossing, streamer, moves
        self.deferred, self.before = deferred, before
        crossing.two_sets |= deferred > 0
        self.on_device = sorted(on_device)
        self.resident: Resident | None = None
        self.streamed: Streamed | None = None
        self.form: Form | None = None
        self.ahead: Ahead | None = None  # the block's shared experts

    def load(self) -> None:
        experts, device = self._stored(), self.crossing.device
        elsewhere = torch.zeros(self.num_experts, dtype=torch.bool)
        elsewhere[self.on_device] = True
        self.kernel = self._kernel(elsewhere)
        here = [number for number in range(self.num_experts) if self.moves or not elsewhere[number]]
        for _, run in groupby(enumerate(here), lambda pair: pair[1] - pair[0]):  # numbers without a gap
            numbers = [number for _, number in run]
            self.kernel.load_all([experts[number] for number in numbers], numbers[0])
        self._there_counted = torch.zeros(self.num_experts, dtype=torch.int64, device=device.torch)
        self._known, self._uncounted = np.zeros(self.num_experts, np.uint64), False
        self._own_counts = self.kernel.counts
        self._asks = len(self.on_device) < self.num_experts
        packing = self._kernel()
        packing.load_all(experts[:1])
        biases = biases_of(self.orig_module, experts, device)
        try:
            self.form = Form(self.orig_module, packing, 0)
            for number in here:
                self.form.check(self.kernel.places(number))
            if self.streamer and here:
                self.streamed = Streamed(self.orig_module, self.form, self.kernel, here, self.streamer, biases)
        except Unfit as reason:
            self.form = None
            log.info("%s stays where it is, and as it is: %s", self.key, reason)
        if self.on_device:
            chosen = [experts[number] for number in self.on_device]
            self.resident = Resident(
                self.orig_module, self.on_device, chosen, device, self.form, packing, biases, self.moves
            )

    @property
    def elsewhere(self) -> torch.Tensor:
        """Which experts the CPU does not compute: bool [experts], there."""
        mask = self.kernel.elsewhere
        assert mask is not None
        return mask

    @property
    def counted(self) -> NDArray[np.uint64]:
        """How often each expert was asked for a token. From any thread."""
        if self._uncounted or not self._asks:
            self._uncounted = False
            self._known = self._there_counted.cpu().numpy().astype(np.uint64)
        return self._own_counts + self._known

    @property
    def asked(self) -> list[int]:
        """The same."""
        found: list[int] = self.counted.tolist()
        return found

    def forward(self, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        crossing = self.crossing
        before = self.before.taken() if self.before else Left()
        crossing.taken()  # what a step left that was broken off
        later = deferred(weights, self.deferred) if self.deferred else None
        self.slots = ids.shape[1]
        streams = self.streamed is not None and crossing.relay is None and self.streamed.takes(len(hidden))
        asks, own = self._asks, ids
        if streams and self.streamed:
            asks = self.streamed.copied(len(hidden)) < len(self.streamed.numbers)
            own = self.streamed.others(ids)
        if asks and later is None:
            crossing.send(self.kernel, hidden, own, weights)
        elif asks and later is not None:
            now, then = own.masked_fill(later, -1), own.masked_fill(~later, -1)
            crossing.send(self.kernel, hidden, now, weights, then)
        parts = self._there(hidden, own, ids if streams else None, weights, later)
        if asks:
            if self.ahead:
                self.ahead.compute(hidden)
            if before.there or before.asked:
                parts.append(crossing.answer(before))
            else:  # nothing else is added: one operation does it all
                parts = [crossing.answer(before, sum(parts[1:], parts[0]) if parts else None)]
        if streams or not asks:  # the CPU's kernel counts what it is asked for
            unknown = own < 0 if asks else torch.ones_like(ids)
            self._there_counted.index_add_(0, ids.flatten(), unknown.long().flatten())
            self._uncounted = True
        if self.before:
            parts += [part.to(hidden.device) for part in self.before.collected(before)]
        total = parts[0] if len(parts) == 1 else parts[0].float()
        for part in parts[1:]:
            total = total + part
        return total.to(hidden.dtype)

    def _there(
        self,
        hidden: torch.Tensor,
        own: torch.Tensor,
        streamed: torch.Tensor | None,
        weights: torch.Tensor,
        later: torch.Tensor | None,
    ) -> list[torch.Tensor]:
        """float32 [T, hidden] of the experts whose weights are on the device, and of those that are brought there: of the ids `own`,
        and of those of all that are `streamed`."""
        parts = ((self.resident, own), (self.streamed, streamed))
        if later is not None:
            weights = torch.stack((weights.masked_fill(later, 0), weights.masked_fill(~later, 0)))
        found = [part(hidden, ids, weights) for part, ids in parts if part is not None and ids is not None]
        if later is None:
            return found
        self.crossing.leave([part[1] for part in found])
        return [part[0] for part in found]


def deferred(weights: torch.Tensor, count: int) -> torch.Tensor:
    """Of every token the `count` slots of the smallest weights, of equal ones the last: bool as weights [T, K]; never all."""
    slots = weights.shape[-1]
    order = weights.sort(dim=-1, descending=True, stable=True).indices
    last = order[:, max(1, slots - count) :]
    return torch.zeros_like(weights, dtype=torch.bool).scatter_(-1, last, True)
