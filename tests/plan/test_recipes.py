"""Published launch commands, pasted as they are: what kt plans for each, beside what its authors chose by hand."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from kt_core import flags
from kt_core.machine.simulate import simulate
from kt_core.models import catalogue
from kt_core.models.spec import from_config
from kt_core.plan import make_plan
from kt_core.plan.abilities import WHOLE
from kt_core.types import Machine, ModelFiles, ModelSpec, Node, Plan

GIB = 1 << 30
HERE = Machine(
    "Here", "x86_64", ("avx2", "f16c", "fma"), 2, 2, (0, 1), {0: Node((0, 1))}, {"cores": 2.0}, 24 * GIB, 22 * GIB
)
SERVER = "python -m sglang.launch_server --host 0.0.0.0 --port 30000 "
MIXED = "--trust-remote-code --enable-mixed-chunk --tensor-parallel-size 1 --enable-p2p-check --disable-shared-experts-fusion"
XEONS, DESKTOP = "cpu=xeon-6454s:2,ram=1TiB,gpu=rtx-4090", "cpu=5950x,ram=128GiB,gpu=rtx-3090"
GLM = (
    "--model-path GLM --kt-weight-path GLM --kt-method FP8 --kt-cpuinfer 64 --kt-threadpool-count 2 "
    "--kt-gpu-prefill-token-threshold 2048 --context-length 501025 --served-model-name GLM-5.3-flash --cuda-graph-bs 1 2 4 "
    '--limit-mm-data-per-request \'{"image":8,"video":1}\' --tool-call-parser glm47 --reasoning-parser glm45 '
)


def known(name: str, formats: dict[str, str] | None = None, **changes: Any) -> ModelSpec:
    found = catalogue.find(name)
    assert found
    spec = from_config(dict(found.config), beside=found.beside, formats=formats) if formats else catalogue.spec(found)
    assert spec
    return replace(spec, **changes)


@dataclass(frozen=True)
class Case:
    """`threads`, `pools`, `experts`, `tokens`: the recipe's own; experts -1: it says nothing, or its program drops them.
    `why`: what the reason has to hold where kt keeps another number of experts on the GPU."""

    command: str
    spec: ModelSpec
    machine: str
    method: str
    threads: int
    pools: int
    experts: int
    tokens: int = 0
    why: str = ""


QWEN = known("qwen3-30b-a3b")
INT8 = known("qwen3-30b-a3b", {"": "BF16", "experts": "INT8_CHANNEL"})
GGUF = known("qwen3-30b-a3b", {"": "Q4_K"}, method="LLAMAFILE")
CASES = {
    "1 BF16, one 4090": Case(
        "--model Q --kt-weight-path Q --kt-method BF16 --kt-cpuinfer 64 --kt-threadpool-count 2 --kt-gpu-prefill-token-threshold 4096 "
        "--kt-enable-dynamic-expert-update --attention-backend flashinfer --mem-fraction-static 0.80 --chunked-prefill-size 16384 "
        f"--max-running-requests 4 --served-model-name Qwen3 {MIXED}",
        QWEN, XEONS, "BF16", 64, 2, 32,
    ),
    "2 INT8": Case(
        "--model Q --kt-weight-path Q-INT8 --kt-method AMXINT8 --kt-cpuinfer 64 --kt-threadpool-count 2 "
        "--kt-max-deferred-experts-per-token 2 --mem-fraction-static 0.92 --chunked-prefill-size 4096 --trust-remote-code",
        INT8, XEONS, "AMXINT8", 64, 2, 32,
    ),
    "3 GGUF": Case(
        "--model Q --kt-weight-path Q-GGUF --kt-method LLAMAFILE --kt-cpuinfer 64 --kt-threadpool-count 2 "
        "--kt-max-deferred-experts-per-token 2 --mem-fraction-static 0.92 --chunked-prefill-size 4096 --trust-remote-code",
        GGUF, XEONS, "LLAMAFILE", 64, 2, 32,
    ),
    "4 BF16, AVX2": Case(
        "--model Q --kt-weight-path Q --kt-method BF16 --kt-cpuinfer 16 --kt-threadpool-count 1 --attention-backend flashinfer "
        f"--mem-fraction-static 0.80 --chunked-prefill-size 8192 --max-running-requests 2 {MIXED}",
        QWEN, DESKTOP, "BF16", 16, 1, 32,
    ),
    "5 FP8, AVX2": Case(
        "--model Q --kt-weight-path Q --kt-method FP8 --kt-cpuinfer 16 --kt-threadpool-count 1 --kt-gpu-prefill-token-threshold 400 "
        "--attention-backend triton --mem-fraction-static 0.85 --chunked-prefill-size 4096 --max-running-requests 1 "
        "--max-total-tokens 32000",
        known("Qwen/Qwen3.5-35B-A3B-FP8"), DESKTOP, "FP8", 16, 1, 2, 32000, "as many as fit",
    ),
    "6 GPTQ, AVX2": Case(
        "--model Q --kt-weight-path Q --kt-method GPTQ_INT4 --kt-cpuinfer 16 --kt-threadpool-count 1 --attention-backend triton "
        "--mem-fraction-static 0.85 --chunked-prefill-size 4096 --max-running-requests 1 --max-total-tokens 32000",
        known("Qwen/Qwen3-30B-A3B-GPTQ-Int4"), DESKTOP, "GPTQ_INT4", 16, 1, 2, 32000, "all 128 of each layer fit",
    ),
    "7 Kimi on four cards": Case(
        "--model K --kt-weight-path K --kt-method RAWINT4 --kt-cpuinfer 64 --kt-threadpool-count 1 --kt-enable-dynamic-expert-update "
        "--attention-backend flashinfer --mem-fraction-static 0.95 --chunked-prefill-size 8192 --max-running-requests 4 "
        "--context-length 262144 --tensor-parallel-size 4 --trust-remote-code --enable-p2p-check",
        known("k2.5"), "cpu=5995wx,ram=256GiB,gpu=rtx-pro-6000:4", "RAWINT4", 64, 1, 228, 262144,
    ),
    "8 GLM on four cards": Case(
        GLM + "--mem-fraction-static 0.60 --chunked-prefill-size 4096 --tp-size 4",
        known("GLM-5.3-Flash"), "cpu=xeon-6454s:2,ram=384GiB,gpu=rtx-4090:4", "FP8", 64, 2, 40, 501025,
    ),
    "9 GLM on one card": Case(
        GLM + "--mem-fraction-static 0.65 --chunked-prefill-size 2048 --tp-size 1",
        known("GLM-5.3-Flash"), "cpu=xeon-6454s:2,ram=384GiB,gpu=rtx-5090", "FP8", 64, 2, 0, 501025, "as many as fit",
    ),
    "10 without its adapter": Case(
        "--model Q --kt-weight-path Q-INT4 --kt-method AMXINT4 --kt-cpuinfer 60 --kt-threadpool-count 2 --kt-numa-nodes 0 1 "
        "--mem-fraction-static 0.98 --chunked-prefill-size 4096 --max-running-requests 2 --max-total-tokens 32000 "
        "--attention-backend flashinfer --tp-size 4 --disable-cuda-graph --disable-custom-all-reduce --log-level info",
        known("qwen3.5-35b-a3b", {"": "BF16", "experts": "INT4"}), "cpu=xeon-6454s:2,ram=256GiB,gpu=rtx-4090:4",
        "AMXINT4", 60, 2, 0, 32000, "all 256 of each layer fit",
    ),
    "11 the skeleton": Case(
        "--model Q --kt-weight-path Q-INT8 --kt-method AMXINT8 --kt-cpuinfer 64 --kt-threadpool-count 2 "
        "--kt-max-deferred-experts-per-token 2",
        INT8, XEONS, "AMXINT8", 64, 2, 32,
    ),
    "12 DeepSeek-V4-Flash of the container": Case(
        "--model D --kt-weight-path D --kt-method MXFP4 --kt-cpuinfer 64 --kt-threadpool-count 2 --mem-fraction-static 0.90 "
        "--chunked-prefill-size 4096 --context-length 16384 --max-running-requests 2 --kt-gpu-prefill-token-threshold 2048 "
        "--swa-full-tokens-ratio 0.4 --tp 1",
        known("v4-flash"), XEONS, "MXFP4", 64, 2, -1, 16384,
    ),
}  # fmt: skip
# Decided by the planner, although the command names a number: what it would be with nothing said
DECIDED = ("threads", "pools", "gpu_experts")
OPTIONS = {"--threads": "threads", "--context": "context", "--max-running": "max_running"}


def planned(case: Case, *more: str) -> Plan:
    """The plan for the command, but for what the planner is asked to find by itself."""
    there = simulate(case.machine, HERE)
    words = flags.command_line(" ".join([SERVER + case.command, *more]))
    done = flags.translate(words, [*OPTIONS, "--host", "--port", "--tool-parser", "--reasoning-parser"])
    wishes = {name: value for name, value in done.wishes.items() if name not in (*DECIDED, "served_name")}
    for option, name in OPTIONS.items():
        if option in done.words and name not in DECIDED:
            wishes[name] = int(done.words[done.words.index(option) + 1])
    files = ModelFiles(done.words[0], "", "safetensors", ())
    return make_plan(there.machine, files, case.spec, wishes, there.profile, 0, WHOLE)


@pytest.mark.parametrize("name", CASES)
def test_what_is_planned_is_what_its_authors_chose(name: str) -> None:
    case = CASES[name]
    plan = planned(case)
    assert plan.value("method") == case.method
    assert len(plan.value("pools")) == case.pools
    gpus = simulate(case.machine, HERE).machine.gpus
    assert plan.value("devices") == [f"cuda:{number}" for number in range(len(gpus))]
    assert case.threads - len(gpus) <= plan.value("threads") <= case.threads
    assert "for the GPUs' own threads" in reason(plan, "threads")
    assert plan.value("context") >= case.tokens
    count = plan.value("gpu_experts")
    if case.why:  # kt fills a card that the recipe leaves empty, or that its program empties
        assert count > case.experts and case.why in reason(plan, "gpu_experts")
    elif case.experts >= 0:
        assert 0.75 * case.experts <= count <= 1.25 * case.experts
    there = simulate(case.machine, HERE).machine
    assert plan.device_bytes["cpu"] <= there.memory_available
    for device, gpu in zip(plan.value("devices"), there.gpus, strict=True):
        assert plan.device_bytes[device] == sum(plan.gpu_parts[device].values()) <= gpu.memory


def reason(plan: Plan, name: str) -> str:
    return next(decision.reason for decision in plan.decisions if decision.name == name)


@pytest.mark.parametrize("wish", ["--kt-num-gpu-experts 32", "--kt-gpu-experts-ratio 0.25"])
def test_the_number_that_the_recipe_gives_is_taken(wish: str) -> None:
    case = CASES["11 the skeleton"]
    there = simulate(case.machine, HERE)
    done = flags.translate(flags.command_line(SERVER + case.command + " " + wish), OPTIONS)
    wishes = {**done.wishes, "threads": 64}
    plan = make_plan(there.machine, ModelFiles("Q", "", "safetensors", ()), case.spec, wishes, None, 0, WHOLE)
    assert plan.value("gpu_experts") == 32 and plan.value("threads") == 64 and len(plan.value("pools")) == 2
    assert plan.value("deferred") == 2


def test_the_adapter_of_a_recipe_is_served() -> None:
    command = CASES["10 without its adapter"].command + " --enable-lora --lora-backend triton --lora-paths qwen=DIR"
    done = flags.translate(flags.command_line(SERVER + command), [*OPTIONS, "--host", "--port", "--lora"])
    assert done.words[done.words.index("--lora") + 1] == "qwen=DIR"
