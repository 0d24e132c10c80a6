"""The choice of experts, on the CPU."""

from dataclasses import dataclass

import torch

from kt_core.kernels.native import load, new_result, plain

SCORES = ("softmax", "sigmoid", "sqrtsoftplus", "logit")


@dataclass(frozen=True)
class Rule:
    """How a router turns logits into expert ids and weights. Each family is a set of these values.

    Scores are `score`(logits); those plus a bias decide the choice, weights are the scores without it. With
    groups > 1 the experts are that many equal runs and only top_groups of them, by the sum of their group_best
    (1 or 2) best, are chosen from; others count as `outside`. Then softmax_last takes the softmax over the chosen,
    or `normalise` divides by max(sum + epsilon, floor); at last weights are multiplied by `scale`.

    Mixtral, Qwen3-MoE with norm_topk_prob: normalise. gpt-oss: score "logit", softmax_last. DeepSeek-V3,
    GLM-4-MoE: score "sigmoid", groups, normalise, epsilon 1e-20, scale. DeepSeek-V2: groups with group_best 1 and
    outside 0. Mistral-4: groups with outside 0. Ernie-4.5: normalise with a floor. DeepSeek-V4: "sqrtsoftplus".
    Raises ValueError for values that no router can have.
    """

    slots: int
    score: str = "softmax"
    groups: int = 1
    top_groups: int = 1
    group_best: int = 2
    outside: float = float("-inf")
    softmax_last: bool = False
    normalise: bool = False
    epsilon: float = 0.0
    floor: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise ValueError(f"unknown score {self.score!r}. Known: {', '.join(SCORES)}")
        if self.slots < 1 or not 1 <= self.top_groups <= self.groups or self.group_best not in (1, 2):
            raise ValueError("expected slots >= 1, 1 <= top_groups <= groups and group_best 1 or 2")


def route(
    logits: torch.Tensor, rule: Rule, bias: torch.Tensor | None = None, tier: str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids int64 and weights float32, [T, slots] each, best first, for logits [T, experts] float32.

    Of equal scores the lower index comes first (torch.topk leaves that open); a NaN counts as the lowest, so ids
    are always valid and differ. Raises ValueError for other shapes or dtypes, or a rule that does not fit them.
    """
    if logits.dim() != 2 or logits.dtype != torch.float32 or logits.device.type != "cpu":
        raise ValueError(f"expected logits [T, experts] float32 on the CPU, got {tuple(logits.shape)} {logits.dtype}")
    tokens, experts = logits.shape
    group_best = rule.group_best if rule.groups > 1 else 1
    if rule.slots > experts or experts % rule.groups or experts // rule.groups < group_best:
        raise ValueError(f"{experts} experts do not allow {rule.slots} slots and {rule.groups} groups")
    if bias is not None:
        if bias.shape != (experts,):
            raise ValueError(f"expected bias [{experts}], got {tuple(bias.shape)}")
        bias = plain(bias.to("cpu", torch.float32))
    logits = plain(logits)
    ids = new_result(tokens, rule.slots, dtype=torch.int64)
    weights = new_result(tokens, rule.slots)
    load().route(
        logits.data_ptr(),
        (tokens, experts, rule.slots),
        (rule.score, 0 if bias is None else bias.data_ptr(), rule.groups, rule.top_groups, group_best, rule.outside),
        (rule.softmax_last, rule.normalise, rule.epsilon, rule.floor, rule.scale),
        ids.data_ptr(),
        weights.data_ptr(),
        tier or "",
    )
    return ids, weights
