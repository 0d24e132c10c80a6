"""The experts of one layer in the format that a method asks for: from a checkpoint, or from tensors."""

import re
from collections.abc import Callable
from pathlib import Path

import torch

from kt_core import errors
from kt_core.kernels.methods import Method
from kt_core.models import resolve
from kt_core.weights import Matrix, Weights, decode_matrix, open_weights
from kt_core.weights.quantize import FORMATS, quantize

PARTS = ("gate", "up", "down")
WRITABLE = ("BF16", *FORMATS)

# An expert's number in the checkpoint or the tensors -> gate, up and down.
Source = tuple[int, Callable[[int], list[Matrix]]]


def from_checkpoint(source: str | Path | Weights, layer: int, method: Method) -> Source:
    """The experts of layer `layer` of a GGUF file, a folder, or a checkpoint that is open already.

    Weights in the method's format are taken as they are, in groups of any size; others are rounded to it.
    Raises NotFound for a layer without experts, Unsupported for biases or for a format that cannot become the
    method's, and what open_weights raises.
    """
    weights = source if isinstance(source, Weights) else open_weights(resolve(str(source)))
    prefix = _prefix(weights, layer)
    if any(f"{prefix}.{part}_bias" in weights for part in ("gate_up_proj", "up_proj", "down_proj")):
        raise errors.Unsupported("kernels.biased_experts", prefix=prefix)

    def expert(index: int) -> list[Matrix]:
        return [in_format(weights.expert(prefix, index, part), method) for part in PARTS]

    return weights.experts(prefix), expert


def _prefix(weights: Weights, layer: int) -> str:
    names = (name.rpartition(".") for name in weights.names())
    experts = {prefix for prefix, _, part in names if part == "down_proj" and weights.experts(prefix)}
    found = [prefix for prefix in experts if re.search(rf"(^|\.)layers\.{layer}\.", prefix)]
    if len(found) != 1:
        raise errors.NotFound("kernels.no_layer", layer=layer, layers=", ".join(sorted(found or experts)[:3]) or "-")
    return found[0]


def from_tensors(gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, method: Method) -> Source:
    """Experts of plain numbers: gate and up [E, I, H], down [E, H, I].

    Raises ValueError for shapes that do not fit each other, or another dtype than float32, bfloat16 or float16,
    Unsupported for a method whose format is not in WRITABLE.
    """
    tensors = (gate, up, down)
    if gate.dim() != 3 or up.shape != gate.shape or down.shape != (gate.shape[0], gate.shape[2], gate.shape[1]):
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise ValueError(f"expected gate and up [E, I, H] and down [E, H, I], got {shapes}")
    if any(tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16) for tensor in tensors):
        raise ValueError(f"expected float32, bfloat16 or float16, got {[str(tensor.dtype) for tensor in tensors]}")
    if method.format not in WRITABLE:
        raise errors.Unsupported("kernels.no_writer", format=method.format or "-", known=", ".join(WRITABLE))

    def expert(index: int) -> list[Matrix]:
        return [rounded(tensor[index], method) for tensor in tensors]

    return gate.shape[0], expert


def in_format(matrix: Matrix, method: Method) -> Matrix:
    """The matrix itself where its format is the method's, or its values rounded to that."""
    if method.format in ("", matrix.format):
        return matrix
    if method.format not in WRITABLE:
        raise errors.Unsupported("kernels.other_format", wanted=method.format, found=matrix.format)
    return rounded(torch.from_numpy(decode_matrix(matrix)), method)


def rounded(values: torch.Tensor, method: Method) -> Matrix:
    """values [N, K], a float dtype, to nearest in a format of WRITABLE."""
    if method.format != "BF16":
        return quantize(values, method.format, method.group)
    halves = values.detach().to("cpu", torch.bfloat16).contiguous()
    return Matrix("BF16", values.shape[0], values.shape[1], halves.view(torch.uint8).numpy())
