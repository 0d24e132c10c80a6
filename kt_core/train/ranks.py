"""Several processes of a run: the first one has the experts, and the others' tokens travel to it and back.

Every process goes through the same layers in the same order, so transfers meet. They go by gloo, from and to the CPU.
"""

import os
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

OWNER = 0


def count() -> int:
    """Processes of the run, as its launcher says."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def first() -> bool:
    """Whether this process has the experts, tells and writes."""
    return int(os.environ.get("RANK", "0")) == OWNER


def wait() -> None:
    """Until all processes are here."""
    if count() > 1:
        dist.barrier(group=_group())


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A parameter of which each process may have a part; all of them must ask for it."""
    full: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


@cache
def _group() -> Any:
    return dist.new_group(backend="gloo")


def gather(
    rows: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[T, ...] of each process to [sum of T, ...] at the owner, on the CPU, and [0, ...] elsewhere. Differentiable, but for ids."""
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _Gather.apply(rows, weights, ids)
    return found


def scatter(rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The owner's rows back to their processes, each of which gets as many as `like` has, on its device. Differentiable."""
    found: torch.Tensor = _Scatter.apply(rows, like.detach())
    return found


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> Any:
        ctx.counts, ctx.device = _counts(len(rows)), rows.device
        gathered = tuple(_to_owner(t, ctx.counts) for t in (rows, weights, ids))
        ctx.mark_non_differentiable(gathered[2])
        return gathered

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return *(_from_owner(grad, ctx.counts).to(ctx.device) for grad in grads[:2]), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        ctx.counts = _counts(len(like))
        ctx.save_for_backward(rows)
        return _from_owner(rows, ctx.counts).to(like.device)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        # Where a layer is run again for its gradients, asking for what was saved is what runs it: here, in every process.
        _ = ctx.saved_tensors
        return _to_owner(grads[0], ctx.counts), None


def _counts(rows: int) -> list[int]:
    """Each process's number of rows."""
    found = [torch.zeros(1, dtype=torch.int64) for _ in range(count())]
    dist.all_gather(found, torch.tensor([rows]), group=_group())
    return [int(one) for one in found]


def _to_owner(rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
    rows = rows.detach().cpu().contiguous()
    if not first():
        dist.send(rows, OWNER, group=_group())
        return rows.new_empty(0, *rows.shape[1:])
    parts = [rows if rank == OWNER else rows.new_empty(n, *rows.shape[1:]) for rank, n in enumerate(counts)]
    for rank, part in enumerate(parts):
        if rank != OWNER:
            dist.recv(part, rank, group=_group())
    return torch.cat(parts)


def _from_owner(rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
    rows = rows.detach().cpu().contiguous()
    if not first():
        mine = rows.new_empty(counts[dist.get_rank()], *rows.shape[1:])
        dist.recv(mine, OWNER, group=_group())
        return mine
    parts = rows.split(counts)
    for rank, part in enumerate(parts):
        if rank != OWNER:
            dist.send(part.contiguous(), rank, group=_group())
    return parts[OWNER]
