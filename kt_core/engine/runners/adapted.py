"""Adapters of models that run module by module: rows of a step that take one get its additions behind each module."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from kt_core.engine.step import Step
from kt_core.errors import BadData, Unsupported
from kt_core.kernels.training import LoraFactors, train
from kt_core.lora import Adapter
from kt_core.operators.experts import Experts
from kt_core.operators.hybrid import HybridExperts
from kt_core.programs.lora import expert_factors

Stretch = tuple[int, int, int]  # rows begin .. end - 1 take the adapter of that number
Pairs = dict[int, tuple[torch.Tensor, torch.Tensor]]  # by the adapter's number: A [rank, in], scale B [out, rank]
Factors = tuple[LoraFactors | None, LoraFactors, LoraFactors]


def stretches(step: Step) -> list[Stretch]:
    """Of a step whose sequences' rows follow each other."""
    ends = pairwise(step.batch.starts.tolist()) if step.adapters else ()
    return [(begin, end, number) for (begin, end), number in zip(ends, step.adapters, strict=False)]


class Adapted:
    """Adapters beside a model's own weights. The modules are hooked once the first adapter changes them."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._linears: dict[str, Pairs] = {}
        self._experts: dict[str, dict[int, Factors]] = {}
        self._now: list[Stretch] = []

    def adapt(self, number: int, adapter: Adapter) -> None:
        """Raises BadData for an adapter of another model, Unsupported for experts that are shared out with a device."""
        decoder = self._model.get_decoder()  # an image has other rows than the step's
        inside = {id(module) for module in decoder.modules()}
        modules = {name: m for name, m in self._model.named_modules() if id(m) in inside}
        missing = [name for name in (*adapter.linears, *adapter.experts) if name not in modules]
        if missing:
            raise BadData("lora.names", folder=adapter.folder, count=len(missing), first=missing[0])
        try:
            for name in adapter.experts:
                self._adapt_experts(number, name, modules[name], adapter)
            for name in adapter.linears:
                self._adapt(number, name, modules[name], adapter)
        except BaseException:
            self.forget(number)
            raise

    def forget(self, number: int) -> None:
        """No row takes it any more."""
        for pairs in self._linears.values():
            pairs.pop(number, None)
        for factors in self._experts.values():
            factors.pop(number, None)

    @contextmanager
    def taking(self, stretches: Sequence[Stretch]) -> Iterator[None]:
        """Rows of the forwards within the block take these adapters."""
        self._now = [stretch for stretch in stretches if stretch[2] >= 0]
        try:
            yield
        finally:
            self._now = []

    def _adapt(self, number: int, name: str, module: nn.Module, adapter: Adapter) -> None:
        pair = adapter.linears[name]
        own = getattr(module, "orig_module", module)
        shape = (getattr(own, "out_features", None), getattr(own, "in_features", None))
        if shape != (pair.b.shape[0], pair.a.shape[1]):
            reason = f"{list(pair.b.shape)} x {list(pair.a.shape)}"
            raise BadData("lora.fit", folder=adapter.folder, name=name, reason=reason)
        if name not in self._linears:
            self._linears[name] = {}
            module.register_forward_hook(self._add_to(self._linears[name]))
        weight = next(module.parameters(), torch.empty(0))
        self._linears[name][number] = (pair.a.to(weight.device), (pair.scale * pair.b).to(weight.device))

    def _add_to(self, pairs: Pairs) -> Any:
        def hook(module: nn.Module, given: tuple[torch.Tensor, ...], y: torch.Tensor) -> torch.Tensor:
            wanted = [stretch for stretch in self._now if stretch[2] in pairs]
            if not wanted:
                return y
            x, out = given[0].flatten(0, -2), y.flatten(0, -2).clone()
            for begin, end, number in wanted:
                a, b = pairs[number]
                out[begin:end] += (x[begin:end].float() @ a.T @ b.T).to(out.dtype)
            return out.view_as(y)

        return hook

    def _adapt_experts(self, number: int, name: str, module: nn.Module, adapter: Adapter) -> None:
        if isinstance(module, HybridExperts) or not isinstance(module, Experts):
            raise Unsupported("lora.shared_experts", folder=adapter.folder)
        factors = expert_factors(module.kernel, name, adapter.experts[name], adapter)
        if name not in self._experts:
            self._experts[name] = {}
            own: Any = module
            own.forward = self._experts_of(module, self._experts[name])
        self._experts[name][number] = factors

    def _experts_of(self, module: Experts, factors: dict[int, Factors]) -> Any:
        plain = module.forward

        def forward(hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            wanted = [stretch for stretch in self._now if stretch[2] in factors]
            if not wanted:
                return plain(hidden, ids, weights)
            rest = ids.clone()
            for begin, end, _ in wanted:
                rest[begin:end] = -1  # they contribute nothing
            y = plain(hidden, rest, weights)
            for begin, end, number in wanted:
                rows = slice(begin, end)
                with torch.no_grad():
                    own = hidden[rows], ids[rows], weights[rows]
                    y[rows] = train(module.kernel, *own, factors[number], as_stored=True)
            return y

        return forward
