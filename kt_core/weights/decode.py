"""Reference decoding of stored formats to float32, in plain numpy and independent of the native kernels.

Every function takes uint8 [..., blocks, block bytes] and returns float32 [..., blocks, block elements]. The layouts
are those of ggml's `ggml-common.h` and `ggml-quants.c`: little-endian, float16 scales; products and sums in float32.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kt_core.errors import Unsupported
from kt_core.formats import FORMATS
from kt_core.weights import grids, scaled
from kt_core.weights.matrix import Matrix

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def decode(format: str, data: Bytes) -> Floats:
    """float32 [..., elements] of uint8 [..., bytes]. Raises Unsupported for a format without a decoder here."""
    if format not in DECODERS:
        raise Unsupported("weights.format", format=format, known=", ".join(DECODERS))
    size = FORMATS[format].block_bytes
    blocks = np.ascontiguousarray(data).reshape(*data.shape[:-1], -1, size)
    return DECODERS[format](blocks).reshape(*data.shape[:-1], -1)


def decode_matrix(matrix: Matrix) -> Floats:
    """float32 [rows, cols]. Raises Unsupported for a format without a decoder, ValueError for a missing array."""
    if matrix.format in scaled.DECODERS:
        values: Floats = np.ascontiguousarray(scaled.DECODERS[matrix.format](matrix), np.float32)
        return values
    return decode(matrix.format, matrix.data).reshape(matrix.rows, matrix.cols)


def _plain(dtype: str) -> Callable[[Bytes], Floats]:
    return lambda blocks: blocks.view(dtype).astype(np.float32)


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of each block, [..., blocks, 1]."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Low nibbles of all bytes, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """32 bits, lowest first, of 4 little-endian bytes, each moved to the place of a nibble's fifth bit."""
    bits: Bytes = np.unpackbits(packed, axis=-1, bitorder="little") * np.uint8(16)
    return bits


def _q8_0(b: Bytes) -> Floats:
    return _half(b, 0) * np.ascontiguousarray(b[..., 2:]).view(np.int8).astype(np.float32)


def _q4_0(b: Bytes) -> Floats:
    return _half(b, 0) * (_nibbles(b[..., 2:]).astype(np.float32) - 8)


def _q4_1(b: Bytes) -> Floats:
    return _half(b, 0) * _nibbles(b[..., 4:]).astype(np.float32) + _half(b, 2)


def _q5_0(b: Bytes) -> Floats:
    return _half(b, 0) * ((_nibbles(b[..., 6:]) | _fifth_bits(b[..., 2:6])).astype(np.float32) - 16)


def _q5_1(b: Bytes) -> Floats:
    return _half(b, 0) * (_nibbles(b[..., 8:]) | _fifth_bits(b[..., 4:8])).astype(np.float32) + _half(b, 2)


def _six_bit_scales(packed: Bytes) -> tuple[Floats, Floats]:
    """The 8 scales and 8 minimums of a Q4_K or Q5_K block from its 12 bytes.

    Bytes 0-3 and 4-7 hold the low 6 bits of scales and minimums 0-3; their top 2 bits are the top bits of scales and
    minimums 4-7, whose low nibbles lie in bytes 8-11 (scale low, minimum high).
    """
    first, second, third = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=-1)
    minimums = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=-1)
    return scales.astype(np.float32), minimums.astype(np.float32)


def _groups_of_nibbles(packed: Bytes) -> Bytes:
    """128 bytes -> [8, 32]: each run of 32 bytes gives a group of low and a group of high nibbles."""
    runs = packed.reshape(*packed.shape[:-1], 4, 1, 32)
    return np.concatenate([runs & 15, runs >> 4], axis=-2).reshape(*packed.shape[:-1], 8, 32)


def _scaled_groups(b: Bytes, values: Bytes) -> Floats:
    scales, minimums = _six_bit_scales(b[..., 4:16])
    scale, minimum = (_half(b, 0) * scales)[..., None], (_half(b, 2) * minimums)[..., None]
    return (scale * values.astype(np.float32) - minimum).reshape(*b.shape[:-1], 256)


def _q4_k(b: Bytes) -> Floats:
    return _scaled_groups(b, _groups_of_nibbles(b[..., 16:144]))


def _q5_k(b: Bytes) -> Floats:
    """Byte i of the 32 high-bit bytes holds, in bit g, the fifth bit of element i of group g."""
    high = (b[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    return _scaled_groups(b, _groups_of_nibbles(b[..., 48:176]) | high * np.uint8(16))


def _q6_k(b: Bytes) -> Floats:
    """Two halves of 128: four runs of 32 from 64 low-nibble bytes and 32 bytes of two high bits; 16 int8 scales."""
    low = b[..., 0:128].reshape(*b.shape[:-1], 2, 64)
    low = np.concatenate([low & 15, low >> 4], axis=-1).reshape(*b.shape[:-1], 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    high = (b[..., 128:192].reshape(*b.shape[:-1], 2, 1, 32) >> shifts) & 3
    values = ((low | (high << 4)).astype(np.float32) - 32).reshape(*b.shape[:-1], 16, 16)
    scales = np.ascontiguousarray(b[..., 192:208]).view(np.int8).astype(np.float32)
    return ((_half(b, 208) * scales)[..., None] * values).reshape(*b.shape[:-1], 256)


def _two_bits(packed: Bytes) -> Bytes:
    """64 bytes -> [8, 32]: each run of 32 bytes gives four groups, from bits 0-1, 2-3, 4-5 and 6-7."""
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    values: Bytes = packed.reshape(*packed.shape[:-1], 2, 1, 32) >> shifts & np.uint8(3)
    return values.reshape(*packed.shape[:-1], 8, 32)


def _q2_k(b: Bytes) -> Floats:
    values = _two_bits(b[..., 16:80]).reshape(*b.shape[:-1], 16, 16).astype(np.float32)
    scale, minimum = _half(b, 80) * (b[..., :16] & 15), _half(b, 82) * (b[..., :16] >> 4)
    return (scale[..., None] * values - minimum[..., None]).reshape(*b.shape[:-1], 256)


def _q3_k(b: Bytes) -> Floats:
    """Scale j has its low nibble in byte j % 8 of 12 (low for j < 8), its two high bits in byte 8 + j % 4."""
    third = (b[..., None, 0:32] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    values = (_two_bits(b[..., 32:96]) | third << 2).reshape(*b.shape[:-1], 16, 16).astype(np.float32) - 4
    low = _nibbles(b[..., 96:104])
    high = np.concatenate([b[..., 104:108] >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)
    scale = _half(b, 108) * ((low | high << 4).astype(np.float32) - 32)
    return (scale[..., None] * values).reshape(*b.shape[:-1], 256)


_UNEVEN = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)


def _iq4_nl(b: Bytes) -> Floats:
    return _half(b, 0) * _UNEVEN[_nibbles(b[..., 2:])]


def _iq4_xs(b: Bytes) -> Floats:
    """Eight 6-bit scales: two high bits each in a 16-bit word, low nibbles in 4 bytes."""
    high = np.ascontiguousarray(b[..., 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = np.stack([b[..., 4:8] & 15, b[..., 4:8] >> 4], axis=-1).reshape(*b.shape[:-1], 8)
    scale: Floats = _half(b, 0) * ((low | high << 4).astype(np.float32) - 32)
    values: Floats = _UNEVEN[_nibbles(b[..., 8:].reshape(*b.shape[:-1], 8, 16))]
    return (scale[..., None] * values).reshape(*b.shape[:-1], 256)


def _iq4_k(b: Bytes) -> Floats:
    """Sixteen 6-bit scales: low nibbles in 8 bytes, two high bits each in a 32-bit word; a bit of each moves its steps up by 4."""
    high = np.ascontiguousarray(b[..., 4:8]).view("<u4") >> np.arange(0, 32, 2, dtype=np.uint32) & 3
    low = np.stack([b[..., 8:16] & 15, b[..., 8:16] >> 4], axis=-1).reshape(*b.shape[:-1], 16)
    moved = np.ascontiguousarray(b[..., 2:4]).view("<u2") >> np.arange(16, dtype=np.uint16) & 1
    scale: Floats = _half(b, 0) * ((low | high << 4).astype(np.float32) - 32)
    values: Floats = _UNEVEN[_nibbles(b[..., 16:].reshape(*b.shape[:-1], 8, 16))].reshape(*b.shape[:-1], 16, 16)
    return (scale[..., None] * (values + 4 * moved[..., None].astype(np.float32))).reshape(*b.shape[:-1], 256)


def _mxfp4(b: Bytes) -> Floats:
    """2^(e - 127) * E2M1; float64 in between, as half of the smallest scales is subnormal."""
    values: Floats = (np.exp2(b[..., :1].astype(np.float64) - 127) * scaled.E2M1[_nibbles(b[..., 1:])]).astype(
        np.float32
    )
    return values


DECODERS: dict[str, Callable[[Bytes], Floats]] = {
    "F32": _plain("<f4"),
    "F16": _plain("<f2"),
    "BF16": scaled.bf16,
    "F64": _plain("<f8"),
    "BOOL": _plain("<u1"),
    "U8": _plain("<u1"),
    "I8": _plain("<i1"),
    "I16": _plain("<i2"),
    "I32": _plain("<i4"),
    "I64": _plain("<i8"),
    "F8_E4M3": scaled.e4m3,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "IQ4_K": _iq4_k,
    "MXFP4": _mxfp4,
    **grids.DECODERS,
}
