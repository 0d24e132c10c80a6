"""The layouts that several methods write: numbers of each row, or of each column, and scales beside them."""

from kt_core.formats.blocks import TensorInfo
from kt_core.formats.quantized._weight import E8M0, FLOATS, Quantized, Reader, Shape

BLOCK = (128, 128)
MX = (1, 32)
BLOCKS = (BLOCK, MX)


def _weight(
    tensor: TensorInfo, name: str, format: str, cols: int, scales: TensorInfo, group: int, **more: object
) -> Quantized:
    shape = (*tensor.shape[:-1], cols)
    place = (tensor.file, tensor.offset, tensor.nbytes, tensor.name)
    return Quantized(name, format, shape, *place, scales, group, **more)  # type: ignore[arg-type]


def _of_rows(shape: Shape) -> tuple[Shape, ...]:
    """The shapes of a scale for each row, or for the whole matrix."""
    rows = shape[:-1]
    return ((*rows, 1), rows, (1,), (), (1, 1))


def fp8(reader: Reader, name: str, tensor: TensorInfo, scales: str, block: Shape | None) -> Quantized | None:
    """E4M3 [..., N, K] with a scale for each block of rows and columns; without a block, for each row or for all."""
    if not reader.is_matrix(tensor, stacks=True):
        return None
    *stack, rows, cols = tensor.shape
    if block is None:
        found = reader.side(scales, tensor, _of_rows(tensor.shape), FLOATS)
        return _weight(tensor, name, "FP8_CHANNEL", cols, found, cols) if found else None
    if block == BLOCK:
        shape = (*stack, -(-rows // BLOCK[0]), -(-cols // BLOCK[1]))
        found = reader.side(scales, tensor, (shape,), ("F32", "BF16", "F8_E8M0"))
        return _weight(tensor, name, "FP8_BLOCK", cols, found, BLOCK[1]) if found else None
    groups = reader.groups(tensor, cols, MX[1])
    found = reader.side(scales, tensor, ((*stack, rows, groups),), E8M0) if groups else None
    return _weight(tensor, name, "MXFP8", cols, found, MX[1]) if found else None


def mxfp4(reader: Reader, name: str, tensor: TensorInfo, scales: str) -> Quantized | None:
    """Two E2M1 numbers a byte [..., N, K/2], a power of two for 32 of them."""
    if not reader.is_matrix(tensor, stacks=True):
        return None
    *rows, packed = tensor.shape
    groups = reader.groups(tensor, 2 * packed, MX[1])
    found = reader.side(scales, tensor, ((*rows, groups),), E8M0) if groups else None
    return _weight(tensor, name, "MXFP4_HF", 2 * packed, found, MX[1]) if found else None


def nvfp4(
    reader: Reader, name: str, tensor: TensorInfo, scales: str, factor: str, divides: bool = False
) -> Quantized | None:
    """Two E2M1 numbers a byte [N, K/2], an E4M3 scale for 16 of them, and a factor for the matrix."""
    if not reader.is_matrix(tensor):
        return None
    rows, packed = tensor.shape
    groups = reader.groups(tensor, 2 * packed, 16)
    found = reader.side(scales, tensor, ((rows, groups),), ("F8_E4M3",)) if groups else None
    number = reader.side(factor, tensor, ((1,), ()), ("F32",))
    if found is None or number is None:
        return None
    return _weight(tensor, name, "NVFP4", 2 * packed, found, 16, factor=number, divides=divides)


def int8(reader: Reader, name: str, tensor: TensorInfo, scales: str) -> Quantized | None:
    """int8 [N, K] with a scale for each row or for all."""
    if not reader.is_matrix(tensor):
        return None
    found = reader.side(scales, tensor, _of_rows(tensor.shape), FLOATS)
    return _weight(tensor, name, "INT8_CHANNEL", tensor.shape[-1], found, tensor.shape[-1]) if found else None


def packed_int8(
    reader: Reader, name: str, tensor: TensorInfo, scales: str, stated: str, group: int
) -> Quantized | None:
    """Four numbers, each plus 128, an int32 [N, K/4], and scales [N, K/group]: Q8_0 in another order."""
    if not reader.is_matrix(tensor):
        return None
    rows, cols = tensor.shape[0], 4 * tensor.shape[1]
    groups, group = reader.int4_groups(tensor, cols, group)
    found = reader.side(scales, tensor, ((rows, groups),), ("F16", "BF16")) if groups else None
    shape = reader.optional(stated, ((2,),), ("I32", "I64"))
    return _weight(tensor, name, "Q8_0", cols, found, group, stated_shape=shape) if found else None


def int4(
    reader: Reader, name: str, tensor: TensorInfo, sides: dict[str, str], group: int, symmetric: bool
) -> Quantized | None:
    """Eight numbers an int32 [N, K/8]; `sides` names scales [N, K/group], zeros [N/8, K/group], order and shape."""
    if not reader.is_matrix(tensor):
        return None
    rows, cols = tensor.shape[0], 8 * tensor.shape[1]
    groups, group = reader.int4_groups(tensor, cols, group)
    found = reader.side(sides["scales"], tensor, ((rows, groups),), FLOATS) if groups else None
    zeros = None
    if not symmetric and groups:
        zeros = reader.side(sides["zeros"], tensor, ((-(-rows // 8), groups),), ("I32",))
    if found is None or (zeros is None and not symmetric):
        return None
    order = reader.optional(sides["order"], ((cols,),), ("I32", "I64"))
    stated = reader.optional(sides["shape"], ((2,),), ("I32", "I64"))
    return _weight(tensor, name, "INT4", cols, found, group, zeros=zeros, order=order, stated_shape=stated)


def columns(
    reader: Reader, module: str, format: str, shape: Shape, size: int, types: tuple[str, ...], needs_zeros: bool
) -> Quantized | None:
    """Words of eight 4-bit numbers of a [N, K] weight, columns first: `qweight`, `scales` and `qzeros` of the module."""
    tensor, (rows, cols) = reader.tensors[f"{module}.qweight"], shape
    groups, group = reader.int4_groups(tensor, cols, size)
    if not groups or not reader.groups(tensor, rows, 8):
        return None
    scales = reader.side(f"{module}.scales", tensor, ((groups, rows),), types)
    has_zeros = needs_zeros or f"{module}.qzeros" in reader.tensors
    zeros = reader.side(f"{module}.qzeros", tensor, ((groups, rows // 8),), ("I32",)) if has_zeros else None
    if scales is None or (zeros is None and has_zeros):
        return None
    place = (tensor.file, tensor.offset, tensor.nbytes, tensor.name)
    return Quantized(f"{module}.weight", format, (rows, cols), *place, scales, group, zeros)
