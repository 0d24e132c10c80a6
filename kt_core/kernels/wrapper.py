"""One layer's routed experts for programs that bring their own model, tensors on the CPU or on a GPU.

The arguments are those of the KTransformers project's class of this name, so that a program written for it runs.
"""

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import torch

from kt_core import errors
from kt_core.kernels.experts import Experts, check_mask
from kt_core.kernels.methods import METHODS
from kt_core.kernels.pool import shared_pool, thread_groups
from kt_core.kernels.sources import Source, from_checkpoint, from_tensors
from kt_core.kernels.transfer import Inputs, receive, send
from kt_core.weights import Weights

_TRAINING = {
    "lora_rank",
    "lora_alpha",
    "lora_dropout",
    "max_cache_depth",
    "group_size",
    "zero_point",
    "full_weight_grad",
}


class KTMoEWrapper:
    """The routed experts of layer `layer_idx`, those in `gpu_experts_mask` excepted: y = sum of weight * expert(x).

    num_experts, num_experts_per_tok, hidden_size (H), moe_intermediate_size (I): the layer's sizes.
    gpu_experts_mask: [num_experts], True: computed elsewhere and left out here. It is copied to the attribute of that
    name, a bool tensor on the CPU; written in place, it counts from the next call on. None: the first num_gpu_experts.
    cpuinfer_threads: threads, shared out evenly over threadpool_count groups, one for each of numa_nodes (None: the
    machine's first nodes). Objects that ask for the same threads share them; others have threads of their own.
    weight_path: a GGUF file, a checkpoint folder, or an open checkpoint (kt_core.weights.open_weights), which spares
    opening it for each layer. method: a name in METHODS. chunked_prefill_size bounds nothing: any batch is taken.
    swiglu_limit > 0: gate clamped from above and up on both sides; swiglu_alpha > 0: gpt-oss's activation, too.

    max_deferred_experts_per_token: of each token's experts, that many of the smallest weights are computed after
    sync_forward has returned the others, while the caller goes on. Their sum is added to the output of the layer whose
    `previous` this one is; where there is none, nothing is deferred. So no contribution is ever lost: the last layer of
    a stack, or one alone, computes all its experts, and layers without experts may lie in between.

    Raises ValueError for a wrong argument, Unsupported for mode "sft" and for cpu_save.
    """

    _capture_sizes: ClassVar[tuple[int, ...]] = ()

    def __init__(
        self,
        layer_idx: int,
        num_experts: int,
        num_experts_per_tok: int,
        hidden_size: int,
        moe_intermediate_size: int,
        gpu_experts_mask: torch.Tensor | None = None,
        cpuinfer_threads: int = 1,
        threadpool_count: int = 1,
        weight_path: str | Path | Weights = "",
        chunked_prefill_size: int = 512,
        cpu_save: bool = False,
        max_deferred_experts_per_token: int | None = None,
        method: str = "AMXINT4",
        numa_nodes: Sequence[int] | None = None,
        mode: str = "inference",
        num_gpu_experts: int = 0,
        *,
        swiglu_limit: float = 0.0,
        swiglu_alpha: float = 0.0,
        previous: "KTMoEWrapper | None" = None,
        **training: Any,
    ) -> None:
        _check_mode(mode, method, cpu_save, training)
        sizes = (num_experts, num_experts_per_tok, hidden_size, moe_intermediate_size, chunked_prefill_size)
        deferred = max_deferred_experts_per_token or 0
        _check_sizes(layer_idx, sizes, num_gpu_experts, deferred)
        self.layer_idx = layer_idx
        self.num_experts = num_experts
        self.num_experts_per_tok = num_experts_per_tok
        self.hidden_size: int = hidden_size
        self.moe_intermediate_size = moe_intermediate_size
        self.gpu_experts_mask = _mask(gpu_experts_mask, num_experts, num_gpu_experts)
        self.max_deferred_experts_per_token = deferred
        self.method = method
        self.weight_path = weight_path
        self.previous = previous
        if previous is not None and previous.hidden_size != hidden_size:
            raise ValueError(f"previous has hidden_size {previous.hidden_size}, expected {hidden_size}")
        self._follower: Callable[[], KTMoEWrapper | None] = lambda: None
        if previous is not None:
            previous._follower = weakref.ref(self)
        self.pool = shared_pool(thread_groups(cpuinfer_threads, threadpool_count, numa_nodes))
        self._kernel = Experts(
            num_experts,
            hidden_size,
            moe_intermediate_size,
            "swiglu_oai" if swiglu_alpha else "silu",
            swiglu_limit or None,
            swiglu_alpha or 1.0,
            elsewhere=self.gpu_experts_mask,
            pool=self.pool,
        )
        self._loaded = False
        self._worker = ThreadPoolExecutor(1, f"kt-layer-{layer_idx}")
        self._submitted: Future[torch.Tensor] | None = None
        self._deferred: Future[torch.Tensor] | None = None

    def load_weights(self, physical_to_logical_map: torch.Tensor | None = None) -> None:
        """Read the layer from weight_path; expert p gets the checkpoint's expert map[p], or p for None.

        Raises ValueError for a map [num_experts] of integers that does not fit, or sizes that are not the checkpoint's,
        and what opening a checkpoint raises: NotFound, BadData, Unsupported.
        """
        if not self.weight_path:
            raise ValueError("no weight_path was given; use load_weights_from_tensors, or construct with one")
        self._load(from_checkpoint(self.weight_path, self.layer_idx, METHODS[self.method]), physical_to_logical_map)

    def load_weights_from_tensors(
        self,
        gate_proj: torch.Tensor,
        up_proj: torch.Tensor,
        down_proj: torch.Tensor,
        physical_to_logical_map: torch.Tensor | None = None,
    ) -> None:
        """Round gate and up [E, I, H] and down [E, H, I] (bfloat16, float16, float32) to the method's format.

        Expert p gets number map[p] of them, or p for None. Raises ValueError for shapes, dtypes or a map that do not
        fit, Unsupported for a method that only reads what a checkpoint has.
        """
        self._load(from_tensors(gate_proj, up_proj, down_proj, METHODS[self.method]), physical_to_logical_map)

    def submit_forward(
        self,
        hidden_states: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor,
        cuda_stream: Any = None,
    ) -> None:
        """Begin to compute hidden_states [T, H] (bfloat16, float32) with topk_ids and topk_weights [T, k], and return.

        All on the CPU, or all on one GPU; there the work follows cuda_stream (a raw handle or a torch.cuda.Stream; None:
        the current one). Ids are integers, weights floats; an id below 0 is no expert. The tensors may be written to
        again at once (on a GPU: by later work of that stream).
        Raises ValueError for other shapes, dtypes or devices, RuntimeError before weights are loaded, after another
        submit_forward without its sync_forward, and while a deferred contribution of an earlier batch was not added.
        """
        batch = self._begin(hidden_states, topk_ids, topk_weights, cuda_stream)
        self._submitted = self._worker.submit(batch.now)
        if batch.defer:
            self._deferred = self._worker.submit(batch.later)

    def sync_forward(self, hidden_states: torch.Tensor, cuda_stream: Any = None) -> torch.Tensor:
        """The output [T, H] of what submit_forward began, in hidden_states' dtype and on its device.

        What the layer before deferred is added. Raises the error of the computation, ValueError for an id beyond the
        experts, RuntimeError without a submit_forward.
        """
        if self._submitted is None:
            raise RuntimeError(f"layer {self.layer_idx} has nothing submitted: call submit_forward first")
        submitted, self._submitted = self._submitted, None
        return self._finish(submitted.result, hidden_states, cuda_stream)

    def forward(
        self,
        hidden_states: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor,
        cuda_stream: Any = None,
    ) -> torch.Tensor:
        """submit_forward and sync_forward, on the caller's thread but for what is deferred."""
        batch = self._begin(hidden_states, topk_ids, topk_weights, cuda_stream)
        output = self._finish(batch.now, hidden_states, cuda_stream)
        if batch.defer:
            self._deferred = self._worker.submit(batch.later)
        return output

    def take_deferred(self) -> torch.Tensor | None:
        """What this layer deferred, float32 [T, H] on the CPU, once; None when there is nothing.

        The layer whose `previous` this one is calls it; a program that adds contributions itself may.
        """
        deferred, self._deferred = self._deferred, None
        return None if deferred is None else deferred.result()

    def discard_deferred(self) -> None:
        """Forget what was deferred, after a batch that was broken off."""
        self._deferred = None

    @classmethod
    def set_capture_batch_sizes(cls, capture_bs: Sequence[int]) -> None:
        """Remember the batch sizes of CUDA graphs; nothing depends on them, as host memory comes from PyTorch's cache."""
        cls._capture_sizes = tuple(capture_bs)

    @classmethod
    def get_capture_batch_sizes(cls) -> list[int]:
        """What set_capture_batch_sizes was given last, at first nothing."""
        return list(cls._capture_sizes)

    @staticmethod
    def clear_buffer_cache() -> None:
        """Give pinned host memory that is not in use back to the system."""
        if torch.cuda.is_available():
            torch._C._host_emptyCache()

    def _begin(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, stream: Any) -> "_Batch":
        if not self._loaded:
            raise RuntimeError(f"layer {self.layer_idx} has no weights yet: call load_weights first")
        if self._submitted is not None:
            raise RuntimeError(f"layer {self.layer_idx} is at work already: call sync_forward first")
        if self._deferred is not None:
            raise RuntimeError(
                f"a contribution that layer {self.layer_idx} deferred was never added: run the layer whose `previous` it "
                "is, or call discard_deferred after a batch that was broken off"
            )
        _check_inputs(x, ids, weights, self.hidden_size, self.num_experts_per_tok)
        defer = self.max_deferred_experts_per_token if self._follower() else 0
        return _Batch(self._kernel, receive(x, ids, weights, stream), defer)

    def _finish(self, compute: Callable[[], torch.Tensor], x: torch.Tensor, stream: Any) -> torch.Tensor:
        try:
            result = compute()
            before = self.previous.take_deferred() if self.previous else None
            if before is not None and before.shape != result.shape:
                raise ValueError(f"the layer before deferred {tuple(before.shape)}, got {tuple(result.shape)}")
        except BaseException:
            self.discard_deferred()
            raise
        return send(result if before is None else result.add_(before), x, stream)

    def _load(self, source: Source, physical_to_logical: torch.Tensor | None) -> None:
        count, expert = source
        numbers = _expert_numbers(physical_to_logical, self.num_experts, count)
        self._loaded = False
        for index, number in enumerate(numbers):
            gate, up, down = expert(number)
            self._kernel.load(index, gate, up, down)
        self._loaded = True


class _Batch:
    """A batch on its way: now() the experts of the largest weights of each token, then later() the other `defer`."""

    def __init__(self, kernel: Experts, inputs: Callable[[], Inputs], defer: int) -> None:
        self._kernel = kernel
        self._inputs = inputs
        self.defer = defer

    def now(self) -> torch.Tensor:
        self._x, ids, self._weights = self._inputs()
        if ids.numel() and int(ids.max()) >= self._kernel.num_experts:
            raise ValueError(f"expected ids below {self._kernel.num_experts}, got {int(ids.max())}")
        if self.defer:
            smallest = self._weights.argsort(dim=1, stable=True)[:, : self.defer]
            self._later = torch.full_like(ids, -1).scatter_(1, smallest, ids.gather(1, smallest))
            ids = ids.scatter(1, smallest, -1)
        return self._kernel(self._x, ids, self._weights)

    def later(self) -> torch.Tensor:
        return self._kernel(self._x, self._later, self._weights)


def _check_mode(mode: str, method: str, cpu_save: bool, training: dict[str, Any]) -> None:
    if mode == "sft":
        raise errors.Unsupported("kernels.sft")
    if mode != "inference":
        raise ValueError(f"expected mode 'inference' or 'sft', got {mode!r}")
    if unknown := training.keys() - _TRAINING:
        raise TypeError(f"unknown arguments: {', '.join(sorted(unknown))}")
    if method not in METHODS:
        raise ValueError(f"expected one of {', '.join(METHODS)} as method, got {method!r}")
    if cpu_save:
        raise errors.Unsupported("kernels.cpu_save")


def _check_sizes(layer: int, sizes: tuple[int, ...], num_gpu_experts: int, deferred: int) -> None:
    numbers = (layer, num_gpu_experts, deferred, *sizes)
    if any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
        raise ValueError(f"expected integers as sizes, got {numbers}")
    experts, per_token = sizes[:2]
    if min(sizes) < 1 or layer < 0:
        raise ValueError(f"expected sizes of at least 1 and a layer of at least 0, got {sizes} and {layer}")
    for name, number, most in (
        ("num_experts_per_tok", per_token, experts),
        ("num_gpu_experts", num_gpu_experts, experts),
        ("max_deferred_experts_per_token", deferred, per_token),
    ):
        if not 0 <= number <= most:
            raise ValueError(f"expected {name} of 0 to {most}, got {number}")


def _mask(mask: torch.Tensor | None, num_experts: int, num_gpu_experts: int) -> torch.Tensor:
    if mask is None:
        return torch.arange(num_experts) < num_gpu_experts
    copy = mask.detach().to("cpu", copy=True).contiguous()
    check_mask(copy, num_experts)
    return copy.bool()


def _expert_numbers(numbers: torch.Tensor | None, num_experts: int, count: int) -> list[int]:
    """Which stored expert each one of the layer is."""
    if numbers is None:
        numbers = torch.arange(num_experts)
    if numbers.shape != (num_experts,) or numbers.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"expected a map [{num_experts}] of int64 or int32, got {tuple(numbers.shape)} {numbers.dtype}"
        )
    plain: list[int] = numbers.tolist()
    if not all(0 <= number < count for number in plain):
        raise ValueError(
            f"expected experts 0 to {count - 1} of those that are stored, got {min(plain)} to {max(plain)}"
        )
    return plain


def _check_inputs(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, hidden: int, per_token: int) -> None:
    if x.dim() != 2 or x.shape[1] != hidden:
        raise ValueError(f"expected hidden_states [T, {hidden}], got {tuple(x.shape)}")
    if ids.shape != (x.shape[0], per_token) or weights.shape != ids.shape:
        raise ValueError(
            f"expected topk_ids and topk_weights [{x.shape[0]}, {per_token}], "
            f"got {tuple(ids.shape)} and {tuple(weights.shape)}"
        )
    if x.dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"expected hidden_states in bfloat16 or float32, got {x.dtype}")
    if ids.dtype not in (torch.int64, torch.int32) or not weights.is_floating_point():
        raise ValueError(
            f"expected topk_ids in int64 or int32 and floats as topk_weights, got {ids.dtype} and {weights.dtype}"
        )
    if {x.device, ids.device, weights.device} != {x.device} or x.device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"expected tensors on the CPU or on one GPU, got {x.device}, {ids.device} and {weights.device}"
        )
