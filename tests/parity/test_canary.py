"""A release that cannot speak must not pass: known greedy beginnings of a real model's answers.

The beginnings were read off transformers' eager float32 on the dense original; questions whose first
tokens are near ties there are not used, since any rounding may turn those.
"""

import pytest
import torch

from kt_core.engine.engine import Engine
from kt_core.engine.loader import build
from kt_core.engine.runners import runner_for
from kt_core.engine.tokenizer import load_tokenizer
from kt_core.models import resolve
from kt_core.types import Request, Sampling
from kt_core.weights import open_weights

pytestmark = pytest.mark.transformers

CANARIES = {
    "What is photosynthesis?": "Photosynthesis is a vital biological process",
    "Write two sentences about the sea.": "The sea is a vast and mysterious realm, teeming with life",
    "What is a mixture of experts?": "A mixture of experts refers to a collaborative and interdisciplinary approach",
}


@pytest.fixture(scope="module")
def engine(demo_file):
    files = resolve(str(demo_file))
    # float32 pages: two tokens of the second answer are so near that rounded keys change places
    runner = runner_for(build(open_weights(files), lambda *_: None), dtype=torch.float32)
    engine = Engine(runner, load_tokenizer(files))
    yield engine
    engine.close()


@pytest.mark.parametrize("question", CANARIES)
def test_demo_speaks(engine, question):
    messages = ({"role": "user", "content": question},)
    request = Request(id="canary", messages=messages, sampling=Sampling(temperature=0), max_tokens=14)
    answer = "".join(chunk.text for chunk in engine.submit(request))
    assert answer.startswith(CANARIES[question])
