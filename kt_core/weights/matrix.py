"""A weight in its stored form."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Matrix:
    """A 2-D weight [rows, cols] = [N out, K in], as read-only views of the checkpoint where that is possible.

    `data` is uint8 [rows, bytes of a row]; for GPTQ and AWQ the rows of the stored words. Formats with arrays beside it
    have `scales` and some `zeros`, raw bytes of the same kind: uint8 [their rows, bytes of a row]. `scale_format` is F32,
    F16, BF16, E8M0 or E4M3; `group` the weights along K that share a scale (-1: the whole row; 0: as the format says);
    `multiplier` a factor of the whole weight.
    """

    format: str
    rows: int
    cols: int
    data: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.uint8] | None = None
    zeros: npt.NDArray[np.uint8] | None = None
    scale_format: str = ""
    group: int = 0
    multiplier: float = 1.0
