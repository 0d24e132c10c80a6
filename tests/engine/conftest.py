import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """The tiny model is slower on several threads, and other tests run beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
