"""The bytes of a GGUF version 3 header. Tensor data is written by the caller, at the offsets returned."""

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kt_core.formats.blocks import FORMATS

ALIGNMENT = 32  # GGUF's default; a file that keeps it needs no general.alignment key
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _UINT64 = 4, 5, 6, 7, 8, 9, 10


@dataclass(frozen=True)
class Tensor:
    """A tensor to be written: `shape` row-major, `nbytes` as stored."""

    name: str
    format: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        block = FORMATS[self.format]
        return math.prod(self.shape) // block.block_size * block.block_bytes


def padded(nbytes: int) -> int:
    """`nbytes` rounded up to the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def header(metadata: dict[str, Any], tensors: Iterable[Tensor]) -> tuple[bytes, dict[str, int]]:
    """The header, padded to the alignment, and each tensor's absolute offset in the file.

    Metadata types: bool, int (uint32; int32 below 0, uint64 where it takes more), float (float32), str, and lists of str,
    bool, float or int (int32).
    Raises TypeError for any other value and struct.error for an int out of range.
    """
    tensors = list(tensors)
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        out += _string(key) + _value(value)
    relative, offsets = 0, {}
    for tensor in tensors:
        out += _string(tensor.name) + struct.pack("<I", len(tensor.shape))
        out += struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        out += struct.pack("<IQ", FORMATS[tensor.format].ggml_id, relative)
        offsets[tensor.name] = relative
        relative += padded(tensor.nbytes)
    out += bytes(padded(len(out)) - len(out))
    return bytes(out), {name: offset + len(out) for name, offset in offsets.items()}


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        kind, code = (_INT32, "i") if value < 0 else (_UINT32, "I") if value < 1 << 32 else (_UINT64, "Q")
        return struct.pack(f"<I{code}", kind, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, list):
        return struct.pack("<I", _ARRAY) + _array(value)
    raise TypeError(f"no GGUF type for {type(value).__name__}")


def _array(values: list[Any]) -> bytes:
    if all(isinstance(v, str) for v in values):
        return struct.pack("<IQ", _STRING, len(values)) + b"".join(map(_string, values))
    if values and all(isinstance(v, bool) for v in values):
        return struct.pack(f"<IQ{len(values)}?", _BOOL, len(values), *values)
    if any(isinstance(v, float) for v in values):
        return struct.pack(f"<IQ{len(values)}f", _FLOAT32, len(values), *values)
    return struct.pack(f"<IQ{len(values)}i", _INT32, len(values), *values)
