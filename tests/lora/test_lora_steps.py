"""Sequences of one step with different adapters and with none, against transformers' models with the adapters merged."""

import made
import pytest
import torch
from references import from_folder, save_tiny
from stepping import Driver

from kt_core import lora, programs
from kt_core.engine.loader import build
from kt_core.engine.runners.fitting import paged_runner
from kt_core.engine.runners.own import OwnCacheRunner
from kt_core.engine.runners.program import ProgramRunner
from kt_core.errors import BadData, Unsupported
from kt_core.models import resolve
from kt_core.weights import open_weights

FAMILIES = ("deepseek_v3", "qwen3_moe")
# Activations are rounded to bfloat16 in every layer, which alone moves these models' logits by up to 2.1 % of their norm, and the
# adapters by more than 30 %.
BOUND = 0.04
EVERY = {"num_experts_per_tok": 8, "topk_group": 2}  # a near tie of a router says nothing


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, tmp_path_factory):
    """(kt's model, transformers' in float32, the names and shapes that can be adapted)"""
    folder = tmp_path_factory.mktemp(request.param)
    changes = EVERY if request.param == "deepseek_v3" else {}
    save_tiny(request.param, folder / "base", torch.bfloat16, **changes)
    model = build(open_weights(resolve(str(folder / "base"))), lambda *_: None)
    reference = from_folder(folder / "base")
    return folder, model, reference, made.targets(reference)


def error(found, expected):
    return float((found - expected).norm() / expected.norm())


def logits(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]


def program(model):
    return ProgramRunner(programs.build(model), 64, torch.float32, page=16)


def modules(model):
    return paged_runner(model, 64, torch.float32)


PROMPTS = [torch.randint(3, 96, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (9, 5, 12, 7)]


@pytest.mark.parametrize("kind", [program, modules, OwnCacheRunner])
def test_mixed_steps(case, kind):
    folder, model, reference, shapes = case
    some = {path: shape for path, shape in shapes.items() if "self_attn" in path}
    changes = [made.save(folder / "all", shapes, 1), made.save(folder / "some", some, 2, rank=5, alpha=5.0)]
    runner = kind(model)
    for number, name in ((4, "all"), (7, "some")):
        runner.adapt(number, lora.read(folder / name))
    adapters = (-1, 4, 4, 7)
    models = [reference, *[made.merged(reference, changes[0])] * 2, made.merged(reference, changes[1])]
    expected = [logits(m, prompt) for m, prompt in zip(models, PROMPTS, strict=True)]
    assert error(expected[1], logits(reference, PROMPTS[1])) > 0.3 < error(expected[3], logits(reference, PROMPTS[3]))
    driver = Driver(runner)
    ends = [len(prompt) - 2 for prompt in PROMPTS]
    last = torch.tensor(ends).cumsum(0) - 1
    found = driver.step({i: p[:-2] for i, p in enumerate(PROMPTS)}, last.tolist(), adapters)
    for i, end in enumerate(ends):
        assert error(found[i], expected[i][end - 1]) < BOUND, i
    for place in (-2, -1):  # token by token, in another order
        order = [3, 0, 2, 1]
        numbers = tuple(adapters[i] for i in order)
        found = driver.step({i: PROMPTS[i][place : len(PROMPTS[i]) + place + 1] for i in order}, None, numbers)
        for row, i in enumerate(order):
            assert error(found[row], expected[i][place]) < BOUND, (place, i)
    runner.forget_adapter(4)
    driver = Driver(kind(model))
    assert error(driver.step({0: PROMPTS[1]}, [len(PROMPTS[1]) - 1])[0], logits(reference, PROMPTS[1])[-1]) < BOUND


def test_a_sequence_without_an_adapter_is_the_same_bits_beside_others(case):
    folder, model, _, shapes = case
    made.save(folder / "all", shapes, 1)
    runner = program(model)
    plain = Driver(runner).step({0: PROMPTS[0]})
    runner = program(model)
    runner.adapt(0, lora.read(folder / "all"))
    beside = Driver(runner).step({0: PROMPTS[0], 1: PROMPTS[1]}, None, (-1, 0))[: len(PROMPTS[0])]
    again = Driver(program(model)).step({0: PROMPTS[0], 1: PROMPTS[1]})[: len(PROMPTS[0])]
    assert torch.equal(beside, again) or error(beside, plain) < 1e-3


@pytest.mark.parametrize("kind", [program, modules])
def test_what_does_not_fit_changes_nothing(case, kind):
    folder, model, reference, shapes = case
    name = next(path for path in shapes if path.endswith("o_proj"))
    runner = kind(model)
    rows, cols = shapes[name]
    for wrong, reason in (
        ({**shapes, "model.layers.9.self_attn.o_proj": shapes[name]}, "lora.names"),
        ({name: (rows + 1, cols)}, "lora.fit"),
        ({"lm_head": (96, 64)}, "lora.names"),
    ):
        made.save(folder / "wrong", wrong, 3)
        with pytest.raises((BadData, Unsupported)) as caught:
            runner.adapt(1, lora.read(folder / "wrong"))
        assert caught.value.key == reason
    found = Driver(runner).step({0: PROMPTS[1]}, [len(PROMPTS[1]) - 1], (1,))
    assert error(found[0], logits(reference, PROMPTS[1])[-1]) < BOUND
