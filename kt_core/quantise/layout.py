"""Where every byte of the output lies, known before the first weight is read."""

import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from kt_core.formats import FORMATS
from kt_core.quantise import methods
from kt_core.quantise.methods import Scheme, Stored
from kt_core.quantise.source import Weight

SHARD = 4 << 30  # bytes after which a folder's next file begins, with the next layer


@dataclass(frozen=True)
class Piece:
    """A weight and what becomes of it: the tensors' names in the output, and the method; None: its bytes as they are."""

    weight: Weight
    scheme: Scheme | None
    names: tuple[str, ...]
    tensors: tuple[Stored, ...]

    @property
    def nbytes(self) -> int:
        return sum(stored.nbytes for stored in self.tensors)


@dataclass(frozen=True)
class File:
    """A file of weights: its first bytes, and where each tensor begins. `groups` are those of the layout that it holds."""

    name: str
    header: bytes
    offsets: dict[str, int]
    size: int
    groups: tuple[tuple[Piece, ...], ...]


@dataclass(frozen=True)
class Layout:
    """The whole output: files of weights, and `small` ones, name -> bytes. `finish` makes what needs a library."""

    files: tuple[File, ...]
    small: dict[str, bytes]
    finish: Callable[[str], None]

    @cached_property
    def nbytes(self) -> int:
        """Of all files of weights, and of the small ones that are known."""
        return sum(file.size for file in self.files) + sum(map(len, self.small.values()))

    @property
    def pieces(self) -> list[Piece]:
        return [piece for file in self.files for group in file.groups for piece in group]


def piece(weight: Weight, scheme: Scheme | None, rename: Callable[[str, str], str]) -> Piece:
    """`rename(name, suffix)` gives the name of a weight's tensor."""
    if scheme is None:
        return Piece(weight, None, (weight.name,), (Stored("weight", weight.format, weight.shape),))
    stored = methods.find(scheme.method).tensors(weight.rows, weight.cols, scheme)
    if len(stored) == 1:  # keeps the weight's own shape, which may be that of a stack
        stored = (Stored(stored[0].suffix, stored[0].format, weight.shape),)
    return Piece(weight, scheme, tuple(rename(weight.name, one.suffix) for one in stored), stored)


def by_layer(pieces: Iterable[Piece]) -> list[list[Piece]]:
    """Groups of one layer each, what is outside of layers first."""
    groups: dict[int, list[Piece]] = {}
    for one in pieces:
        groups.setdefault(one.weight.layer, []).append(one)
    return [groups[layer] for layer in sorted(groups)]


def shards(groups: list[list[Piece]]) -> list[list[list[Piece]]]:
    """Whole groups for each file."""
    found: list[list[list[Piece]]] = [[]]
    size = 0
    for group in groups:
        nbytes = sum(one.nbytes for one in group)
        if found[-1] and size + nbytes > SHARD:
            found.append([])
            size = 0
        found[-1].append(group)
        size += nbytes
    return found


def safetensors_file(name: str, groups: list[list[Piece]]) -> File:
    """The header of a safetensors file, padded to 8 bytes."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offsets, at = {}, 0
    for one in (one for group in groups for one in group):
        for tensor, stored in zip(one.names, one.tensors, strict=True):
            span = [at, at + stored.nbytes]
            dtype = FORMATS[stored.format].safetensors_dtype
            entries[tensor] = {"dtype": dtype, "shape": list(stored.shape), "data_offsets": span}
            offsets[tensor], at = at, span[1]
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = struct.pack("<Q", len(text)) + text
    offsets = {tensor: offset + len(header) for tensor, offset in offsets.items()}
    return File(name, header, offsets, len(header) + at, tuple(map(tuple, groups)))
