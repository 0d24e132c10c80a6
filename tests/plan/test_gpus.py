"""What lies on GPUs: sums that fit, wishes that are kept, refusals with the nearest thing, and one CPU where none can."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kt_core.errors import DoesNotFit, KTError, Unsupported, UsageError
from kt_core.machine import hardware
from kt_core.machine.simulate import simulate
from kt_core.models import catalogue
from kt_core.plan import gpus, make_plan, memory, streaming
from kt_core.plan.abilities import THIS, WHOLE, Engine
from kt_core.types import Gpu, Machine, ModelFiles, ModelSpec, Node, Plan

GIB = 1 << 30
HERE = Machine(
    "Here", "x86_64", ("avx2", "f16c", "fma"), 2, 2, (0, 1), {0: Node((0, 1))}, {"cores": 2.0}, 24 * GIB, 22 * GIB
)
FILES = ModelFiles("m", "", "safetensors", ())
XEONS = "cpu=xeon-6454s:2,ram=1TiB"


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KT_LANG", "en")


def known(name: str) -> ModelSpec:
    found = catalogue.find(name)
    spec = catalogue.spec(found) if found else None
    assert spec
    return spec


NOTHING = Engine(kinds=())
QWEN, KIMI = known("qwen3-30b-a3b"), known("k2.5")


def plan(parts: str, spec: ModelSpec = QWEN, engine: Engine = WHOLE, **wishes: Any) -> Plan:
    there = simulate(parts, HERE)
    return make_plan(there.machine, FILES, spec, wishes, there.profile, 0, engine)


def reason(made: Plan, name: str) -> str:
    return next(decision.reason for decision in made.decisions if decision.name == name)


MODELS = [
    known(name) for name in ("qwen3-30b-a3b", "r1", "m2.1", "gpt-oss-120b", "v4-flash", "qwen3.5-35b-a3b", "mixtral")
]


@given(
    st.sampled_from(MODELS),
    st.sampled_from(["rtx-3060", "rtx-4090", "rtx-5090", "a100", "h200", "rtx-pro-6000", "v100", "mi300x"]),
    st.integers(1, 8),
    st.integers(32, 2048),
    st.one_of(st.none(), st.integers(16, 200_000)),
    st.one_of(st.none(), st.floats(0.05, 1)),
)
def test_what_is_planned_fits(
    spec: ModelSpec, gpu: str, count: int, ram: int, context: int | None, share: float | None
) -> None:
    try:
        made = plan(f"cpu=xeon-6454s:2,ram={ram}GiB,gpu={gpu}:{count}", spec, context=context, vram_share=share)
    except KTError as error:
        assert error.exit_code in (2, 3) and all(error.lines())
        return
    there = simulate(f"cpu=xeon-6454s:2,ram={ram}GiB", HERE).machine
    assert made.device_bytes["cpu"] <= there.memory_available
    assert made.value("context") <= spec.context and made.value("context") == (context or made.value("context"))
    names = made.value("devices")
    assert set(made.gpu_parts) == set(names) == set(made.device_bytes) - {"cpu"} and len(names) <= count
    for device in names:
        assert made.device_bytes[device] == sum(made.gpu_parts[device].values()) <= min(made.value("vram_budget"))
    if names:
        kept = {"embedding", "mtp"} & spec.bytes_by_part.keys()
        on_cpu = sum(spec.bytes_by_part[part] for part in kept) if "head" in spec.bytes_by_part else 0
        on_cpu += spec.bytes_by_part["experts"] * (spec.experts - made.value("gpu_experts")) // spec.experts
        assert made.memory_parts["weights"] == pytest.approx(on_cpu, rel=1e-6, abs=spec.experts)


@pytest.mark.parametrize("spec", MODELS, ids=lambda spec: spec.family)
def test_more_memory_of_a_gpu_never_holds_fewer_experts(spec: ModelSpec) -> None:
    counts = []
    for size in range(8, 144, 8):
        made = plan(f"{XEONS},gpu=h200", spec, vram_budget=f"{size}GiB" if size < 134 else None, context=8192, chunk=64)
        counts.append(made.value("gpu_experts") if made.value("devices") else 0)
    assert counts == sorted(counts) and counts[-1] > 0


def test_parts_of_a_model_on_a_gpu() -> None:
    made = plan(f"{XEONS},gpu=rtx-4090", prefill_threshold=512, chunk=1024)
    parts = made.gpu_parts["cuda:0"]
    resident = sum(QWEN.bytes_by_part[part] for part in ("attention", "head", "other"))
    expert = 3 * 2048 * 768 * 2
    assert parts["weights"] == resident
    assert parts["experts"] == made.value("gpu_experts") * 48 * expert and parts["layer"] == 128 * expert
    assert parts["cache"] == 40960 * 98304 == made.value("cache") and parts["runtime"] == gpus.RUNTIME_BYTES
    others = sum(parts[name] for name in ("weights", "experts", "cache", "layer"))
    assert parts["rows"] == 1024 * 2 * (16 * 2048 + 4 * 8 * 768) + int(gpus.KEPT * others)
    assert (
        made.memory_parts["weights"]
        == (128 - made.value("gpu_experts")) * 48 * expert + QWEN.bytes_by_part["embedding"]
    )


def test_forms_that_gpus_do_not_compute_with_count_as_bfloat16() -> None:
    eight = replace(
        QWEN,
        method="LLAMAFILE",
        formats={"IQ2_XS": 1},
        bytes_by_part={part: n // 2 for part, n in QWEN.bytes_by_part.items()},
    )
    assert gpus.expert_bytes(eight) == gpus.expert_bytes(QWEN) == 3 * 2048 * 768 * 2
    assert "in bfloat16" in reason(plan(f"{XEONS},gpu=rtx-4090", eight), "gpu_experts")
    assert "as they are stored" in reason(plan(f"{XEONS},gpu=rtx-4090"), "gpu_experts")


def test_the_fewest_gpus_that_hold_everything() -> None:
    assert plan(f"{XEONS},gpu=h200:4").value("devices") == ["cuda:0"]
    four = plan(f"{XEONS},gpu=rtx-4090:4")
    assert four.value("devices") == [f"cuda:{n}" for n in range(4)] and four.value("layout") == "tensor"
    assert four.value("gpu_experts") == 128 and four.value("prefill_threshold") is None
    assert plan(f"{XEONS},gpu=h200:4", tensor=2).value("devices") == ["cuda:0", "cuda:1"]


def test_layouts() -> None:
    assert plan("cpu=5995wx,ram=512GiB,gpu=rtx-pro-6000:4", KIMI).value("layout") == "pipeline"
    assert plan(f"{XEONS},gpu=rtx-4090:3", tensor=None).value("layout") == "pipeline"  # 4 heads of keys, 3 GPUs
    assert plan(f"{XEONS},gpu=rtx-4090:4", pipeline=4).value("layout") == "pipeline"
    for wishes in ({"tensor": 2, "pipeline": 2}, {"tensor": 5}, {"tensor": 3}, {"tensor": 0}):
        with pytest.raises(UsageError):
            plan(f"{XEONS},gpu=rtx-4090:4", **wishes)


@pytest.mark.parametrize(
    ("wishes", "error"),
    [
        ({"gpu_experts": 129}, UsageError),
        ({"gpu_experts": -1}, UsageError),
        ({"gpu_experts_ratio": 1.5}, UsageError),
        ({"gpu_experts": 120}, DoesNotFit),
        ({"placement": "best"}, UsageError),
        ({"placement": "frequency"}, UsageError),
        ({"deferred": 8}, UsageError),
        ({"vram_budget": "much"}, UsageError),
        ({"vram_share": 0.0}, UsageError),
        ({"vram_budget": "2GiB", "devices": "cuda"}, DoesNotFit),
        ({"prefill_threshold": 4096, "chunk": 2048}, UsageError),
        ({"prefill_threshold": 0}, UsageError),
        ({"chunk": 0}, UsageError),
        ({"devices": "cuda:1"}, UsageError),
        ({"devices": "cuda:0,cuda:0"}, UsageError),
        ({"devices": "tpu"}, UsageError),
        ({"devices": "xpu"}, Unsupported),
        ({"method": "AMXINT4"}, Unsupported),
        ({"method": "FP9"}, UsageError),
        ({"nodes": [2]}, UsageError),
        ({"nodes": [0], "pools": 2}, UsageError),
    ],
)
def test_wishes_that_cannot_be_kept(wishes: dict[str, Any], error: type[KTError]) -> None:
    with pytest.raises(error) as caught:
        plan(f"{XEONS},gpu=rtx-4090", **wishes)
    assert all(caught.value.lines())


def test_a_longer_context_leaves_room_for_fewer_experts() -> None:
    short, long = (plan(f"{XEONS},gpu=rtx-4090", context=count) for count in (4096, 40960))
    assert short.value("gpu_experts") > long.value("gpu_experts") > 0
    with pytest.raises(DoesNotFit, match="--context") as caught:
        plan(f"{XEONS},gpu=rtx-4090", vram_budget="5GiB", context=40960, devices="cuda")
    fits = int(str(caught.value).split("--context ")[1].split(".")[0])
    assert plan(f"{XEONS},gpu=rtx-4090", vram_budget="5GiB", context=fits, devices="cuda").value("context") == fits


def test_the_context_gives_way_to_experts_that_were_asked_for() -> None:
    """As llama.cpp's fitting did not (ggml-org/llama.cpp#27872): the rest is fitted around the user's choice."""
    most = plan(f"{XEONS},gpu=rtx-4090").value("gpu_experts")
    made = plan(f"{XEONS},gpu=rtx-4090", gpu_experts=most + 4)
    assert made.value("gpu_experts") == most + 4 and made.value("context") < 40960
    assert made.device_bytes["cuda:0"] <= made.value("vram_budget")[0]


def test_experts_that_memory_has_no_room_for_come_first() -> None:
    made = plan("cpu=9950x,ram=40GiB,gpu=rtx-4090")
    assert made.value("gpu_experts") > 128 * 0.3 and made.device_bytes["cpu"] <= 40 * GIB
    with pytest.raises(DoesNotFit, match="would have to be there"):
        plan("cpu=9950x,ram=16GiB,gpu=rtx-4090")


def test_what_no_gpu_can_hold_is_for_the_cpu_alone() -> None:
    made = plan(f"{XEONS},gpu=rtx-3060", known("r1"))
    assert made.value("devices") == [] and made.gpu_parts == {} and "rtx-3060" in reason(made, "devices")
    assert made.value("threads") == 64
    dense = plan(f"{XEONS},gpu=rtx-3060", known("qwen3-14b"))
    assert dense.value("devices") == [] and "whole or not at all" in reason(dense, "devices")
    whole = plan(f"{XEONS},gpu=rtx-4090", known("qwen3-0.6b"))
    assert whole.value("devices") == ["cuda:0"] and whole.value("gpu_experts") == 0


def test_gpus_that_cannot_be_used_are_named() -> None:
    assert "there is no GPU" in reason(plan(XEONS), "devices")
    assert "not compute on rtx-4090" in reason(plan(f"{XEONS},gpu=rtx-4090", engine=NOTHING), "devices")
    assert "7.0" in reason(plan(f"{XEONS},gpu=v100"), "devices")
    idle = plan(f"{XEONS},gpu=rtx-4090", engine=NOTHING, gpu_experts=32, chunk=512)
    assert idle.value("devices") == [] and reason(idle, "devices").endswith("without effect: gpu_experts, chunk")
    assert plan(f"{XEONS},gpu=mi300x").value("devices") == ["cuda:0"]  # torch calls ROCm's so
    shared = replace(simulate(XEONS, HERE).machine, gpus=(Gpu("iGPU", 0, 0),))
    made = make_plan(shared, FILES, QWEN, {}, None, 0, WHOLE)
    assert made.value("devices") == [] and "no memory of its own" in reason(made, "devices")
    mixed = replace(shared, gpus=(hardware.gpu("rtx-3090"), hardware.gpu("h200"), hardware.gpu("v100")))
    assert make_plan(mixed, FILES, QWEN, {}, None, 0, WHOLE).value("devices") == ["cuda:1"]
    chosen = make_plan(mixed, FILES, QWEN, {"devices": "cuda:0"}, None, 0, WHOLE)
    assert chosen.value("devices") == ["cuda:0"]


def test_free_memory_counts_where_it_is_known() -> None:
    there = simulate(f"{XEONS},gpu=rtx-4090", HERE).machine
    busy = replace(there, gpus=(replace(there.gpus[0], free=10 * GIB),))
    made = make_plan(busy, FILES, QWEN, {}, None, 0, WHOLE)
    assert made.value("vram_budget") == [int(10 * GIB * 0.99)]
    assert made.device_bytes["cuda:0"] <= 10 * GIB


def test_the_threshold_is_where_copies_take_as_long_as_the_cpu() -> None:
    link = streaming.Link(25e9, 3e12)
    tokens = streaming.tokens_of(QWEN, link)
    layer, used = QWEN.bytes_by_part["experts"] / 48, QWEN.parameters_by_part["experts"] / 48 * 8 / 128
    assert tokens * 2 * used / 3e12 == pytest.approx(layer / 25e9, rel=0.01)
    decision = streaming.threshold(QWEN, {}, link)
    assert decision.value % 64 == 0 and 0 <= decision.value - tokens < 64
    assert streaming.threshold(QWEN, {}, streaming.Link(1e9, 3e13)).value is None
    assert streaming.threshold(replace(QWEN, method="LLAMAFILE", formats={"IQ2_XS": 1}), {}, link, THIS).value is None
    assert streaming.threshold(QWEN, {}, None).value is None
    assert streaming.threshold(QWEN, {"prefill_threshold": 77}, None).value == 77


def test_chosen_nodes() -> None:
    made = plan(XEONS, nodes=[1])
    assert [pool["node"] for pool in made.value("pools")] == [1] and made.value("threads") == 32
    assert len(plan(XEONS, nodes=[0, 1]).value("pools")) == 2


def test_tokens_of_all_conversations() -> None:
    made = plan(XEONS, cache_tokens=32000)
    assert made.value("context") == 32000 and made.value("cache") == memory.cache_bytes(QWEN, 32000, "bfloat16")
    assert plan(XEONS, cache_tokens=100_000).value("context") == 40960
    with pytest.raises(DoesNotFit):
        plan("cpu=9950x,ram=62GiB", cache_tokens=10_000_000)


@pytest.mark.parametrize("gpu", ["rtx-4090", "h200", "rtx-pro-6000"])
@pytest.mark.parametrize("spec", MODELS, ids=lambda spec: spec.family)
def test_what_this_version_is_told_to_hold_it_has_room_for(spec: ModelSpec, gpu: str) -> None:
    """By the engine's own count before it loads: bfloat16 for all that is no expert, a GiB for steps, one GPU."""
    there = simulate(f"cpu=xeon-6454s:2,ram=2TiB,gpu={gpu}:2", HERE)
    made = make_plan(there.machine, FILES, spec, {"chunk": 512, "vram_budget": 0.95}, there.profile)
    if not made.value("devices"):
        assert gpu == "rtx-4090" and "every token" in reason(made, "devices")
        return
    (device,) = made.value("devices")
    experts = 2 * spec.parameters_by_part["experts"]
    experts = min(experts, spec.bytes_by_part["experts"]) if spec.method in THIS.packed else experts
    beside = {"experts", "mtp"}
    rest = 2 * sum(count for part, count in spec.parameters_by_part.items() if part not in beside)
    left = made.value("vram_budget")[0] - (1 << 30) - rest - made.value("cache")
    assert left >= made.value("gpu_experts") * experts / spec.experts
    assert made.device_bytes[device] <= made.value("vram_budget")[0] and made.value("deferred") == 0
    kept = spec.bytes_by_part.get("mtp", 0)
    kept += spec.bytes_by_part["experts"] * (spec.experts - made.value("gpu_experts")) // spec.experts
    assert made.memory_parts["weights"] == pytest.approx(kept, rel=1e-6, abs=spec.experts)


def test_this_version_takes_a_gpu_unless_it_is_told_not_to() -> None:
    there = simulate(f"{XEONS},gpu=rtx-4090", HERE)
    assert make_plan(there.machine, FILES, QWEN, {"devices": "cpu"}, there.profile).value("devices") == []
    for wish in ({}, {"devices": "cuda"}, {"gpu_experts": 4}, {"vram_budget": 0.9}, {"prefill_threshold": 2048}):
        asked = make_plan(there.machine, FILES, QWEN, wish, there.profile)
        assert asked.value("devices") == ["cuda:0"] and asked.value("gpu_experts") > 0
    two = make_plan(there.machine, FILES, QWEN, {"deferred": 2}, there.profile)
    assert two.value("deferred") == 2
    none = make_plan(there.machine, FILES, QWEN, {"deferred": 2}, there.profile, engine=replace(THIS, defers=False))
    assert none.value("deferred") == 0 and "puts off none" in reason(none, "deferred")
    eight = make_plan(there.machine, FILES, known("Qwen/Qwen3-30B-A3B-FP8"), {"devices": "cuda"}, there.profile)
    assert eight.value("prefill_threshold") and "as they are stored" in reason(eight, "gpu_experts")


def test_the_plan_survives_its_file(tmp_path: Any) -> None:
    made = plan(f"{XEONS},gpu=rtx-4090")
    made.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == made


def test_experts_that_move_stay_in_the_cpus_memory_too() -> None:
    still, moving = (plan(f"{XEONS},gpu=rtx-4090", **wish) for wish in ({}, {"moving": True}))
    assert (
        moving.value("placement") == "dynamic" == plan(f"{XEONS},gpu=rtx-4090", placement="dynamic").value("placement")
    )
    there = QWEN.bytes_by_part["experts"] * still.value("gpu_experts") // QWEN.experts
    assert moving.value("gpu_experts") == still.value("gpu_experts") > 0
    assert moving.memory_parts["weights"] - still.memory_parts["weights"] == there


def test_prefixes_in_memory_are_for_what_a_gpu_gives_up() -> None:
    made = plan(f"{XEONS},gpu=rtx-4090", devices="cuda")
    kept, cache = made.value("prefix_host"), made.value("cache")
    assert 0 < kept <= 4 * cache and made.memory_parts["prefixes"] == kept
    assert plan(f"{XEONS},gpu=rtx-4090", devices="cuda", prefix_host="2GiB").value("prefix_host") == 2 << 30
    off = plan(f"{XEONS},gpu=rtx-4090", devices="cuda", prefix_host="off")
    assert off.value("prefix_host") == 0 and off.device_bytes["cpu"] == made.device_bytes["cpu"] - kept
    assert plan(XEONS).get("prefix_host", None) is None
    with pytest.raises(UsageError, match="--prefix-host much is no size"):
        plan(f"{XEONS},gpu=rtx-4090", devices="cuda", prefix_host="much")
