"""Whole models as one native call against transformers' eager float32.

Bounds as in tests/parity: float32 weights differ by the order of sums, bfloat16 ones by the rounding of activations.
"""

import pytest
import torch
from families import save
from references import TINY, from_folder, save_tiny
from stepping import Driver

from kt_core import kernels, programs
from kt_core.engine.loader import build
from kt_core.engine.runners.program import ProgramRunner
from kt_core.models import resolve
from kt_core.weights import open_weights

F32_BOUND = 1e-5  # max |difference| / max |logit|
KL_BOUND = 3e-4  # mean over positions; no position above ten times this
FAMILIES = [
    "deepseek_v2", "deepseek_v3", "dots1", "glm4_moe", "gpt_oss", "llama", "mistral", "mixtral", "olmoe", "qwen2",
    "qwen2_moe", "qwen3", "qwen3_moe",
]  # fmt: skip
PROMPTS = [21, 9, 17]  # tokens of three sequences


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


# Rounding the absorbed weights turns near ties of a router, which says nothing: every token has every expert.
ALL_EXPERTS = {"deepseek_v3": {"num_experts_per_tok": 8, "topk_group": 2}}


def saved(family, folder, dtype):
    if family in TINY:
        save_tiny(family, folder, dtype, **ALL_EXPERTS.get(family, {}) if dtype == torch.bfloat16 else {})
    else:
        save(family, folder, dtype)
    return folder


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["F32", "BF16"])
def case(request, family, tmp_path_factory):
    """(dtype, the program, prompts, what transformers answers)"""
    folder = saved(family, tmp_path_factory.mktemp(family), request.param)
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(3, 128, (n,), generator=generator).tolist() for n in PROMPTS]
    reference = from_folder(folder)
    with torch.no_grad():
        expected = [reference(torch.tensor([prompt])).logits[0] for prompt in prompts]
    model = build(open_weights(resolve(str(folder))), lambda *_: None)
    return request.param, programs.build(model, model.config), prompts, expected


def driver(program, dtype=torch.float32):
    return Driver(ProgramRunner(program, 64, dtype, page=16))


def check(dtype, ours, expected):
    assert torch.isfinite(ours).all()
    if dtype == torch.float32:
        difference = (ours - expected).abs().max() / expected.abs().max()
        assert difference < F32_BOUND, f"{difference:.2e}"
        return
    p, q = expected.double().log_softmax(-1), ours.double().log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1)
    assert kl.mean() < KL_BOUND and kl.max() < 10 * KL_BOUND, f"KL mean {kl.mean():.2e} max {kl.max():.2e}"


@pytest.mark.parametrize("sizes", [[21], [5, 1, 12, 3], [1] * 21], ids=["whole", "parts", "tokens"])
def test_a_sequence_cut_in_any_way(case, sizes):
    dtype, program, prompts, expected = case
    check(dtype, driver(program).cut(7, prompts[0], sizes), expected[0])


def test_sequences_in_different_phases(case):
    """One is in its prompt while others decode; one begins late, one ends early."""
    dtype, program, prompts, expected = case
    a, b, c = prompts
    steps = [{0: a[:8]}, {0: a[8:9], 1: b[:6]}, {0: a[9:19], 1: b[6:7], 2: c[:1]}, {2: c[1:16], 1: b[7:]}]
    steps += [{2: c[16:], 0: a[19:]}]
    ours, at = {0: [], 1: [], 2: []}, driver(program)
    for parts in steps:
        logits = at.step(parts)
        for sequence, tokens in parts.items():
            ours[sequence].append(logits[: len(tokens)])
            logits = logits[len(tokens) :]
    for sequence, logits in enumerate(expected):
        check(dtype, torch.cat(ours[sequence]), logits)


def test_only_the_rows_asked_for(case):
    dtype, program, prompts, expected = case
    at = driver(program)
    assert at.step({0: prompts[0][:5], 1: prompts[1][:2]}, []).shape == (0, program.vocab)
    logits = at.step({0: prompts[0][5:], 1: prompts[1][2:]}, [15, 16, 22])
    check(dtype, logits, torch.stack([expected[0][-1], expected[1][2], expected[1][-1]]))


@pytest.fixture(scope="module", params=["qwen2_moe", "deepseek_v3", "gpt_oss"])
def model_folder(request, tmp_path_factory):
    return saved(request.param, tmp_path_factory.mktemp("model"), torch.bfloat16)


@pytest.fixture(scope="module")
def program(model_folder):
    return programs.build(build(open_weights(resolve(str(model_folder))), lambda *_: None))


@pytest.fixture
def deterministic():
    kernels.set_deterministic(True)
    yield
    kernels.set_deterministic(False)


def test_batch_mates_change_nothing(program, deterministic):
    """Nor does the way in which a prompt is cut; with bfloat16 pages, too."""
    tokens, others = list(range(3, 40)), list(range(100, 60, -1))
    alone = driver(program, torch.bfloat16).cut(0, tokens, [37])
    at, ours = driver(program, torch.bfloat16), []
    for begin, end in ((0, 20), (20, 21), (21, 37)):
        logits = at.step({1: others[begin:end], 0: tokens[begin:end], 2: others[:3]})
        ours.append(logits[end - begin :][: end - begin])
    assert torch.equal(torch.cat(ours), alone)


def test_threads_and_groups_of_threads_change_nothing(program, model_folder, deterministic):
    tokens = list(range(3, 40))
    expected = driver(program).cut(0, tokens, [36, 1])
    threads = kernels.info()["threads"]
    try:
        kernels.set_threads(3)
        assert torch.equal(driver(program).cut(0, tokens, [30, 7]), expected)
        kernels.set_pools([{"threads": 1}, {"threads": 2}])
        split = programs.build(build(open_weights(resolve(str(model_folder))), lambda *_: None))
        assert torch.equal(driver(split).cut(0, tokens, [30, 7]), expected)
    finally:
        kernels.set_threads(threads)


def test_bfloat16_pages_round_keys_and_values_alone(program):
    tokens = list(range(3, 40))
    exact, rounded = (driver(program, dtype).cut(0, tokens, [37]) for dtype in (torch.float32, torch.bfloat16))
    p, q = exact.double().log_softmax(-1), rounded.double().log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1)
    assert 0 < kl.mean() < KL_BOUND and kl.max() < 10 * KL_BOUND, f"KL mean {kl.mean():.2e} max {kl.max():.2e}"


def test_a_step_that_does_not_fit_is_refused(program):
    at = driver(program)
    with pytest.raises(ValueError, match="token 100000 does not exist"):
        at.step({0: [100000]})
    with pytest.raises(ValueError, match="rising"):
        driver(program).step({0: [1, 2]}, [1, 0])
    with pytest.raises(ValueError, match="more than the program's 128"):
        driver(program).step({0: [1] * 129})
    at = driver(program)
    with pytest.raises(ValueError, match="beyond the table"):
        at.cut(0, [1] * 80, [64, 16])
