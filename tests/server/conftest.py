import contextlib
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))

import browser
import tinymodel
from live import Running
from marked import tokenizer_of
from tinymodel import Scripted

from kt_core.engine.engine import Engine
from kt_core.server.state import State


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """The tiny model is slower on several threads, and other tests run beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def serve():
    with contextlib.ExitStack() as stack:

        def make(runner=None, max_queue=64, api_key="", loaded=True, tokenizer=None):
            tokenizer = tokenizer or tinymodel.tokenizer()
            engine = Engine(runner or tinymodel.runner(), tokenizer, max_queue) if loaded else None
            running = Running(State("tiny/model", (api_key,) if api_key else (), engine))
            stack.callback(running.close)
            return running

        yield make


@pytest.fixture(scope="module")
def server():
    """One server with the tiny random model, shared by a module's tests."""
    running = Running(State("tiny/model", (), Engine(tinymodel.runner(), tinymodel.tokenizer())))
    yield running
    running.close()


@pytest.fixture(scope="module")
def chromium():
    with browser.chromium() as made:
        yield made


@pytest.fixture
def ask(serve):
    """Serve a model that answers `text`."""

    def make(text, delay=0.0, **state):
        tokenizer = tokenizer_of()
        runner = Scripted(tokenizer.encode(text, add_special_tokens=False), delay)
        runner.vocab = len(tokenizer)
        running = serve(runner, tokenizer=tokenizer)
        for name, value in state.items():
            setattr(running.state, name, value)
        return running

    return make
