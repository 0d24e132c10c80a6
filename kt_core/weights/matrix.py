"""A weight in its stored form."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Matrix:
    """A 2-D weight: `data` is uint8 [rows, bytes of a row], a read-only view of the checkpoint where that is possible.

    A format with numbers beside the data has them as raw bytes, [their rows, bytes of a row], in `scales` (of type
    `scale_format`: F32, F16, BF16, E8M0 or E4M3; one for `group` weights along K) and `zeros`. `multiplier` is a factor
    of the whole matrix. `rows` x `cols` is always the weight's own [N out, K in].
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
