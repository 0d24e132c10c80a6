"""A release that cannot speak must not pass: known greedy beginnings of a real model's answers.

The beginnings were read off transformers' eager float32 on the dense original; questions whose first 14
tokens are near ties there (the two best closer than 0.17) are not used, since any rounding may turn those.
"""

import pytest

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
    "What is gravity?": "Gravity is a fundamental concept in physics that describes the curvature of spacetime",
    "What is a mixture of experts?": "A mixture of experts refers to a collaborative and interdisciplinary approach",
}


@pytest.fixture(scope="module")
def engine(demo_file):
    files = resolve(str(demo_file))
    runner = runner_for(build(open_weights(files), lambda *_: None))
    engine = Engine(runner, load_tokenizer(files))
    yield engine
    engine.close()


@pytest.mark.parametrize("question", CANARIES)
def test_demo_speaks(engine, question):
    messages = ({"role": "user", "content": question},)
    request = Request(id="canary", messages=messages, sampling=Sampling(temperature=0), max_tokens=14)
    answer = "".join(chunk.text for chunk in engine.submit(request))
    assert answer.startswith(CANARIES[question])
