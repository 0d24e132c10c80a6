"""How a router's logits become experts and weights."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from kt_core.kernels.routing import SCORES, Rule, route
from kt_core.programs.unfit import Unfit, only

ROWS = 64  # random ones that a router is asked with
BIASES = ("e_score_correction_bias", "expert_bias")
Found = tuple[Rule, torch.Tensor | None]  # and the bias of the choice


def read(module: nn.Module, block: nn.Module, config: Any) -> Found:
    """The rule that gives what the router of a block gives. Raises Unfit when none does.

    Its settings leave little open, and what they do is decided by asking it with random rows: names mean different
    things in different families, and some settings are ignored by some.
    """
    only(module, {"weight", "bias", *BIASES})
    weight = getattr(module, "weight", None)
    if weight is None or weight.dim() != 2:
        raise Unfit("programs.router", cls=type(module).__name__)
    generator = torch.Generator().manual_seed(1)
    # logits with a spread of about 2, whatever the weight's size
    scale = 2 / max(float(weight.float().norm(dim=1).mean()), 1e-30)
    x = torch.randn(ROWS, weight.shape[1], generator=generator) * scale
    lent = [buffer for name, buffer in block._buffers.items() if name in BIASES and buffer is not None]
    logits, weights, ids = module(x, *lent)  # some blocks keep the bias and hand it over
    given = _dense(ids, weights, weight.shape[0])
    bias = next(
        (getattr(module, name) for name in BIASES if getattr(module, name, None) is not None), *(lent or [None])
    )
    for rule in _candidates(module, config, ids.shape[-1]):
        for offset in (bias, None) if bias is not None else (None,):
            try:
                chosen = route(logits.float(), rule, offset)
            except ValueError:
                continue
            if torch.allclose(_dense(*chosen, weight.shape[0]), given, rtol=1e-5, atol=1e-7):
                return rule, offset
    raise Unfit("programs.router", cls=type(module).__name__)


def _dense(ids: torch.Tensor, weights: torch.Tensor, experts: int) -> torch.Tensor:
    """Weights [T, experts], zeros for experts that were not chosen."""
    return torch.zeros(ids.shape[0], experts).scatter(1, ids, weights.float())


def _setting(module: Any, config: Any, *names: str) -> Any:
    found = (getattr(holder, name, None) for holder in (module, config) for name in names)
    return next((value for value in found if value is not None), None)


def _candidates(module: Any, config: Any, slots: int) -> Iterator[Rule]:
    groups = int(_setting(module, config, "num_group", "n_group") or 1)
    top = int(_setting(module, config, "topk_group") or 1)
    factor = _setting(module, config, "routed_scaling_factor", "router_scaling_factor", "route_scale")
    scales = [float(factor), 1.0] if factor is not None else [1.0]
    ways: list[dict[str, Any]] = [{}]
    if groups > 1:
        grouped = [{"group_best": best, "outside": out} for best in (2, 1) for out in (float("-inf"), 0.0)]
        ways = [*({"groups": groups, "top_groups": top, **how} for how in grouped), {}]
    yield Rule(slots, "logit", softmax_last=True)
    for way in ways:
        for score in SCORES:
            for scale in scales:
                yield Rule(
                    slots, score, normalise=True, epsilon=1e-20 if score != "softmax" else 0.0, scale=scale, **way
                )
                yield Rule(slots, score, scale=scale, **way)
