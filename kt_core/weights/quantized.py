"""The bytes of a quantised weight, or of some of its rows, as a Matrix.

Numbers and scales are views of the checkpoint. Only what a checkpoint has in another form than Matrix is copied: zero
points, powers of two for blocks, one scale for a matrix.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kt_core.errors import BadData, Unsupported
from kt_core.formats import TensorInfo
from kt_core.formats.problems import shown
from kt_core.formats.quantized import Quantized
from kt_core.weights.matrix import Matrix

Bytes = npt.NDArray[np.uint8]
ReadBytes = Callable[[TensorInfo], Bytes]  # a tensor's bytes, one after another

COLUMN_MAJOR = {"GPTQ": 8, "AWQ": 1}  # columns that a row of the data holds
_BLOCK_ROWS = 128
_SCALE_FORMATS = {"F8_E8M0": "E8M0", "U8": "E8M0", "F8_E4M3": "E4M3"}


def matrix(weight: Quantized, first: int, count: int, step: int, read: ReadBytes) -> Matrix:
    """`count` rows of the weight, seen as [rows of all its matrices, K], from `first` on, each `step` after the one before.

    The rows are of one matrix; of a format with the columns first, all its rows. Raises BadData when a number beside the
    weight contradicts it, Unsupported for columns in another order than ascending.
    """
    _check(weight, read)
    cols = weight.shape[-1]
    scale_format = _SCALE_FORMATS.get(weight.scales.format, weight.scales.format)
    multiplier = _factor(weight, read)
    if weight.format in COLUMN_MAJOR:
        data = read(weight).reshape(cols // COLUMN_MAJOR[weight.format], -1)
        scales = read(weight.scales).reshape(cols // weight.group, -1)
        zeros = _zeros_of_columns(weight, read)
        return Matrix(weight.format, count, cols, data, scales, zeros, scale_format, weight.group, multiplier)
    if weight.format == "Q8_0":
        return _q8_0(weight, slice(first, first + count * step, step), count, read)
    window = slice(first, first + count * step, step)
    data = read(weight).reshape(math.prod(weight.shape[:-1]), -1)[window]
    scales = _scales(weight, first, count, step, read)
    if weight.format == "FP8_BLOCK" and scale_format == "E8M0":
        scales, scale_format = _bf16(scales), "BF16"
    zeros = _zeros_of_rows(read(weight.zeros), count) if weight.zeros else None
    return Matrix(weight.format, count, cols, data, scales, zeros, scale_format, weight.group, multiplier)


def _q8_0(weight: Quantized, window: slice, count: int, read: ReadBytes) -> Matrix:
    """Blocks of a float16 scale and 32 numbers, a copy. Raises Unsupported for scales that float16 cannot hold."""
    cols = weight.shape[-1]
    raw = read(weight.scales).reshape(math.prod(weight.shape[:-1]), -1)[window]
    stored = np.ascontiguousarray(raw).view("<u2")
    scales = stored.view("<f2") if weight.scales.format == "F16" else (stored.astype("<u4") << 16).view("<f4")
    half = scales.astype("<f2")
    if not np.array_equal(half.astype("<f4"), scales.astype("<f4")):
        raise Unsupported("weights.scale_range", tensor=shown(weight.scales.name))
    half = np.repeat(half, weight.group // 32, axis=1)
    numbers = read(weight).reshape(math.prod(weight.shape[:-1]), -1)[window] ^ np.uint8(0x80)
    blocks = np.concatenate([half[..., None].view(np.uint8), numbers.reshape(count, -1, 32)], axis=-1)
    return Matrix("Q8_0", count, cols, blocks.reshape(count, -1))


def _check(weight: Quantized, read: ReadBytes) -> None:
    rows, cols = weight.shape[-2:]
    if weight.order and not np.array_equal(_integers(weight.order, read), np.arange(cols) // weight.group):
        raise Unsupported("weights.order", tensor=shown(weight.name), order=shown(weight.order.name))
    if weight.stated_shape:
        stated = _integers(weight.stated_shape, read).tolist()
        if stated != [rows, cols]:
            raise BadData("weights.stated_shape", tensor=shown(weight.name), shape=[rows, cols], stated=stated)


def _integers(tensor: TensorInfo, read: ReadBytes) -> npt.NDArray[np.signedinteger]:
    values: npt.NDArray[np.signedinteger] = read(tensor).view("<i4" if tensor.format == "I32" else "<i8")
    return values


def _factor(weight: Quantized, read: ReadBytes) -> float:
    if weight.factor is None:
        return 1.0
    value = float(read(weight.factor).view("<f4")[0])
    if not math.isfinite(value) or value == 0:
        raise BadData("weights.factor", tensor=shown(weight.factor.name), value=value)
    return 1 / value if weight.divides else value


def _scales(weight: Quantized, first: int, count: int, step: int, read: ReadBytes) -> Bytes:
    """uint8 [scale rows, bytes] for the chosen rows; a scale of the whole matrix is repeated for each row."""
    tensor, rows = weight.scales, weight.shape[-2]
    flat = read(tensor)
    numbers = math.prod(tensor.shape)
    if numbers == 1 and weight.format != "FP8_BLOCK":
        return np.tile(flat, (count, 1))
    expert, begin = divmod(first, rows)
    if weight.format != "FP8_BLOCK":
        return flat.reshape(math.prod(weight.shape[:-1]), -1)[first : first + count * step : step]
    if begin % _BLOCK_ROWS or step != 1:
        raise BadData("weights.block_rows", tensor=shown(weight.name), first=begin, block=_BLOCK_ROWS)
    of_matrix = -(-rows // _BLOCK_ROWS)
    blocks: Bytes = flat.reshape(math.prod(weight.shape[:-2]), of_matrix, -1)[expert]
    return blocks[begin // _BLOCK_ROWS : -(-(begin + count) // _BLOCK_ROWS)]


def _bf16(powers: Bytes) -> Bytes:
    """E8M0 [rows, columns] as the raw bytes of bfloat16 numbers: the exponent is the same; 2^-127 is a subnormal."""
    bits = powers.astype("<u2") << 7
    bits[powers == 0], bits[powers == 255] = 0x0040, 0x7FC0
    return bits.view(np.uint8)


def _zeros_of_rows(packed: Bytes, rows: int) -> Bytes:
    """int32 [N/8, groups], row 8r + i in bits 4i, to nibbles [N, groups/2], group 2i low."""
    words = packed.view("<u4").reshape(-(-rows // 8), -1)
    nibbles = words[:, None, :] >> np.arange(0, 32, 4, dtype=np.uint32)[:, None] & 15
    values = nibbles.reshape(-1, words.shape[1])[:rows].astype(np.uint8)
    values = np.pad(values, ((0, 0), (0, values.shape[1] % 2)))
    pairs: Bytes = values[:, 0::2] | np.left_shift(values[:, 1::2], np.uint8(4))
    return pairs


def _zeros_of_columns(weight: Quantized, read: ReadBytes) -> Bytes | None:
    """Zero points [groups, bytes] as Matrix has them: GPTQ less one (15 is 0), or None where all are 8; AWQ always given.

    GPTQ's first format has a whole word of eight less 0x11111111, so that a zero point of 0 borrows from the next one.
    """
    groups, rows = weight.shape[-1] // weight.group, weight.shape[-2]
    if weight.zeros is None:
        return np.full((groups, rows // 2), 0x88, np.uint8) if weight.format == "AWQ" else None
    packed = read(weight.zeros).reshape(groups, -1)
    if weight.format == "AWQ":
        return packed
    words = packed.view("<u4") + np.uint32(0 if weight.zeros_as_they_are else 0x11111111)
    if (words == 0x88888888).all():
        return None
    points = words.view(np.uint8)
    less: Bytes = (points - np.uint8(1) & np.uint8(0x0F)) | (points - np.uint8(0x10) & np.uint8(0xF0))
    return less
