"""AdamW over torch's parameters and, natively, over the weights of experts."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from kt_core.kernels import training
from kt_core.train.lora import TrainedExperts


class AdamW(torch.optim.AdamW):
    """torch's AdamW; masters of `experts` are stepped in one pass with the weights that products read.

    What is kept of each parameter, and so a checkpoint of it, is laid out as torch's own.
    """

    def __init__(self, params: Any, experts: Iterable[TrainedExperts], **settings: Any) -> None:
        super().__init__(params, fused=True, **settings)
        self.experts = [module for module in experts if module.masters()]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        groups = {id(p): group for group in self.param_groups for p in group["params"]}
        for module in self.experts:
            self._step(module, groups)
        return super().step(closure)  # what was stepped above has no gradient any more

    def _step(self, module: TrainedExperts, groups: dict[int, dict[str, Any]]) -> None:
        masters = module.masters()
        assert masters is not None
        if masters[1].grad is None:
            return
        for master in masters:
            if master is not None and not self.state[master]:
                self.state[master] = {
                    "step": torch.zeros(()), "exp_avg": torch.zeros_like(master), "exp_avg_sq": torch.zeros_like(master)
                }  # fmt: skip
        kept: list[Any] = [None if master is None else self.state[master] for master in masters]
        for state in kept:
            if state is not None:
                state["step"] += 1
        group, number = groups[id(masters[1])], int(kept[1]["step"])
        how = training.AdamW(float(group["lr"]), number, group["betas"], group["eps"], group["weight_decay"])
        means = [None if state is None else (state["exp_avg"], state["exp_avg_sq"]) for state in kept]
        training.step(module.kernel, masters, how, [None if m is None else m.grad for m in masters], means)
        for master in masters:
            if master is not None:
                master.grad = None
