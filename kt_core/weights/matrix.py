"""A weight in its stored form."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Matrix:
    """A 2-D weight: `data` is uint8 [rows, bytes of a row], a read-only view of the checkpoint where that is possible."""

    format: str
    rows: int
    cols: int
    data: npt.NDArray[np.uint8]
