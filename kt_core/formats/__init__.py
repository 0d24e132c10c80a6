"""Headers and block sizes of the checkpoint formats. Reads no tensor data, needs no torch."""

from kt_core.formats.blocks import FORMATS, Block, TensorInfo, nbytes

__all__ = ["FORMATS", "Block", "TensorInfo", "nbytes"]
