"""The loss of answers by parts of rows, so that no more than a part's logits are ever there; and tables that stay on the host."""

from typing import Any

import torch
from torch import nn

from kt_core.train.encode import IGNORED

ROWS = 256  # of logits at once
# Of a configuration: what changes logits behind the output matrix.
SCALED = ("final_logit_softcapping", "logit_scale", "logits_scaling", "output_router_logits")


def splits(model: Any) -> bool:
    """Whether the loss is that of the output matrix's products as they are, and that matrix is not trained."""
    config: Any = getattr(model, "config", None)
    head: Any = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if type(head) is not nn.Linear or any(p.requires_grad for p in head.parameters()):
        return False
    return not any(getattr(config, name, None) for name in SCALED) and model.base_model is not model


def loss(model: Any, inputs: dict[str, Any], total: Any = None) -> torch.Tensor:
    """As the model's own loss on `labels`, for a model that `splits`: the mean over its answers' tokens, or their sum by `total`."""
    hidden = model.base_model(**{k: v for k, v in inputs.items() if k != "labels"}).last_hidden_state
    targets = nn.functional.pad(inputs["labels"], (0, 1), value=IGNORED)[:, 1:]
    asked = targets != IGNORED
    head = model.get_output_embeddings()
    count = asked.sum().clamp(min=1) if total is None else total
    found: torch.Tensor = _Loss.apply(hidden[asked], head.weight, head.bias, targets[asked])
    return found / count


class _Loss(torch.autograd.Function):
    """Sum over rows; the gradient is made with it, where the logits are there anyway."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: Any, targets: torch.Tensor) -> Any:
        total = torch.zeros((), device=hidden.device)
        back = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        for begin in range(0, len(hidden), ROWS):
            rows, wanted = hidden[begin : begin + ROWS], targets[begin : begin + ROWS, None]
            logits = nn.functional.linear(rows, weight, bias).float()
            each = logits.logsumexp(1, keepdim=True)
            total += (each - logits.gather(1, wanted)).sum()
            if back is not None:
                shares = logits.sub_(each).exp_()
                shares.scatter_add_(1, wanted, torch.full_like(each, -1.0))
                back[begin : begin + ROWS] = shares.to(weight.dtype) @ weight
        ctx.back = back
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.back * grads[0].to(ctx.back.dtype), None, None, None


class HostTable(nn.Module):
    """An embedding that is not trained: what a step needs of it is a few rows."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.weight = table.weight

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return self

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(ids.cpu(), self.weight).to(ids.device)


def keep_table(model: Any) -> None:
    """Leave the embedding on the host when the model goes to a device, where it is a plain one of its own."""
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    if (
        type(table) is nn.Embedding
        and not table.weight.requires_grad
        and getattr(head, "weight", None) is not table.weight
    ):
        model.set_input_embeddings(HostTable(table))
