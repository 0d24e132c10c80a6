"""The routed experts of one layer on the CPU."""

from collections.abc import Sequence

import torch

from kt_core import errors
from kt_core.kernels.native import Matrix, dtype_name, load, plain, weight
from kt_core.kernels.pool import Pool, native_pool

ACTIVATIONS = ("silu", "gelu_tanh")


class Experts:
    """y[t] = sum over t's experts of weight * down(act(gate x) * (up x)), experts in ascending order.

    `pool` is whose threads compute, None the process's own.
    Raises Unsupported for an unknown activation, ValueError for a size below 1.
    """

    def __init__(
        self,
        num_experts: int,
        hidden: int,
        intermediate: int,
        activation: str = "silu",
        tier: str | None = None,
        pool: Pool | None = None,
    ) -> None:
        if activation not in ACTIVATIONS:
            raise errors.Unsupported("kernels.activation", activation=activation, known=", ".join(ACTIVATIONS))
        self.num_experts = num_experts
        self.hidden = hidden
        self.intermediate = intermediate
        self._native = load().Experts(num_experts, hidden, intermediate, activation, tier or "", native_pool(pool))

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights of all loaded experts."""
        return int(self._native.nbytes)

    def load(self, index: int, gate: Matrix, up: Matrix, down: Matrix) -> None:
        """Pack expert `index`: gate and up [intermediate, hidden], down [hidden, intermediate].

        Formats may differ. Loading an index again replaces it. Raises ValueError for a wrong index or shape,
        Unsupported for a format without a kernel.
        """
        self._native.load(index, weight(gate), weight(up), weight(down))

    def load_all(self, experts: Sequence[tuple[Matrix, Matrix, Matrix]]) -> None:
        """Pack (gate, up, down) of the experts 0, 1, ...: faster than one after the other. Raises what load raises."""
        for index, parts in enumerate(experts):
            self.load(index, *parts)

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """x [T, hidden] float32 or bfloat16, ids [T, K] int64, weights [T, K] float32, to [T, hidden] of x's dtype.

        ids that are negative, too big or of experts not loaded contribute nothing. T and K may be 0.
        Raises ValueError for other shapes, dtypes or devices.
        """
        dtype = dtype_name(x)
        if x.dim() != 2 or x.shape[1] != self.hidden:
            raise ValueError(f"expected x [T, {self.hidden}], got {tuple(x.shape)}")
        if ids.dim() != 2 or ids.shape[0] != x.shape[0] or weights.shape != ids.shape:
            raise ValueError(
                f"expected ids and weights [{x.shape[0]}, K], got {tuple(ids.shape)} and {tuple(weights.shape)}"
            )
        if ids.dtype != torch.int64 or weights.dtype != torch.float32:
            raise ValueError(f"expected int64 ids and float32 weights, got {ids.dtype} and {weights.dtype}")
        if ids.device.type != "cpu" or weights.device.type != "cpu":
            raise ValueError("expected ids and weights on the CPU")
        x, ids, weights = plain(x), plain(ids), plain(weights)
        y = torch.empty_like(x)
        addresses = (x.data_ptr(), ids.data_ptr(), weights.data_ptr(), y.data_ptr())
        self._native.forward(*addresses, dtype, x.shape[0], ids.shape[1])
        return y
