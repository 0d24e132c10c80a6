"""Experts as the CPU's kernels have packed them, on a device: taken apart there, or multiplied with as they are."""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from kt_core.device import panels
from kt_core.kernels import Experts
from kt_core.kernels.experts import Packed, Place

BETWEEN = 1 << 26  # numbers of one of the matrices that are taken apart at once


class Unfit(Exception):
    """A layer's experts cannot be used as they are packed; the text says why."""


@dataclass(frozen=True)
class Piece:
    """Some rows of one of an expert's matrices: where its panels begin in the expert's bytes, and where its first row belongs."""

    matrix: Packed
    at: int
    first: int
    known: panels.Detail

    def decoded(self, raw: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """[experts, rows, cols] of the experts' bytes [experts, bytes]."""
        matrix = self.matrix
        count = -(-matrix.rows // panels.ROWS)
        strides, offset = (raw.stride(0), matrix.stride, 1), raw.storage_offset() + self.at
        packed = raw.as_strided((len(raw), count, matrix.panel_bytes), strides, offset)
        whole = panels.decode(matrix.format, packed.contiguous(), matrix.cols, dtype, self.known)
        return whole.flatten(1, 2)[:, : matrix.rows]


class Form:
    """How every expert of a layer lies in `bytes` bytes, one place behind the other. Raises Unfit where no device takes that apart.

    `module` is transformers' experts: it says how rows of gate and up follow each other in one matrix.
    """

    def __init__(self, module: Any, kernel: Experts, number: int) -> None:
        self._places = kernel.places(number)
        self.bytes = sum(place.nbytes for place in self._places)
        self.hidden, self.inner = kernel.hidden, kernel.intermediate
        self.both = self.inner * (2 if module.has_gate else 1)
        together = not module.has_gate or module.is_concatenated
        self._between = 1 if together else 2
        begin = 0
        self._first: list[list[Piece]] = [[] for _ in range(2 if module.has_gate else 1)]  # gate and up, or up
        self._down: list[Piece] = []
        row = out = 0
        for place in self._places:
            head = memory(place)
            for index, matrix in enumerate((place.gate, place.up) if module.has_gate else (place.up,)):
                to = index * self.inner + row if together else 2 * row + index
                self._first[index].append(_piece(matrix, head, begin, to))
            self._down.append(_piece(place.down, head, begin, out))
            begin, row, out = begin + place.nbytes, row + place.up.rows, out + place.down.rows

    def check(self, places: Sequence[Place]) -> None:
        """Raises Unfit for an expert that lies in another way."""
        if [place.form for place in places] != [place.form for place in self._places]:
            raise Unfit("its experts are stored in several ways")

    @property
    def formats(self) -> set[str]:
        return {piece.matrix.format for piece in (*chain(*self._first), *self._down)}

    def sizes(self, count: int) -> tuple[int, int]:
        """Numbers in both matrices of so many experts."""
        return count * self.both * self.hidden, count * self.hidden * self.inner

    def first(self, raw: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Gate and up of raw [experts, bytes] into `out`, which has room for them: [experts, both, hidden]."""
        whole = out.flatten()[: self.sizes(len(raw))[0]].view(len(raw), self.both, self.hidden)
        for some, to in self._few_at_once(raw, whole):
            for piece in chain(*self._first):
                rows = piece.decoded(some, out.dtype)
                to[:, piece.first :: self._between][:, : rows.shape[1]] = rows
        return whole

    def down(self, raw: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Likewise [experts, hidden, inner]."""
        whole = out.flatten()[: self.sizes(len(raw))[1]].view(len(raw), self.hidden, self.inner)
        for some, to in self._few_at_once(raw, whole):
            for piece in self._down:
                to[:, piece.first : piece.first + piece.matrix.rows] = piece.decoded(some, out.dtype)
        return whole

    def _few_at_once(self, raw: torch.Tensor, whole: torch.Tensor) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        """Of experts and where they go: what is in between takes memory too."""
        count = max(1, BETWEEN // (self.hidden * self.inner))
        return zip(raw.split(count), whole.split(count), strict=True)

    def few_first(self, raw: torch.Tensor, x: torch.Tensor, chosen: torch.Tensor, slots: int) -> torch.Tensor:
        """Products of rows of x [M / slots, hidden] with gate and up of the experts `chosen` [M]: [M, both], by Triton."""
        out = x.new_empty(len(chosen), self.both)
        for pieces in zip(*self._first, strict=True):
            alike = len({(p.matrix.format, p.matrix.rows, p.matrix.panel_bytes, p.known) for p in pieces}) == 1
            for some in [pieces] if alike else [(piece,) for piece in pieces]:
                _few(some, raw, x, chosen, slots, out, self._between)
        return out

    def few_down(self, raw: torch.Tensor, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Likewise for x [M, inner]: [M, hidden]."""
        out = x.new_empty(len(chosen), self.hidden)
        for piece in self._down:
            _few((piece,), raw, x, chosen, 1, out, 1)
        return out


def _few(
    pieces: Sequence[Piece], raw: torch.Tensor, x: torch.Tensor, chosen: torch.Tensor, slots: int, out: torch.Tensor, step: int
) -> None:  # fmt: skip
    matrix, begins, to = pieces[0].matrix, tuple(p.at for p in pieces), tuple(p.first for p in pieces)
    panels.kernels().product(
        matrix.format, raw, chosen, x, out, slots, matrix.rows, matrix.stride, begins, to, step, pieces[0].known
    )


def memory(place: Place) -> torch.Tensor:
    """Memory of the kernels as bytes of a tensor; whoever has it keeps the kernel."""
    return bytes_at(place.address, place.nbytes)


def bytes_at(address: int, count: int) -> torch.Tensor:
    """Host memory as a tensor, uint8."""
    return torch.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype=torch.uint8)


def _piece(matrix: Packed, head: torch.Tensor, begin: int, first: int) -> Piece:
    if matrix.format not in panels.DECODERS:
        raise Unfit(f"no device takes {matrix.format} apart yet")
    return Piece(matrix, begin + matrix.offset, first, panels.detail(matrix.format, head[matrix.offset :]))
