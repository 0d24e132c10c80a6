"""How weights are written: one file for each method, found by its name.

A method's file has
- `tensors(rows, cols, scheme)`: what a weight [rows, cols] becomes, as `Stored`, in order;
- `encode(values, scheme, importance)`: the bytes of those, for some of the weight's rows. `values` is float32
  [count, cols]; `importance` float32 [cols], how much an error of each column counts, or None. `count` is a multiple of
  ROWS but for a weight's last rows;
- `LARGEST`: the largest number that its scales reach, a finite float32;
- where GPTQ makes it: `compensated(values, scheme, curvature)`, the same from a columns.Curvature;
- for Hugging Face folders `FORMAT` and `settings(scheme)`: the words of compressed-tensors for it.
"""

import importlib
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import numpy.typing as npt

from kt_core.formats import nbytes

ROWS = 128  # rows that stay together: those of an FP8 block; zero points need eight
# Values that a method looks at together: 1 MB, in a second cache or not far from it. Of 256 KB each, the calls of numpy were a
# third of Q4_K's time.
AT_ONCE = 1 << 18

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Scheme:
    """A method with its choices. `group` is 0 where the method has none to make."""

    method: str
    group: int = 0
    zero_point: bool = False


@dataclass(frozen=True)
class Stored:
    """A tensor that a weight becomes: `suffix` takes the place of "weight" in its name.

    One of its rows is made of `per` rows of the weight; 0: it does not depend on the numbers.
    """

    suffix: str
    format: str
    shape: tuple[int, ...]
    per: int = 1

    @property
    def nbytes(self) -> int:
        count = 1
        for dimension in self.shape:
            count *= dimension
        return nbytes(self.format, count)


def find(name: str) -> ModuleType:
    """The file of a method."""
    return importlib.import_module(f"{__name__}.{name.casefold()}")


def in_slices(values: Floats) -> list[Floats]:
    """Rows of `values`, few at a time."""
    step = max(1, AT_ONCE // values.shape[1])
    return [values[first : first + step] for first in range(0, len(values), step)]


def grouped(importance: Floats | None, group: int) -> Floats | None:
    """The importance of a row's groups [K / group, group], as `kernels.grids` takes it."""
    return None if importance is None else np.ascontiguousarray(importance.reshape(-1, group))


def raw(array: npt.NDArray[np.generic]) -> Bytes:
    """An array's bytes, one after another."""
    flat: Bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat
