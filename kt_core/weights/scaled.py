"""Reference decoding of formats that keep scales, and some zero points, in arrays beside the data.

value = multiplier * scale * (q - zero), products in float32, in that order from the right. Bytes are little-endian, the
first of two nibbles in a byte is the low one.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kt_core.weights.matrix import Matrix

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

# Columns of the eight nibbles of a word in AWQ, lowest first.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)


def e4m3(codes: Bytes) -> Floats:
    """1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinity, 0x7f and 0xff are NaN."""
    return _E4M3[codes]


def _e4m3_table() -> Floats:
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    value[(code & 127) == 127] = np.nan
    return np.where(code & 128, -value, value).astype(np.float32)


_E4M3 = _e4m3_table()


def e8m0(codes: Bytes) -> Floats:
    """2^(e - 127); 255 is NaN."""
    values = np.where(codes == 255, np.nan, np.exp2(codes.astype(np.float64) - 127))
    return values.astype(np.float32)


def bf16(raw: Bytes) -> Floats:
    halves = raw.view("<u2")
    wide = np.zeros((*halves.shape, 2), "<u2")
    wide[..., 1] = halves  # the upper half of a float32: a ninth of the time of a cast and a shift
    floats: Floats = wide.view("<f4")[..., 0]
    return floats


_SCALES: dict[str, Callable[[Bytes], Floats]] = {
    "F32": lambda raw: raw.view("<f4").astype(np.float32),
    "F16": lambda raw: raw.view("<f2").astype(np.float32),
    "BF16": bf16,
    "E8M0": e8m0,
    "E4M3": e4m3,
}


def _dense(array: Bytes | None, what: str, matrix: Matrix) -> Bytes:
    if array is None:
        raise ValueError(f"{matrix.format} needs {what}")
    return np.ascontiguousarray(array)


def _scales(matrix: Matrix) -> Floats:
    if matrix.scale_format not in _SCALES:
        raise ValueError(f"unknown scale format {matrix.scale_format!r}. Known: {', '.join(_SCALES)}")
    return _SCALES[matrix.scale_format](_dense(matrix.scales, "scales", matrix))


def _spread(scales: Floats, group: int, cols: int, rows: int = 1) -> Floats:
    """Each scale for the `rows` rows and `group` columns that it serves, cut to cols."""
    wide: Floats = np.repeat(np.repeat(scales, rows, axis=0), group, axis=1)[:, :cols]
    return wide


def nibbles(packed: Bytes) -> Bytes:
    """[.., n] bytes to [.., 2 n] nibbles, the low one first: of a 32-bit word too, as bytes are little-endian."""
    both: Bytes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
    return both


def _group(matrix: Matrix) -> int:
    return matrix.cols if matrix.group == -1 else matrix.group


def _fp8_block(m: Matrix) -> Floats:
    return _spread(_scales(m), 128, m.cols, 128)[: m.rows] * e4m3(m.data)


def _fp8_channel(m: Matrix) -> Floats:
    return _scales(m) * e4m3(m.data)


def _mxfp8(m: Matrix) -> Floats:
    return _spread(_scales(m), 32, m.cols) * e4m3(m.data)


def _mxfp4(m: Matrix) -> Floats:
    return _spread(_scales(m), 32, m.cols) * E2M1[nibbles(_dense(m.data, "data", m))]


def _nvfp4(m: Matrix) -> Floats:
    scaled = _spread(_scales(m), 16, m.cols) * E2M1[nibbles(_dense(m.data, "data", m))]
    values: Floats = np.float32(m.multiplier) * scaled
    return values


def _int8_channel(m: Matrix) -> Floats:
    return _scales(m) * np.ascontiguousarray(m.data).view(np.int8).astype(np.float32)


def _int4(m: Matrix) -> Floats:
    group = _group(m)
    q = nibbles(_dense(m.data, "data", m)).astype(np.float32)
    if m.zeros is None:
        return _spread(_scales(m), group, m.cols) * (q - 8)
    zeros = nibbles(np.ascontiguousarray(m.zeros))[:, : m.cols // group].astype(np.float32)
    values: Floats = _spread(_scales(m), group, m.cols) * (q - _spread(zeros, group, m.cols))
    return values


def _gptq(m: Matrix) -> Floats:
    """Words hold eight k of a column n; zero points are stored less one, 0 as 15."""
    group = _group(m)
    words = _dense(m.data, "data", m).view("<u4")  # [K / 8, N]
    q = nibbles(np.ascontiguousarray(words.T).view(np.uint8)).astype(np.float32)  # [N, K]
    zeros = np.full((1, m.cols // group), 8, np.float32)
    if m.zeros is not None:
        zeros = (nibbles(np.ascontiguousarray(m.zeros)) + 1 & 15).astype(np.float32).T  # [N, K / group]
    values: Floats = _spread(_scales(m).T, group, m.cols) * (q - _spread(zeros, group, m.cols))
    return values


def _awq(m: Matrix) -> Floats:
    """Words hold eight columns n of a k, in AWQ_ORDER."""
    group = _group(m)
    place = np.argsort(AWQ_ORDER)

    def columns(words: Bytes) -> Floats:  # [.., N / 8 words] to [N, ..]
        eights = nibbles(np.ascontiguousarray(words)).reshape(len(words), -1, 8)[..., place]
        by_row: Floats = eights.reshape(len(words), -1).astype(np.float32).T
        return by_row

    zeros = columns(_dense(m.zeros, "zeros", m))
    return _spread(_scales(m).T, group, m.cols) * (columns(m.data) - _spread(zeros, group, m.cols))


DECODERS: dict[str, Callable[[Matrix], Floats]] = {
    "FP8_BLOCK": _fp8_block,
    "FP8_CHANNEL": _fp8_channel,
    "MXFP8": _mxfp8,
    "MXFP4_HF": _mxfp4,
    "NVFP4": _nvfp4,
    "INT4": _int4,
    "GPTQ": _gptq,
    "AWQ": _awq,
    "INT8_CHANNEL": _int8_channel,
}
