"""A program while it is written: the buffers that its parts share, and what all of them need to know."""

from dataclasses import dataclass

import torch

from kt_core.kernels.program import Program, Rows
from kt_core.programs.rotary import Rotary


@dataclass(frozen=True)
class Choices:
    """What a module's settings leave open; the check against transformers says which it is."""

    interleaved: bool = False  # rotary pairs are neighbours
    windowed: bool = False  # the layer's attention has the configured window


class Code:
    """Parts append their operations to `program`. Buffers of one name are one: they hold nothing between parts."""

    def __init__(self, max_tokens: int, max_context: int, dtype: torch.dtype, page: int) -> None:
        self.program = Program(max_tokens)
        self.max_context = max_context
        self.dtype = dtype
        self.page = page
        self._rows: dict[tuple[str, int], Rows] = {}
        self._tables: dict[int, int] = {}

    def rows(self, name: str, width: int) -> Rows:
        """The buffer of that name and width."""
        key = (name, width)
        if key not in self._rows:
            self._rows[key] = self.program.rows(width)
        return self._rows[key]

    def table(self, rotary: Rotary) -> int:
        """The program's number of the rotary tables, made once. Raises Unfit."""
        key = id(rotary)
        if key not in self._tables:
            self._tables[key] = self.program.table(rotary.tables(self.max_context))
        return self._tables[key]
