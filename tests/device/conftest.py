import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parent.parent
for folder in ("parity", "programs", "engine"):  # for their tiny models, and the drivers of a runner's steps
    sys.path.insert(0, str(TESTS / folder))


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """The tiny models are slower on several threads, and other tests run beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
