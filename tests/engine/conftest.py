import pytest
import tinymodel
import torch

from kt_core.engine.engine import Engine


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """The tiny model is slower on several threads, and other tests run beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def start():
    """Engines over whatever runner a test wants, closed at its end."""
    engines = []

    def make(runner, **options):
        engines.append(Engine(runner, tinymodel.tokenizer(), **options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close(5)
