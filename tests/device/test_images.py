"""Images and videos for models on a device, against transformers' own generation: the vision part is there too."""

import inspect

import pytest
import tinyvision
import transformers
from test_from_plan import with_decisions
from test_kept_prefixes import ON_A_GPU
from test_on_a_gpu import gpu
from test_vision import PROMPTS, Case, answer, image

from kt_core import kernels
from kt_core.device import open_device
from kt_core.engine import loader
from kt_core.engine.pipeline import stage_of
from kt_core.engine.placing import Placing, Stage
from kt_core.engine.runners.hybrid import HybridRunner
from kt_core.engine.vision import Vision
from kt_core.machine import probe
from kt_core.models import resolve
from kt_core.models.spec import read_spec
from kt_core.operators.crossing import Crossing
from kt_core.plan import make_plan


def placing_on(devices):
    first, *further = (Stage(device, Crossing(device)) for device in devices)
    return Placing(first.device, first.crossing, None, 2, captured=(1, 2, 4), further=tuple(further))


@pytest.fixture(scope="module", params=["one", "two", pytest.param("gpu", marks=ON_A_GPU)])
def placed(request, tmp_path_factory):
    model = transformers.Qwen3VLMoeForConditionalGeneration
    if "mm_encoder_outputs" not in inspect.signature(model.forward).parameters:
        pytest.skip(f"transformers {transformers.__version__} takes no embeddings of images")
    devices = [gpu()] if request.param == "gpu" else [open_device("cpu") for _ in range(1 + (request.param == "two"))]
    case = Case("qwen3_vl_moe", tmp_path_factory.mktemp(request.param), placing_on(devices))
    assert isinstance(case.engine._runner, HybridRunner)
    yield case
    case.engine.close(5)


@pytest.mark.parametrize("name", PROMPTS)
def test_images_on_a_device(placed, name):
    assert placed.ask(*PROMPTS[name])[0] == placed.expected(*PROMPTS[name])


def test_answers_about_images_beside_others_on_a_device(placed):
    """Positions of rotary embeddings are a sequence's own, also where decoding is a graph."""
    asked = [PROMPTS["one"], ("what is this?", image(6)), ("what is this?",)]
    streams = [placed.submit(*parts) for parts in asked]
    assert [answer(stream)[0] for stream in streams] == [placed.expected(*parts) for parts in asked]


def test_a_planned_model_on_a_device_reads_images(tmp_path):
    tinyvision.save("qwen3_vl_moe", tmp_path)
    files = resolve(str(tmp_path))
    plan = make_plan(probe(), files, read_spec(files), {"threads": kernels.info()["threads"]})
    plan = with_decisions(plan, devices=["cpu"], gpu_experts=2, chunk=64)
    runner, _, _, vision = loader.load(plan, lambda *_: None)
    assert isinstance(runner, HybridRunner) and isinstance(vision, Vision)


def test_the_whole_vision_part_is_on_the_first_device():
    names = ("model.visual.merger.norm.weight", "model.visual.blocks.1.norm1.bias", "vision_tower.layers.3.norm.weight")
    assert [stage_of(name, {0: 0, 2: 1}) for name in names] == [0, 0, 0]
