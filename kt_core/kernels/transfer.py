"""A batch's way to the CPU and back: a copy, or over pinned memory in the order of a CUDA stream."""

from collections.abc import Callable
from typing import Any

import torch

from kt_core import errors

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # x float32, ids int64, weights float32
_DTYPES = (torch.float32, torch.int64, torch.float32)


def receive(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, stream: Any) -> Callable[[], Inputs]:
    """Copies of the tensors as they are at this point of the stream; the result waits for them, on any thread.

    Raises Unsupported while the stream is captured into a graph, which would replay the copies without the experts.
    """
    tensors = (x.detach(), ids, weights.detach())
    if x.device.type == "cpu":
        x, ids, weights = (tensor.to(dtype, copy=True) for tensor, dtype in zip(tensors, _DTYPES, strict=True))
        return lambda: (x, ids, weights)
    with _on(stream, x.device):
        if torch.cuda.is_current_stream_capturing():
            raise errors.Unsupported("kernels.capture")
        host = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True) for t in tensors]
        arrived = torch.cuda.Event()
        arrived.record()

    def wait() -> Inputs:
        arrived.synchronize()
        x, ids, weights = (tensor.to(dtype) for tensor, dtype in zip(host, _DTYPES, strict=True))
        return x, ids, weights

    return wait


def send(result: torch.Tensor, like: torch.Tensor, stream: Any) -> torch.Tensor:
    """float32 `result` in the dtype and on the device of `like`; on a GPU it is there for later work of the stream."""
    if like.device.type == "cpu":
        return result.to(like.dtype)
    with _on(stream, like.device):
        return result.to(like.dtype).pin_memory().to(like.device, non_blocking=True)


def _on(stream: Any, device: torch.device) -> Any:
    """stream: a raw handle, a torch.cuda.Stream, or None for the device's current one."""
    if stream is None:
        return torch.cuda.device(device)
    if isinstance(stream, int):
        stream = torch.cuda.ExternalStream(stream, device=device)
    return torch.cuda.stream(stream)
