"""A linear layer on the CPU over a weight in its stored format."""

from collections.abc import Callable

import torch

from kt_core.kernels.native import dtype_name, load, new_result, plain, weight
from kt_core.kernels.pool import Pool, native_pool
from kt_core.weights import Matrix


class Linear:
    """y = x W^T + bias. The weight is packed at construction and the matrix not referred to afterwards.

    `tier` names a kernel tier for this layer alone; None is the process's choice. `pool` is whose threads compute,
    None the process's own. `between` is called after each 64 MiB that are packed but the last.
    Raises Unsupported for a format without a kernel, ValueError for data that does not fit its shape.
    """

    def __init__(
        self,
        matrix: Matrix,
        bias: torch.Tensor | None = None,
        tier: str | None = None,
        pool: Pool | None = None,
        between: Callable[[], None] | None = None,
    ) -> None:
        self.format = matrix.format
        self.in_features = matrix.cols
        self.out_features = matrix.rows
        address = 0
        if bias is not None:
            if bias.shape != (matrix.rows,):
                raise ValueError(f"bias must have shape ({matrix.rows},), got {tuple(bias.shape)}")
            bias = plain(bias.to("cpu", torch.float32))
            address = bias.data_ptr()
        self.native = load().Linear(weight(matrix), address, tier or "", native_pool(pool), between)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weight."""
        return int(self.native.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in_features], float32 or bfloat16, to [..., out_features] of the same dtype.

        Raises ValueError for another dtype, device or last dimension.
        """
        dtype = dtype_name(x)
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise ValueError(f"expected [..., {self.in_features}], got {tuple(x.shape)}")
        x = plain(x)
        y = new_result(*x.shape[:-1], self.out_features, dtype=x.dtype)
        self.native.forward(x.data_ptr(), dtype, x.numel() // self.in_features, y.data_ptr())
        return y
