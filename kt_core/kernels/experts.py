"""The routed experts of one layer on the CPU."""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kt_core import errors
from kt_core.kernels.native import dtype_name, load, new_result, plain, weight
from kt_core.kernels.pool import Pool, native_pool
from kt_core.weights import Matrix

ACTIVATIONS = ("silu", "gelu_tanh", "swiglu_oai", "relu2")
UNGATED = ("relu2",)


@dataclass(frozen=True)
class Packed:
    """A matrix of a place: `rows` of `cols` in panels of 16 rows, the first `offset` bytes into it, then `stride` apart."""

    offset: int
    format: str
    rows: int
    cols: int
    panel_bytes: int
    stride: int


@dataclass(frozen=True)
class Place:
    """Where some rows of an expert's matrices lie, packed: `nbytes` from `address` on. Without a gate, gate is up."""

    address: int
    nbytes: int
    biased: bool
    gate: Packed
    up: Packed
    down: Packed

    @property
    def form(self) -> tuple[object, ...]:
        """What is the same where only the address differs."""
        return self.nbytes, self.biased, self.gate, self.up, self.down


class Experts:
    """y[t] = sum over t's experts of weight * down(h), experts in ascending order.

    h of g = gate(x) and u = up(x), g clamped to at most `limit` and u to -limit .. limit (None: not at all):
    "silu": silu(g) u (with a limit: DeepSeek-V4); "gelu_tanh": gelu(g) u, by tanh; "swiglu_oai":
    g sigmoid(alpha g) (u + 1) (gpt-oss, MiniMax-M3); "relu2": relu(u)^2, without a gate (Nemotron-H).

    `elsewhere` [num_experts], bool or uint8 on the CPU: experts that are computed somewhere else. It is not
    copied, and read at the start of each call, so writing into it moves experts from the next call on.
    `pool` is whose threads compute, None the process's own.
    Raises Unsupported for an unknown activation, ValueError for a size below 1 or another argument that is wrong.
    """

    def __init__(
        self,
        num_experts: int,
        hidden: int,
        intermediate: int,
        activation: str = "silu",
        limit: float | None = None,
        alpha: float = 1.702,
        elsewhere: torch.Tensor | None = None,
        tier: str | None = None,
        pool: Pool | None = None,
    ) -> None:
        if activation not in ACTIVATIONS:
            raise errors.Unsupported("kernels.activation", activation=activation, known=", ".join(ACTIVATIONS))
        limit = math.inf if limit is None else limit
        if not limit > 0 or not math.isfinite(alpha):
            raise ValueError(f"expected a limit above 0 and a finite alpha, got {limit} and {alpha}")
        if elsewhere is not None:
            check_mask(elsewhere, num_experts)
        self.num_experts = num_experts
        self.hidden = hidden
        self.intermediate = intermediate
        self.activation = activation
        self.elsewhere = elsewhere
        gating = (activation, limit, alpha)
        self.native = load().Experts(num_experts, hidden, intermediate, *gating, tier or "", native_pool(pool))

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights and biases of all loaded experts."""
        return int(self.native.nbytes)

    @property
    def asked(self) -> list[int]:
        """How often each expert was asked for a token since this was made, those elsewhere too. From any thread."""
        counts: list[int] = self.native.asked()
        return counts

    @property
    def counts(self) -> NDArray[np.uint64]:
        """The same where they lie: they go on, as long as this lives."""
        at = (ctypes.c_uint64 * self.num_experts).from_address(self.native.asked_at())
        return np.ctypeslib.as_array(at)

    def load(
        self,
        index: int,
        gate: Matrix | None,
        up: Matrix,
        down: Matrix,
        gate_bias: torch.Tensor | None = None,
        up_bias: torch.Tensor | None = None,
        down_bias: torch.Tensor | None = None,
    ) -> None:
        """Pack expert `index`: gate (None where the activation has none) and up [intermediate, hidden], down
        [hidden, intermediate], biases [rows] of any float dtype, of which down's is weighted as its product is.

        Formats may differ. Loading an index again replaces it. Raises ValueError for a wrong index or shape,
        Unsupported for a format without a kernel.
        """
        self.load_all([(gate, up, down, gate_bias, up_bias, down_bias)], index)

    def load_all(self, experts: Sequence[Sequence[Any]], first: int = 0) -> None:
        """Pack experts first, first + 1, ..., each of the arguments that `load` takes after the index.

        Threads do not wait for each other between experts. Raises what `load` raises, before it packs anything.
        """
        sources = [self._source(*parts) for parts in experts]
        self.native.load(first, [source for source, _ in sources])  # sources keeps the biases meanwhile

    def places(self, index: int) -> list[Place]:
        """The memory of expert `index`, which stays as it is until the expert is loaded again: one piece for each group of
        threads, with rows that follow each other; none for an expert that is not loaded. Raises ValueError."""
        return [
            Place(address, nbytes, biased, *(Packed(*matrix) for matrix in matrices))
            for address, nbytes, biased, *matrices in self.native.places(index)
        ]

    def _source(
        self,
        gate: Matrix | None,
        up: Matrix,
        down: Matrix,
        gate_bias: torch.Tensor | None = None,
        up_bias: torch.Tensor | None = None,
        down_bias: torch.Tensor | None = None,
    ) -> tuple[Any, list[torch.Tensor | None]]:
        biases = [
            _bias(gate_bias, self.intermediate),
            _bias(up_bias, self.intermediate),
            _bias(down_bias, self.hidden),
        ]
        addresses = [0 if bias is None else bias.data_ptr() for bias in biases]
        return (None if gate is None else weight(gate), weight(up), weight(down), addresses), biases

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x [T, hidden] float32 or bfloat16, ids [T, K] int64, weights [T, K] float32, to [T, hidden] of x's dtype.

        With `out`, contiguous and not x, the result goes there: memory that is used again needs no new pages, which
        for 4096 tokens took longer than the products. ids that are negative, too big, elsewhere or of experts not loaded contribute nothing. T and K may be 0.
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
        if not (ids.is_cpu and weights.is_cpu):
            raise ValueError("expected ids and weights on the CPU")
        x, ids, weights = plain(x), plain(ids), plain(weights)
        y = new_result(*x.shape, dtype=x.dtype) if out is None else out
        if out is not None and (out.shape != x.shape or out.dtype != x.dtype or not out.is_contiguous()):
            raise ValueError(f"expected a contiguous out [{x.shape[0]}, {self.hidden}] of {x.dtype}")
        dtype_name(y)
        addresses = (x.data_ptr(), ids.data_ptr(), weights.data_ptr(), y.data_ptr())
        elsewhere = 0 if self.elsewhere is None else self.elsewhere.data_ptr()
        self.native.forward(*addresses, dtype, x.shape[0], ids.shape[1], elsewhere)
        return y


def check_mask(mask: torch.Tensor, num_experts: int) -> None:
    """Raises ValueError for a mask whose bytes the kernel cannot read in place."""
    if mask.shape != (num_experts,) or mask.dtype not in (torch.bool, torch.uint8):
        raise ValueError(f"expected a mask [{num_experts}] of bool or uint8, got {tuple(mask.shape)} {mask.dtype}")
    if mask.device.type != "cpu" or not mask.is_contiguous():
        raise ValueError("expected a mask on the CPU whose values are adjacent in memory")


def _bias(bias: torch.Tensor | None, rows: int) -> torch.Tensor | None:
    if bias is not None and bias.shape != (rows,):
        raise ValueError(f"expected a bias [{rows}], got {tuple(bias.shape)}")
    return None if bias is None else plain(bias.to("cpu", torch.float32))
