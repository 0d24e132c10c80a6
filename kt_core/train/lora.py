"""Low-rank additions to a model that kt has built: to linear layers in torch, to experts in the native kernels.

A layer is adapted because it is found in the model, by what it is, and never by a name that a library may understand in
another way; what is adapted is counted, and a target that is missing, or there in some layers only, is an error.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from kt_core.device import Device, open_device
from kt_core.errors import Unsupported, UsageError
from kt_core.kernels import UNGATED
from kt_core.kernels.training import LoraFactors, Masters, Visit, train
from kt_core.operators.experts import Experts
from kt_core.operators.packed import Form
from kt_core.operators.resident import biases_of, decoded
from kt_core.train import ranks
from kt_core.train.shares import Factors, Gradients, Share
from kt_core.train.streams import Layer, Streams
from kt_core.weights import Matrix, Weights, decode_matrix

ALL, EXPERTS = "all", "experts"
PARTS = ("gate", "up", "down")
VISITS = 4  # that are kept of a layer: more ways forward before one back are none of training
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
    """Experts in their stored format, with low-rank additions once `adapt` was called; or, after `thaw`, trained themselves.

    The first `resident` of each layer lie on `device`, the next `streamed` are brought there for each pass, once `share` was
    called; the CPU computes the others meanwhile.
    """

    def __init__(
        self,
        key: str,
        weights: Weights,
        config: Any,
        orig_module: nn.Module,
        device: str = "",
        resident: int = 0,
        streamed: int = 0,
    ) -> None:
        super().__init__(key, weights, config, orig_module)
        self.device = open_device(device) if device else None
        self.resident, self.streamed = resident, streamed
        self.shares: list[Share] = []
        self.revisited = False  # layers are run again on the way back, which need not compute again what is kept
        self._visits: list[Visit] = []

    def adapt(self, shape: Shape) -> None:
        """Adds A [experts, rank, in] and B [experts, out, rank] of each projection, float32, B 0."""
        self.shape, self.on = shape, True
        pinned = self.device is not None and self.device.kind != "cpu"  # copies then need no help of the CPU
        kernel = self.kernel
        hidden, inner = kernel.hidden, kernel.intermediate
        for part, out, cols in zip(PARTS, (inner, inner, hidden), (hidden, hidden, inner), strict=True):
            if part == "gate" and kernel.activation in UNGATED:
                continue
            a = torch.empty(kernel.num_experts, shape.rank, cols, pin_memory=pinned).uniform_(-1, 1)
            b = torch.zeros(kernel.num_experts, out, shape.rank, pin_memory=pinned)
            self.register_parameter(f"lora_{part}_A", nn.Parameter(a.div_(math.sqrt(cols))))
            self.register_parameter(f"lora_{part}_B", nn.Parameter(b))

    keep = True  # activations, where the experts are trained themselves

    def thaw(self, keep: bool = True) -> None:
        """Keep float32 copies of the weights, which are trained; the kernel's are rounded from them."""
        for part in PARTS:
            if part == "gate" and self.kernel.activation in UNGATED:
                continue
            stored = [self.weights.expert(self.key, i, part) for i in range(self.kernel.num_experts)]
            whole = torch.empty(len(stored), stored[0].rows, stored[0].cols)
            for index, matrix in enumerate(stored):
                whole[index] = torch.from_numpy(decode_matrix(matrix))
            self.register_parameter(f"base_{part}", nn.Parameter(whole))
        self.keep = keep
        self.weights.forget_pages()

    def masters(self) -> Masters | None:
        """The float32 gate, up and down; None unless they are trained."""
        gate, up, down = (self._parameters.get(f"base_{part}") for part in PARTS)
        return None if up is None or down is None else (gate, up, down)

    def fused(self, name: str) -> torch.Tensor:
        """What transformers calls `name` ("gate_up_proj", "up_proj", "down_proj") of the trained weights, as it lays it out."""
        gate, up, down = (self._parameters.get(f"base_{part}") for part in PARTS)
        assert up is not None and down is not None
        whole = down if name == "down_proj" else up
        if name == "gate_up_proj" and gate is not None:
            joined = torch.cat((gate, up), 1) if self.is_concatenated else torch.stack((gate, up), 2).flatten(1, 2)
            whole = joined.data
        return whole.data.transpose(1, 2) if self.is_transposed else whole.data

    def factors(self, part: str) -> LoraFactors | None:
        """A and B of "gate", "up" or "down"; None where there are none."""
        a = self._parameters.get(f"lora_{part}_A")
        b = self._parameters.get(f"lora_{part}_B")
        return None if a is None or b is None else LoraFactors(a.cpu(), b.cpu())

    def load(self) -> None:
        """Of several processes one has the weights; the others know what they are."""
        if self.device is not None:
            self._load_shared(self.device)
            return
        if ranks.first():
            super().load()
            return
        self.num_experts = self.orig_module.num_experts
        for index in range(self.weights.experts(self.key)):
            for part in PARTS if self.orig_module.has_gate else PARTS[1:]:
                self.weights.expert(self.key, index, part)
        self._biases(self.orig_module, *self._sizes())
        self.kernel = self._kernel()

    def _load_shared(self, device: Device) -> None:
        experts = self._stored()
        self.kernel = self._kernel()
        self.resident = min(self.resident, len(experts))
        self.streamed = min(self.streamed, len(experts) - self.resident)
        if self.resident < len(experts):
            self.kernel.load_all(experts[self.resident :], self.resident)
        biases = biases_of(self.orig_module, experts, device)
        self._on_device = decoded(self.orig_module, experts[: self.resident], device) if self.resident else None
        self._device_biases = biases

    def share(self, gradients: Gradients, streams: Streams, keep: bool = False) -> None:
        """Let the device compute its part: gradients come back by `gradients`, weights that do not lie there by `streams`; `keep` as
        Share has it."""
        assert self.device is not None
        begin = 0
        for count, weights in ((self.resident, self._kept), (self.streamed, partial(self._brought, streams))):
            if not count:
                continue
            numbers = range(begin, begin + count)
            biases = self._device_biases and (
                self._device_biases[0][begin:][:count],
                self._device_biases[1][begin:][:count],
            )
            self.shares.append(
                Share(self.orig_module, self.device, begin, count, weights(numbers), gradients, biases, keep)
            )
            begin += count

    def _kept(self, numbers: range) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
        assert self._on_device is not None
        values = self._on_device.values
        return lambda: values

    def _brought(self, streams: Streams, numbers: range) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
        form = Form(self.orig_module, self.kernel, numbers.start)
        for number in numbers:
            form.check(self.kernel.places(number))
        layer = Layer(form, self.kernel, numbers)
        streams.add(layer)
        return lambda: streams.weights(layer.number)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return self  # what is trained stays on the CPU, in float32, wherever the model goes

    def forward(self, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        if self.shares:
            return self._shared(hidden, ids, weights)
        if ranks.count() == 1:
            return self._computed(hidden.cpu(), ids.cpu(), weights.cpu()).to(hidden.device)
        rows, shares, places = ranks.gather(hidden, weights.float(), ids)
        if ranks.first():
            return ranks.scatter(self._computed(rows, places, shares), hidden)
        # Of nothing, but with all that has a gradient in it: transfers back must meet as those there do.
        nothing = sum((p.flatten()[:1].sum().cpu() for p in self._parameters.values() if p is not None), shares.sum())
        return ranks.scatter(rows + (0 * nothing).to(rows.dtype), hidden)

    def _shared(self, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """What the CPU needs leaves before the device is given its work, which it does while the CPU computes. Passes back go the
        other way round: the result that came last is the first to go."""
        here = self.resident + self.streamed
        left = here < self.kernel.num_experts
        own = (hidden.cpu(), ids.cpu(), weights.cpu()) if left else None
        shape: Shape | None = self.__dict__.get("shape")
        factors: Factors = (None,) * 6
        if shape is not None and self.on:
            names = (f"lora_{part}_{side}" for part in PARTS for side in "AB")
            factors = tuple(self._parameters.get(name) for name in names)
        scale = shape.scale if shape else 1.0
        total = sum(share(hidden, ids, weights, factors, scale) for share in self.shares)
        if own is not None:
            x, numbers, routed = own
            rest = self._computed(x, numbers.masked_fill(numbers < here, -1), routed)
            total = total + rest.to(hidden.device)
        assert isinstance(total, torch.Tensor)
        return total.to(hidden.dtype)

    def _computed(self, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        if (masters := self.masters()) is not None:
            visit = self._visit() if self.keep else None
            return train(self.kernel, hidden, ids, weights, keep=self.keep, masters=masters, visit=visit)
        shape: Shape | None = self.__dict__.get("shape")
        up, down = self.factors("up"), self.factors("down")
        if shape is None or not self.on or up is None or down is None:
            return train(self.kernel, hidden, ids, weights)
        visit = self._visit() if shape.keep else None
        lora = self.factors("gate"), up, down
        return train(self.kernel, hidden, ids, weights, lora, shape.scale, shape.keep, visit=visit)

    def _visit(self) -> Visit | None:
        """Of a way forward that will be gone again, or, within the way back, of the last one that was."""
        if not self.revisited or ranks.count() > 1 or not torch.is_grad_enabled():
            return None
        if torch._C._current_graph_task_id() >= 0:
            return self._visits.pop() if self._visits else None
        self._visits = [*self._visits, Visit()][-VISITS:]
        return self._visits[-1]

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
