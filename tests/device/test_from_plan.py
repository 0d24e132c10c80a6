"""From a plan's decisions to a model on a device and the CPU together, and what is said when it does not fit."""

from dataclasses import replace

import pytest
import torch
from families import save
from references import from_folder, save_tiny
from stepping import Driver
from test_hybrid import check, runner_of
from test_parity import KL_BOUND, known_logits, prompts_of

from kt_core.device import found, open_device
from kt_core.engine import loader
from kt_core.engine.loader import build
from kt_core.engine.placing import Placing, placing_of
from kt_core.engine.runners.hybrid import HybridRunner
from kt_core.errors import BadData, DoesNotFit, EnvironmentProblem, UsageError
from kt_core.machine import probe
from kt_core.models import read_spec, resolve
from kt_core.operators.crossing import Crossing
from kt_core.operators.hybrid import HybridExperts
from kt_core.plan import make_plan
from kt_core.types import Decision
from kt_core.weights import open_weights


def with_decisions(plan, **values):
    kept = [decision for decision in plan.decisions if decision.name not in values]
    return replace(plan, decisions=(*kept, *(Decision(name, value, "", "user") for name, value in values.items())))


@pytest.mark.full  # its float32 side takes as long as everything else here
@pytest.mark.model
@torch.no_grad()
def test_the_demo(smollm2_gguf, demo_file, once):
    """Stored in 4 bits: some experts of each layer decoded on the device, the others on the CPU, prompts streamed or not."""
    files = resolve(str(demo_file))
    plan = make_plan(probe(), files, read_spec(files), {"context": 256, "threads": 1, "kv_dtype": "float32"})
    plan = with_decisions(plan, devices=["cpu"], gpu_experts=4, placement="random", prefill_threshold=16, chunk=64)
    runner, _, pages, _ = loader.load(plan, lambda *_: None)
    assert isinstance(runner, HybridRunner) and runner.max_tokens == 64 and pages * runner.page >= 256
    prompts = prompts_of(smollm2_gguf, once)
    prompt, expected = prompts[0], known_logits("demo", demo_file, prompts, once)[0]
    ours = Driver(runner).cut(0, prompt, [30, 1, len(prompt) - 31])
    p, q = expected.double().log_softmax(-1), ours.double().log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1)
    assert kl.mean() < KL_BOUND["int8"] and kl.max() < 10 * KL_BOUND["int8"], f"{kl.mean():.2e} {kl.max():.2e}"


def test_a_model_with_states_of_its_own(tmp_path):
    """Linear attention has no pages: each sequence has its own cache, and experts are shared out all the same."""
    save("qwen3_next", tmp_path, torch.float32)
    runner, model = runner_of(tmp_path, 2)
    assert not isinstance(runner, HybridRunner)
    assert any(isinstance(module, HybridExperts) for module in model.modules())
    prompt = list(range(3, 20))
    with torch.no_grad():
        expected = from_folder(tmp_path)(torch.tensor([prompt])).logits[0, -1:]
    check(Driver(runner).step({0: prompt}, [len(prompt) - 1]), expected)


def built(folder, **settings):
    device = open_device("cpu")
    placing = Placing(device, Crossing(device), **settings)
    return build(open_weights(resolve(str(folder))), lambda *_: None, placing=placing)


def test_too_little_memory_is_said_before_anything_is_read(tmp_path):
    save_tiny("qwen3_moe", tmp_path, torch.float32)
    rest = 4 * sum(p.numel() for n, p in from_folder(tmp_path).named_parameters() if ".experts." not in n)
    each = 2 * 4 * 3 * 40 * 96  # of two layers
    room = {"budget": (1 << 30) + rest + 1000 + 3 * each, "pages": 1000}
    with pytest.raises(DoesNotFit, match="Use --gpu-experts 3, or a smaller"):
        built(tmp_path, experts=4, **room)
    built(tmp_path, experts=3, **room)
    built(tmp_path, experts=4, force=True, **room)


def test_a_full_device_is_said(tmp_path, monkeypatch):
    save_tiny("qwen3_moe", tmp_path, torch.float32)
    runner, _ = runner_of(tmp_path, 0)

    def full(*arguments):
        raise torch.OutOfMemoryError("tried to allocate 2.00 GiB\nmore")

    monkeypatch.setattr(runner, "_computed", full)
    with pytest.raises(DoesNotFit, match=r"memory of cpu is full\. .*tried to allocate 2\.00 GiB.* Use fewer"):
        Driver(runner).step({0: [1, 2, 3]})


def test_statistics_choose_experts(tmp_path):
    save_tiny("qwen3_moe", tmp_path, torch.float32)
    counts = torch.tensor([[[5, 0, 0, 9, 0, 0, 1], [0, 0, 2, 0, 0, 3, 0]]]).repeat(4, 1, 1)
    torch.save({"logical_count": counts}, tmp_path / "counts.pt")
    layers = [
        module.on_device
        for module in built(tmp_path, experts=2, strategy="frequency", statistics=str(tmp_path / "counts.pt")).modules()
        if isinstance(module, HybridExperts)
    ]
    assert layers == [[0, 3], [2, 5]]
    torch.save(counts[:, :, :4], tmp_path / "other.pt")
    with pytest.raises(BadData, match="of another model"):
        built(tmp_path, experts=2, strategy="frequency", statistics=str(tmp_path / "other.pt"))
    (tmp_path / "none.pt").write_text("no tensor")
    with pytest.raises(BadData, match="no statistics"):
        built(tmp_path, experts=2, strategy="frequency", statistics=str(tmp_path / "none.pt"))


def test_devices_that_are_not_there():
    for name, error in (
        ("tpu", UsageError),
        ("cuda:x", UsageError),
        ("cpu:1", EnvironmentProblem),
        ("xpu", EnvironmentProblem),
    ):
        with pytest.raises(error):
            open_device(name)
    if "cuda:0" not in found():
        with pytest.raises(EnvironmentProblem, match="has no cuda device here"):
            open_device("cuda")


def test_a_plan_for_the_cpu_has_no_device(tmp_path):
    save_tiny("qwen3_moe", tmp_path, torch.float32)
    files = resolve(str(tmp_path))
    plan = make_plan(probe(), files, read_spec(files), {})
    assert placing_of(plan) is None and placing_of(with_decisions(plan, devices=[])) is None
    placing = placing_of(with_decisions(plan, devices=["cpu"], vram_budget=[123], gpu_experts=3))
    assert (placing.budget, placing.experts, placing.streamer) == (123, 3, None)
