import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kt_core.kernels import info, set_threads
from kt_core.kernels.native import set_poison

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "weights"))


@pytest.fixture(autouse=True)
def _as_usual(usual_threads: int) -> Iterator[None]:
    """Poisoned results for every test, and after it as many threads as a worker of the suite may use."""
    set_poison(True)
    yield
    if info()["threads"] != usual_threads:
        set_threads(usual_threads)
