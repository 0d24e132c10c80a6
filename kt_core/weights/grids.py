"""Reference decoding of ggml's grid formats (IQ1, IQ2, IQ3); `decode.py` says how.

In super-blocks of 256, eight (IQ3: four) consecutive values are an entry of a fixed grid, with signs and a scale of
their own. The grids come from the gguf package.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[Any]


@cache
def grid(format: str) -> Floats:
    """float32 [entries, 8 or 4]"""
    from gguf import quants  # imported late: few models need it

    kind = getattr(quants, format)
    kind.init_grid()
    values: Floats = kind.grid.reshape(kind.grid_shape)
    return values


def _view(b: Bytes, begin: int, end: int, dtype: str) -> Integers:
    return np.ascontiguousarray(b[..., begin:end]).view(dtype)


def _d(b: Bytes) -> Floats:
    return _view(b, 0, 2, "<f2").astype(np.float32)


def _fields(words: Integers, width: int, count: int) -> Integers:
    """`count` fields of `width` bits of each word, lowest first, side by side along the last axis."""
    shifts = (np.arange(count) * width).astype(words.dtype)
    fields: Integers = words[..., None] >> shifts & words.dtype.type((1 << width) - 1)
    side_by_side: Integers = fields.reshape(*words.shape[:-1], -1)
    return side_by_side


def _signs(bits: Integers) -> Floats:
    """[..., n] bytes of eight sign bits to [..., n, 8] of 1 and -1"""
    return (1 - 2.0 * np.unpackbits(bits.astype(np.uint8)[..., None], axis=-1, bitorder="little")).astype(np.float32)


def _even(seven: Integers) -> Integers:
    """Seven sign bits with the eighth that makes the number of set bits even."""
    parity = seven ^ seven >> 4
    parity = parity ^ parity >> 2
    eight: Integers = seven | ((parity ^ parity >> 1) & 1) << 7
    return eight


def _product(scale: Floats, values: Floats) -> Floats:
    """Scales [..., n] times [..., 256] values, each for 256 / n of them."""
    groups = values.reshape(*scale.shape, -1)
    result: Floats = (scale[..., None] * groups).reshape(*scale.shape[:-1], 256)
    return result


def _iq2_xxs(b: Bytes) -> Floats:
    words = _view(b, 2, 66, "<u4").reshape(*b.shape[:-1], 8, 2)
    index = np.ascontiguousarray(words[..., 0]).view(np.uint8)
    scale = _d(b) * (0.5 + (words[..., 1] >> 28).astype(np.float32)) * np.float32(0.25)
    return _product(scale, grid("IQ2_XXS")[index] * _signs(_even(_fields(words[..., 1], 7, 4))))


def _iq2_xs(b: Bytes) -> Floats:
    words = _view(b, 2, 66, "<u2")
    scale = _d(b) * (0.5 + _fields(b[..., 66:74], 4, 2).astype(np.float32)) * np.float32(0.25)
    return _product(scale, grid("IQ2_XS")[words & 511] * _signs(_even(words >> 9)))


def _iq2_s(b: Bytes) -> Floats:
    index = b[..., 2:34] | _fields(b[..., 66:74].astype(np.uint16), 2, 4) << 8
    scale = _d(b) * (0.5 + _fields(b[..., 74:82], 4, 2).astype(np.float32)) * np.float32(0.25)
    return _product(scale, grid("IQ2_S")[index] * _signs(b[..., 34:66]))


def _iq3_xxs(b: Bytes) -> Floats:
    words = _view(b, 66, 98, "<u4")
    scale = _d(b) * (0.5 + (words >> 28).astype(np.float32)) * np.float32(0.5)
    values = grid("IQ3_XXS")[b[..., 2:66]].reshape(*b.shape[:-1], 32, 8)
    return _product(scale, values * _signs(_even(_fields(words, 7, 4))))


def _iq3_s(b: Bytes) -> Floats:
    index = b[..., 2:66] | _fields(b[..., 66:74].astype(np.uint16), 1, 8) << 8
    scale = _d(b) * (1 + 2 * _fields(b[..., 106:110], 4, 2).astype(np.float32))
    values = grid("IQ3_S")[index].reshape(*b.shape[:-1], 32, 8)
    return _product(scale, values * _signs(b[..., 74:106]))


def _iq1_s(b: Bytes) -> Floats:
    words = _view(b, 34, 50, "<u2")
    index = b[..., 2:34] | _fields(words & 0xFFF, 3, 4) << 8
    scale = _d(b) * (2 * (words >> 12 & 7) + 1).astype(np.float32)
    move = np.where(words >> 15, np.float32(-0.125), np.float32(0.125))
    values = grid("IQ1_S")[index].reshape(*b.shape[:-1], 8, 32) + move[..., None]
    return _product(scale, values)


def _iq1_m(b: Bytes) -> Floats:
    """d is a float16 in the upper nibbles of the four words that hold sixteen 3-bit scales below."""
    words, nibbles = _view(b, 48, 56, "<u2"), _fields(b[..., 32:48].astype(np.uint16), 4, 2)
    index = b[..., 0:32] | (nibbles & 7) << 8
    parts = words >> 12 << np.array([0, 4, 8, 12], np.uint16)
    d = np.bitwise_or.reduce(parts, axis=-1, keepdims=True).view(np.float16).astype(np.float32)
    scale = d * (2 * _fields(words & 0xFFF, 3, 4) + 1).astype(np.float32)
    move = np.where(nibbles >> 3, np.float32(-0.125), np.float32(0.125))
    return _product(scale, grid("IQ1_M")[index] + move[..., None])


DECODERS: dict[str, Callable[[Bytes], Floats]] = {
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
}
