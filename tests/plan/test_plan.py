"""Plans for machines and models of many sizes: decisions, their reasons, and refusals with numbers."""

from dataclasses import replace
from typing import Any

import pytest

from kt_core import config
from kt_core.bench.scaled import KINDS, random_matrix
from kt_core.errors import DoesNotFit, Unsupported, UsageError
from kt_core.plan import KERNEL_FORMATS, MOST_THREADS, check_download, make_plan, memory, speed
from kt_core.plan.tiers import TIERS
from kt_core.types import Machine, MachineProfile, ModelFiles, ModelSpec, Node, Plan

GIB = 2**30
AVX2 = ("avx2", "f16c", "fma")
FILES = ModelFiles("m", "/models/m.gguf", "gguf", ("/models/m.gguf",))


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KT_LANG", "en")


def machine(gib: float = 16, cores: int = 8, smt: bool = True, **changes: Any) -> Machine:
    cpus = cores * (2 if smt else 1)
    fields: dict[str, Any] = {
        "cpu_model": "Test CPU",
        "architecture": "x86_64",
        "features": AVX2,
        "logical_cpus": cpus,
        "physical_cores": cores,
        "allowed_cpus": tuple(range(cpus)),
        "numa_nodes": {0: tuple(range(cpus))},
        "limits": {"affinity": float(cpus), "cores": float(cores)},
        "memory_total": int(gib * GIB),
        "memory_available": int(gib * GIB),
    }
    fields |= changes
    nodes = {node: Node(cpus) for node, cpus in fields["numa_nodes"].items()}
    return Machine(**(fields | {"numa_nodes": nodes}))


def spec(weights_gib: float = 4, kv: int = 100_000, context: int = 8192, **changes: Any) -> ModelSpec:
    size = int(weights_gib * GIB)
    fields: dict[str, Any] = {
        "family": "glm4_moe",
        "layers": 30,
        "hidden": 2048,
        "vocab": 50_000,
        "context": context,
        "experts": 16,
        "experts_per_token": 8,
        "parameters": size * 2,
        "bytes_by_part": {"experts": size * 3 // 4, "other": size - size * 3 // 4},
        "kv_bytes_per_token": kv,
        "formats": {"Q4_1": size},
    }
    return ModelSpec(**(fields | changes))


def plan(machine_: Machine, spec_: ModelSpec, **overrides: Any) -> Plan:
    return make_plan(machine_, FILES, spec_, overrides)


def reason(made: Plan, name: str) -> str:
    return next(d.reason for d in made.decisions if d.name == name)


def test_laptop_of_16_gib() -> None:
    made = plan(machine(16, cores=8), spec(4))
    names = ["method", "tier", "threads", "cpus", "pools", "devices", "context", "max_running", "kv_dtype", "cache"]
    assert [d.name for d in made.decisions] == [*names, "prefix_disk", "dtype", "rules"]
    assert all(d.reason and d.source for d in made.decisions)
    assert made.value("threads") == 8 and made.value("context") == 8192
    assert made.value("cpus") is None and made.value("tier") is None and "avx2" in reason(made, "tier")
    cache = made.value("cache")
    least = 8192 * 50_000  # 16 bits a number
    assert least < cache
    assert cache == pytest.approx((16 - 4) * GIB / 2, rel=0.05) and "half" in reason(made, "cache")
    runtime = (392 << 20) + 50_000 * 1000
    rows = 2048 * (16384 + 18 * 2048)
    fixed = {"runtime": runtime, "templates": memory.TEMPLATES_BYTES, "rows": rows}
    assert made.memory_parts == {"weights": 4 * GIB, **fixed, "cache": cache}
    gguf = plan(machine(16, cores=8), spec(4, method="LLAMAFILE"))
    assert gguf.memory_parts["runtime"] == runtime + 50_000 * 700
    short = plan(machine(), spec(), context=1024)
    assert short.memory_parts["rows"] == rows // 2
    assert made.device_bytes == {"cpu": sum(made.memory_parts.values())}


def test_prediction_grows_by_the_cache() -> None:
    s = spec()
    for dtype, size in (("float32", 100_000), ("bfloat16", 50_000)):
        step = memory.predicted_bytes(s, 64 * 30, dtype) - memory.predicted_bytes(s, 64 * 10 + 1, dtype)
        assert step == 64 * 19 * size  # whole pages: 641 tokens take 11


def test_40_gib_on_an_8_gib_host_is_refused_unless_forced() -> None:
    with pytest.raises(DoesNotFit) as caught:
        plan(machine(8), spec(40))
    assert caught.value.exit_code == 3
    text = str(caught.value)
    assert "40.00 GiB" in text and "8.00 GiB" in text and "--force" in text
    made = plan(machine(8), spec(40), force=True)
    assert made.value("force") is True and made.device_bytes["cpu"] > 40 * GIB
    assert made.value("context") == 8192


@pytest.mark.parametrize("gib", [5.0, 5.5, 6.0, 8.0, 64.0])
def test_default_context_is_the_largest_that_fits(gib: float) -> None:
    s = spec(4, kv=400_000, context=32_768)
    made = plan(machine(gib), s)
    context = made.value("context")
    assert made.device_bytes["cpu"] <= gib * GIB
    if context < s.context:
        assert memory.predicted_bytes(s, context + 1, "bfloat16") > gib * GIB
        assert "32768" in reason(made, "context")
    else:
        assert gib == 64


def test_too_long_a_context_names_the_one_that_fits() -> None:
    s = spec(4, kv=400_000, context=32_768)
    with pytest.raises(DoesNotFit) as caught:
        plan(machine(6), s, context=30_000)
    fits = int(str(caught.value).split("--context ")[1].split(".")[0])
    assert plan(machine(6), s, context=fits).value("context") == fits
    with pytest.raises(DoesNotFit):
        plan(machine(6), s, context=fits + 1)
    assert plan(machine(6), s, context=30_000, force=True).value("context") == 30_000


@pytest.mark.parametrize(("formats", "expected"), [
    ({"F32": 100}, "float32"), ({"F16": 90, "F32": 10}, "float32"), ({"BF16": 100}, "bfloat16"),
    ({"Q4_K": 60, "F32": 5, "F16": 30}, "bfloat16"), ({"F16": 60, "Q8_0": 30}, "float32"),
])  # fmt: skip
def test_keys_and_values_are_rounded_where_the_weights_kernels_round(formats: dict[str, int], expected: str) -> None:
    made = plan(machine(16), spec(formats=formats))
    assert made.value("kv_dtype") == expected
    other = {"float32": "bfloat16", "bfloat16": "float32"}[expected]
    assert plan(machine(16), spec(formats=formats), kv_dtype=other).value("kv_dtype") == other


def test_float32_keys_and_values_take_twice_the_memory() -> None:
    s = spec(4, kv=400_000, context=32_768)
    contexts = [plan(machine(8), s, kv_dtype=dtype).value("context") for dtype in ("bfloat16", "float32")]
    assert contexts[0] // 2 - 64 <= contexts[1] <= contexts[0] // 2
    with pytest.raises(Unsupported, match="bfloat16"):
        plan(machine(8), s, kv_dtype="fp4")


@pytest.mark.parametrize(("gib", "told"), [(5, "one conversation"), (16, "half"), (640, "all 32 conversations")])
def test_cache_is_between_one_conversation_and_all(gib: float, told: str) -> None:
    s = spec(4, kv=400_000, context=8192)
    made = plan(machine(gib), s)
    one, count = memory.cache_bytes(s, made.value("context"), "bfloat16"), made.value("max_running")
    assert count == 32 and one <= made.value("cache") <= count * one and told in reason(made, "cache")
    assert made.device_bytes["cpu"] <= gib * GIB


def test_sequences_that_run_together() -> None:
    assert plan(machine(64, cores=2), spec()).value("max_running") == 8
    assert plan(machine(64, cores=64), spec()).value("max_running") == 64
    few = plan(machine(64), spec(), max_running=3)
    assert few.value("max_running") == 3 and few.value("cache") == 3 * memory.cache_bytes(spec(), 8192, "bfloat16")
    for wrong in (0, 513):
        with pytest.raises(UsageError):
            plan(machine(64), spec(), max_running=wrong)


def test_tokens_of_a_step_are_limited_where_asked() -> None:
    assert plan(machine(), spec(), chunk=256).value("chunk") == 256
    assert plan(machine(), spec()).get("chunk", None) is None
    with pytest.raises(UsageError):
        plan(machine(), spec(), chunk=0)


def test_context_above_the_trained_one() -> None:
    with pytest.raises(DoesNotFit, match="8192"):
        plan(machine(64), spec(), context=8193)
    assert plan(machine(64), spec(), context=8193, force=True).value("context") == 8193


def test_unknown_memory_is_said_and_not_refused() -> None:
    made = plan(machine(memory_total=0, memory_available=0), spec())
    assert made.value("context") == 8192 and "not checked" in reason(made, "context")


def test_quota_container() -> None:
    limited = machine(64, 32, limits={"affinity": 64.0, "cores": 32.0, "quota": 2.5})
    made = plan(limited, spec())
    assert made.value("threads") == 2 and "quota is 2.5" in reason(made, "threads")
    assert made.value("cpus") is None


def test_more_threads_than_cores_is_warned_about() -> None:
    made = plan(machine(cores=15), spec(), threads=30)
    assert made.value("threads") == 30
    assert "15 physical cores" in reason(made, "threads")
    assert "may use" in reason(plan(machine(cores=15), spec(), threads=31), "threads")
    assert reason(plan(machine(cores=15), spec(), threads=15), "threads") == "chosen by the user"


@pytest.mark.parametrize(
    ("alone", "told"), [(0.62e12, "two of them share a core"), (0.35e12, "a core of its own"), (0, "unknown")]
)
def test_a_core_that_a_virtual_machine_hides_is_measured_or_unknown(alone: float, told: str) -> None:
    """16 CPUs that reach 5.0 Tops together: as the AMX machine, as 16 whole cores, and not measured with one thread."""
    measured = MachineProfile({}, 1.0, {}, {"int8": {1: alone, 16: 5.0e12}}, {})
    shown = replace(machine(cores=16, smt=False), smt="unknown")
    assert told in reason(make_plan(shown, FILES, spec(), {}, measured), "threads")
    expected = replace(measured, measured=0.0)  # what such hardware should reach says nothing of this machine
    assert "is unknown" in reason(make_plan(shown, FILES, spec(), {}, expected), "threads")
    assert "unknown" not in reason(plan(machine(cores=16, smt=False), spec()), "threads")


@pytest.mark.parametrize("count", range(1, 65))
def test_cpus_are_allowed_ones_and_never_empty(count: int) -> None:
    eight = machine(64, 64, smt=False, numa_nodes={n: tuple(range(8 * n, 8 * n + 8)) for n in range(8)})
    cpus = plan(eight, spec(), threads=count).value("cpus")
    assert cpus is None or (cpus == list(range(64)) and count == 64)


def test_pinning_respects_the_affinity() -> None:
    made = plan(machine(allowed_cpus=(4, 5), limits={"affinity": 2.0, "cores": 2.0}), spec())
    assert made.value("cpus") == [4, 5]
    for bad in ([], [3], [4, 99]):
        with pytest.raises(UsageError):
            plan(machine(allowed_cpus=(4, 5)), spec(), cpus=bad)


def test_one_node_is_one_pool() -> None:
    made = plan(machine(cores=8), spec())
    assert made.value("pools") == [{"threads": 8, "cpus": None, "node": None}]
    assert "1 NUMA node" in reason(made, "pools")
    pinned = plan(machine(cores=4, smt=False), spec())
    assert pinned.value("pools") == [{"threads": 4, "cpus": [0, 1, 2, 3], "node": None}]


def test_a_pool_for_each_node() -> None:
    """Numbers with gaps, a node of memory alone, nodes of different sizes, siblings that are not used."""
    nodes = {1: (0, 1, 8, 9), 4: (), 5: (2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15)}
    made = plan(machine(cores=8, numa_nodes=nodes), spec())
    assert made.value("pools") == [
        {"threads": 2, "cpus": list(nodes[1]), "node": 1},
        {"threads": 6, "cpus": list(nodes[5]), "node": 5},
    ]
    assert "2 NUMA nodes" in reason(made, "pools")
    inside = machine(allowed_cpus=(2, 3), limits={"affinity": 2.0, "cores": 2.0}, numa_nodes=nodes)
    assert plan(inside, spec()).value("pools") == [{"threads": 2, "cpus": [2, 3], "node": None}]


def test_cpus_of_three_nodes_have_their_memory_from_all_three() -> None:
    """Six nodes, three to a socket, and a process that may use one socket's CPUs (sgl-project/sglang#19666)."""
    nodes = {n: tuple(range(32 * n, 32 * n + 32)) for n in range(6)}
    there = machine(cores=192, smt=False, numa_nodes=nodes, allowed_cpus=tuple(range(96)))
    bound = plan(replace(there, limits={"affinity": 96.0, "cores": 96.0}), spec())
    assert [(pool["node"], pool["threads"]) for pool in bound.value("pools")] == [(0, 32), (1, 32), (2, 32)]
    assert sorted(cpu for pool in bound.value("pools") for cpu in pool["cpus"]) == list(range(96))


@pytest.mark.parametrize("name", ["fp8", "FP8", "Fp8", "rawfp8", "RAWFP8"])
def test_methods_in_any_case_and_by_their_older_names(name: str) -> None:
    made = plan(machine(), spec(method="FP8", formats={"FP8_BLOCK": 1 << 30}), method=name)
    assert made.value("method") == "FP8" and ("RAWFP8" in reason(made, "method")) == ("raw" in name.lower())


def test_memory_is_not_bound_to_a_node_that_is_barred() -> None:
    nodes = {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}
    barred = machine(cores=8, smt=False, numa_nodes=nodes)
    barred = replace(barred, numa_nodes={n: replace(node, usable=n == 1) for n, node in barred.numa_nodes.items()})
    assert [pool["node"] for pool in plan(barred, spec()).value("pools")] == [None, 1]


def test_nodes_that_are_smaller_than_their_part_are_told() -> None:
    """32 nodes of 8 GiB, of which a user takes two for weights of 40 (kvcache-ai/ktransformers#2172)."""
    many = machine(256, cores=64, smt=False, numa_nodes={n: (2 * n, 2 * n + 1) for n in range(32)})
    nodes = {n: replace(node, memory=8 * GIB) for n, node in many.numa_nodes.items()}
    two = plan(replace(many, numa_nodes=nodes), spec(40), nodes=[0, 1])
    assert [pool["node"] for pool in two.value("pools")] == [0, 1]
    assert "nodes 0, 1 are smaller than their part of 20.00 GiB" in reason(two, "pools")
    assert "smaller" not in reason(plan(replace(many, numa_nodes=nodes), spec(40)), "pools")


def test_each_cpu_of_every_node_has_a_thread_where_all_are_used() -> None:
    nodes = {0: (0, 1), 1: (2,), 2: (3, 4, 5, 6, 7)}
    pools = plan(machine(cores=8, smt=False, numa_nodes=nodes), spec()).value("pools")
    assert [(pool["threads"], pool["cpus"]) for pool in pools] == [(2, [0, 1]), (1, [2]), (5, [3, 4, 5, 6, 7])]


def test_fewer_threads_than_nodes_are_one_pool() -> None:
    nodes = {n: (n, n + 8) for n in range(8)}
    made = plan(machine(cores=8, numa_nodes=nodes), spec(), threads=3)
    assert made.value("pools") == [{"threads": 3, "cpus": None, "node": None}]
    assert "not enough threads" in reason(made, "pools")
    quota = machine(cores=8, numa_nodes=nodes, limits={"affinity": 16.0, "cores": 8.0, "quota": 1.5})
    assert len(plan(quota, spec()).value("pools")) == 1


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_chosen_number_of_pools(count: int) -> None:
    """More than the nodes and fewer: equal runs of CPUs; memory is bound where a run lies in one node."""
    nodes = {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}
    pools = plan(machine(cores=8, smt=False, numa_nodes=nodes), spec(), pools=count).value("pools")
    assert [cpu for pool in pools for cpu in pool["cpus"]] == list(range(8))
    assert [pool["threads"] for pool in pools] == [len(pool["cpus"]) for pool in pools]
    for pool in pools:
        homes = {node for node, cpus in nodes.items() if set(cpus) & set(pool["cpus"])}
        assert pool["node"] == (homes.pop() if len(homes) == 1 else None)
    for bad in (0, 9):
        with pytest.raises(UsageError):
            plan(machine(cores=8, smt=False, numa_nodes=nodes), spec(), pools=bad)


@pytest.mark.parametrize("architecture", ["aarch64", "ppc64", "unknown"])
def test_other_architectures_run_the_portable_kernels(architecture: str) -> None:
    made = plan(machine(architecture=architecture, features=("asimd",)), spec())
    assert made.value("tier") == "scalar" and architecture in reason(made, "tier")


def test_tiers() -> None:
    assert plan(machine(), spec(), tier="scalar").value("tier") == "scalar"
    with pytest.raises(UsageError, match="avx512_vnni"):
        plan(machine(), spec(), tier="avx1024")
    with pytest.raises(Unsupported, match="scalar, avx2"):
        plan(machine(), spec(), tier="amx")
    everything = tuple(sorted(TIERS["amx"]))
    assert plan(machine(features=everything), spec(), tier="amx").value("tier") == "amx"


def test_formats_without_a_kernel_are_refused_with_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "kt_core.models.spec.examples", lambda _files, formats: {f: ["blk.0.x", "blk.1.x"] for f in formats}
    )
    with pytest.raises(Unsupported) as caught:
        plan(machine(), spec(formats={"TQ1_0": 5, "F32": 6}))
    text = str(caught.value)
    assert "TQ1_0: blk.0.x, blk.1.x" in text and "F32: " not in text
    assert all(name in text for name in KERNEL_FORMATS) and caught.value.exit_code == 7


def test_formats_are_those_of_the_kernels() -> None:
    from kt_core import kernels

    assert set(KERNEL_FORMATS) == kernels.SUPPORTED


@pytest.mark.parametrize("form", KINDS)
def test_kernels_take_what_the_plan_counts(form: str) -> None:
    """The stored bytes: panels add a head, whole bytes for zero points, and ends of 128 columns."""
    from kt_core import kernels

    for seed in range(3):
        matrix = random_matrix(form, 256, 2048, seed)
        stored = sum(array.nbytes for array in (matrix.data, matrix.scales, matrix.zeros) if array is not None)
        assert 0.98 * stored < kernels.Linear(matrix).nbytes < 1.04 * stored


@pytest.mark.parametrize(
    "wish",
    [
        {"threads": 0},
        {"threads": -1},
        {"threads": 2.5},
        {"threads": True},
        {"context": 0},
        {"context": 15},
        {"colour": 1},
    ],
)
def test_senseless_wishes(wish: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        plan(machine(), spec(), **wish)


def test_none_is_no_wish_and_the_plan_survives_its_file(tmp_path: Any) -> None:
    made = plan(machine(cores=4, smt=False), spec(), threads=None, context=None, force=None)
    assert made == plan(machine(cores=4, smt=False), spec())
    made.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == made


def test_dtype() -> None:
    assert plan(machine(), spec(), dtype="float32").value("dtype") == "float32"
    with pytest.raises(Unsupported, match="float32"):
        plan(machine(), spec(), dtype="int3")


def test_smaller_available_than_total_counts() -> None:
    with pytest.raises(DoesNotFit):
        plan(replace(machine(64), memory_available=3 * GIB), spec(4))


def test_a_download_that_can_never_fit_is_refused_first() -> None:
    check_download(machine(16), "small", 15 * GIB)
    check_download(replace(machine(), memory_total=0), "unknown memory", 132 * GIB)
    with pytest.raises(DoesNotFit, match=r"132\.00 GiB.*16\.00 GiB"):
        check_download(machine(16), "big", 132 * GIB)


def test_threads_end_where_the_setting_does() -> None:
    assert config.setting("inference.threads").maximum == MOST_THREADS
    assert plan(machine(16), spec(4), threads=MOST_THREADS).value("threads") == MOST_THREADS
    for count in (MOST_THREADS + 1, 10**20):
        with pytest.raises(UsageError):
            plan(machine(16), spec(4), threads=count)


def test_a_profile_predicts_and_decides_nothing() -> None:
    """8 of 16 experts are 3/8 of the weights and the rest 1/4: a token reads 2.5 of 4 GiB."""
    rates = {1: 10e9, 8: 50e9, 64: 90e9}
    profile = MachineProfile({}, 0.0, read_rates=rates, unit_rates={}, link_rates={})
    plain = plan(machine(), spec())
    made = make_plan(machine(), FILES, spec(), {}, profile)
    assert plain.predicted == {}
    assert made.decisions == plain.decisions
    share = speed.DECODE_SHARE
    assert made.predicted["decode_tokens_per_second"] == pytest.approx(share * 50e9 / (2.5 * GIB))
    nearest = make_plan(machine(), FILES, spec(), {"threads": 2}, profile)
    assert nearest.predicted["decode_tokens_per_second"] == pytest.approx(share * 10e9 / (2.5 * GIB))
    empty = MachineProfile({}, 0.0, {}, {}, {})
    assert make_plan(machine(), FILES, spec(), {}, empty).predicted == {}


# --- prefixes on disk


@pytest.mark.parametrize(
    ("free", "expected"),
    [(0, 0), (10 * GIB - 1, 0), (10 * GIB, GIB), (50 * GIB, 5 * GIB), (10**15, None)],
)
def test_prefixes_on_disk_by_the_free_space(free, expected):
    made = make_plan(machine(), FILES, spec(), {}, None, free)
    most = 4 * made.value("cache")
    assert made.value("prefix_disk") == (most if expected is None else min(most, expected))
    assert ("off" in reason(made, "prefix_disk")) == (expected == 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("off", 0), ("0", 0), (" OFF ", 0), ("20GiB", 20 * GIB), ("20g", 20 * GIB), ("1.5 GiB", GIB * 3 // 2),
        ("500MB", 500_000_000), ("500MiB", 500 << 20), ("2T", 2 << 40), ("12345", 12345), ("7B", 7),
    ],
)  # fmt: skip
def test_sizes_of_prefixes_on_disk(text, expected):
    assert plan(machine(), spec(), prefix_disk=text).value("prefix_disk") == expected


@pytest.mark.parametrize("text", ["", "much", "-1G", "GiB", "1e9", "0.0", "1 PB", "2GG"])
def test_what_is_no_size(text):
    with pytest.raises(UsageError, match="is no size"):
        plan(machine(), spec(), prefix_disk=text)
