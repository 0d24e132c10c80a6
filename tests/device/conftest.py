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
    from kt_core import kernels

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    kernels.set_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def restless(monkeypatch):
    """Every turn moves what it can."""
    from kt_core.operators import moving

    monkeypatch.setattr(moving, "MARGIN", -1e9)
    monkeypatch.setattr(moving, "BYTES", 1e18)
    monkeypatch.setattr(moving, "EVERY", 1)
    monkeypatch.setattr(moving, "PAYS", -1e9)
