"""Asks the disk for pages of mapped files before somebody reads them.

A thread that touches a page waits for it, and the kernel reads little further: threads wait most of the time, however fast
the disk is. Asked for many MB ahead it works all the while.
"""

import itertools
import os
from collections.abc import Sequence
from types import TracebackType

import numpy as np

from kt_core.quantise.methods import Bytes

AHEAD = 64 << 20  # bytes
Span = tuple[str, int, int]  # file, begin, bytes


class Ahead:
    """For arrays that are going to be read in this order. Threads may call `step` at once."""

    def __init__(self, arrays: Sequence[Bytes]) -> None:
        self._spans = [_span(array) for array in arrays]
        self._files = {file: os.open(file, os.O_RDONLY) for file in {span[0] for span in self._spans if span}}
        average = sum(span[2] for span in self._spans if span) // max(1, len(self._spans))
        self._next = itertools.count()
        self._first = min(len(self._spans), AHEAD // max(1, average) + 1)

    def __enter__(self) -> "Ahead":
        for _ in range(self._first):
            self.step()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            os.close(file)

    def step(self) -> None:
        """To be called as one array after the other is begun with: asks for one that comes later."""
        at = next(self._next)
        span = self._spans[at] if at < len(self._spans) else None
        if span and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._files[span[0]], span[1], span[2], os.POSIX_FADV_WILLNEED)


def _span(array: Bytes) -> Span | None:
    """Where in a file the array lies; None where it is no part of a mapped one."""
    base: object = array
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    if not isinstance(base, np.memmap) or base.filename is None or not array.flags.c_contiguous:
        return None
    whole = base
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    begin = array.ctypes.data - whole.ctypes.data + whole.offset
    return str(base.filename), begin, array.nbytes
