"""Preference training: pairs of a better and a worse answer. DPO and IPO against the model as it was, ORPO and SimPO without.

The reference is the same model with its additions switched off, so there is one copy of every weight, experts included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import log_softmax, logsigmoid

from kt_core.errors import BadData
from kt_core.train.data import Pair
from kt_core.train.encode import IGNORED, Encoded, Report, collate, encode
from kt_core.train.lora import switched_off
from kt_core.train.settings import REFERRED
from kt_core.train.trainer import RunTrainer


@dataclass(frozen=True)
class EncodedPair:
    """Both conversations, with labels on their last answers alone."""

    chosen: Encoded
    rejected: Encoded


def encode_pairs(pairs: Sequence[Pair], tokenizer: Any, longest: int) -> tuple[list[EncodedPair], Report]:
    """Every pair, cut to `longest` tokens; those of which an answer is lost are dropped. Raises what `encode` raises."""
    both = [(encode(p.chosen, tokenizer, last=True), encode(p.rejected, tokenizer, last=True)) for p in pairs]
    cut = [tuple(Encoded(e.ids[:longest], e.labels[:longest]) for e in pair) for pair in both]
    kept = [EncodedPair(*pair) for pair in cut if all(any(n != IGNORED for n in e.labels[1:]) for e in pair)]
    if not kept:
        raise BadData("train.nothing_left", samples=len(pairs), longest=longest)
    sides = [e for pair in kept for e in (pair.chosen, pair.rejected)]
    tokens = sum(len(e.ids) for e in sides)
    report = Report(
        samples=len(pairs),
        dropped=len(pairs) - len(kept),
        cut=sum(any(len(e.ids) > longest for e in pair) for pair in both),
        longest=max(len(e.ids) for pair in both for e in pair),
        rows=len(kept),
        tokens=tokens,
        kept=sum(label != IGNORED for e in sides for label in e.labels) / tokens,
    )
    return kept, report


def collate_pairs(pairs: Sequence[EncodedPair], filler: int) -> dict[str, torch.Tensor]:
    """All better answers, then all worse ones, as one padded batch."""
    return collate([*(p.chosen for p in pairs), *(p.rejected for p in pairs)], filler)


class PairTrainer(RunTrainer):
    """`beta`, `gamma` and `kind` ("sigmoid", "ipo", "orpo", "simpo") as the papers have them."""

    def __init__(self, *args: Any, beta: float, gamma: float, kind: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.beta = beta
        self.gamma = gamma
        self.kind = kind
        self.model_accepts_loss_kwargs = False  # losses are means of their batch

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        mean = self.kind != "sigmoid"
        policy = answer_likelihood(model, inputs, mean)
        if self.kind in REFERRED:
            with torch.no_grad(), switched_off(model):
                reference = answer_likelihood(model, inputs, mean)
            policy = policy - reference
        chosen, rejected = policy.chunk(2)
        loss = preference_loss(chosen, rejected, self.beta, self.gamma, self.kind)
        return (loss, {}) if return_outputs else loss


def preference_loss(chosen: torch.Tensor, rejected: torch.Tensor, beta: float, gamma: float, kind: str) -> torch.Tensor:
    """The mean loss of pairs. chosen, rejected: log likelihoods of the answers; for sigmoid and ipo what they gained; by the
    token for all but sigmoid.

    orpo: the better answer's own loss, and beta times that of the odds; simpo: gamma is a margin in units of reward.
    """
    margin = chosen - rejected
    if kind == "ipo":
        return ((margin - 1 / (2 * beta)) ** 2).mean()
    if kind == "orpo":
        odds = margin - torch.log1p(-chosen.exp()) + torch.log1p(-rejected.exp())
        return (-chosen - beta * logsigmoid(odds)).mean()
    return -logsigmoid(beta * margin - (gamma if kind == "simpo" else 0.0)).mean()


def answer_likelihood(model: nn.Module, inputs: dict[str, Any], mean: bool) -> torch.Tensor:
    """Log likelihood of each row's labelled tokens: their sum, or mean. [rows]"""
    targets = inputs["labels"][:, 1:]
    asked = (targets != IGNORED).any(0).nonzero().squeeze(1)
    targets = targets[:, asked]
    logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[:, asked]
    given = targets != IGNORED
    each = log_softmax(logits.float(), -1).gather(2, targets.clamp(min=0)[..., None]).squeeze(2) * given
    total = each.sum(1)
    return total / given.sum(1) if mean else total
