"""Machines made up from names: every CPU and GPU of the list gives a whole machine, and a wrong text a sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kt_core.errors import UsageError
from kt_core.machine import default_threads, hardware
from kt_core.machine.cpuinfo import FEATURES
from kt_core.machine.simulate import available, simulate
from kt_core.machine.sizes import parse_size
from kt_core.plan.tiers import runnable
from kt_core.types import Gpu, Machine, Node

GIB = 1 << 30
HERE = Machine("Here", "x86_64", ("avx2", "f16c", "fma"), 4, 2, (0, 1, 2, 3), {0: Node((0, 1, 2, 3), 8 * GIB)}, {"cores": 2.0},
               8 * GIB, 7 * GIB, gpus=(Gpu("Its own", GIB, GIB),))  # fmt: skip


@pytest.mark.parametrize("name", hardware.cpu_names())
def test_every_cpu_is_a_whole_machine(name: str) -> None:
    cpu = hardware.cpu(name)
    assert cpu.name == name and set(cpu.features) <= FEATURES
    assert 10 < cpu.peak < 900 and 0.4 < cpu.reads < 0.9
    for sockets in {1, cpu.sockets}:
        found = simulate(f"cpu={name}:{sockets},ram=512GiB", HERE)
        made, profile = found.machine, found.profile
        threads = sorted(cpu_id for core in made.cores for cpu_id in core)
        assert threads == list(made.allowed_cpus) == list(range(cpu.threads * sockets))
        assert len(made.cores) == made.physical_cores == cpu.cores * sockets
        assert sorted(i for node in made.numa_nodes.values() for i in node.cpus) == threads
        assert len(made.numa_nodes) == cpu.nodes * sockets
        fast = (cpu.fast or cpu.cores) * sockets
        assert len(made.fast_cores) == fast == default_threads(made)[0]
        assert profile is not None and profile.measured == 0 and list(profile.read_rates) == [fast]
        assert 0 < profile.read_rates[fast] <= cpu.peak * sockets * 1e9
        assert made.architecture == "aarch64" or (
            runnable(made)[-1] != "scalar" and profile.unit_rates["f32"][fast] > 1e10
        )
        assert hardware.of(made) == cpu


def test_tiers_of_known_designs() -> None:
    best = {"6454s": "amx", "9654": "avx512_bf16", "8380h": "avx512_vnni", "8380": "avx512_vbmi", "8180": "avx512"}
    best |= {"14900k": "avx2", "7763": "avx2", "9950x": "avx512_bf16"}
    assert {name: runnable(simulate(f"cpu={name}", HERE).machine)[-1] for name in best} == best


@pytest.mark.parametrize("name", hardware.gpu_names())
def test_every_gpu_has_memory(name: str) -> None:
    made = simulate(f"gpu={name}:2", HERE).machine
    assert [gpu.name for gpu in made.gpus] == [name, name] and 8 * GIB <= made.gpus[0].memory <= 288 * GIB
    assert bool(made.gpus[0].capability) == (made.gpus[0].kind == "cuda")


def test_two_sockets_of_a_hybrid_and_of_a_server() -> None:
    made = simulate("cpu=xeon-6454s:2", HERE).machine
    assert made.cores[0] == (0, 64) and made.cores[63] == (63, 127)
    assert made.numa_nodes[1].cpus == (*range(32, 64), *range(96, 128)) and made.smt == "on"
    hybrid = simulate("cpu=14900k", HERE).machine
    assert hybrid.cores[7] == (7, 31) and hybrid.cores[8] == (8,) and hybrid.limits["fast_cores"] == 8


def test_what_is_not_named_is_this_machines() -> None:
    more = simulate("ram=64GiB, disk=2TB", HERE)
    assert more.machine.cpu_model == "Here" and more.profile is None and more.disk == 2 * 10**12
    assert more.machine.memory_total == 64 * GIB and more.machine.memory_available == available(64 * GIB) < 64 * GIB
    assert more.machine.gpus == ()  # none is named
    assert simulate("cpu=7950x", HERE).machine.memory_available == HERE.memory_available


def test_a_guest_with_a_part_of_a_cpu_has_no_figures() -> None:
    whole = Machine("Intel(R) Xeon(R) Gold 6454S", "x86_64", (), 64, 32, tuple(range(64)), {}, {}, 0, 0)
    assert (found := hardware.of(whole)) and found.name == "xeon-gold-6454s" and hardware.expected(whole)
    part = Machine("Intel(R) Xeon(R) Gold 6454S", "x86_64", (), 8, 4, tuple(range(8)), {}, {}, 0, 0)
    assert hardware.of(part) is None and hardware.of(HERE) is None and hardware.expected(HERE) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cpu=xeon-6455s", "xeon-gold-6454s"),  # near names
        ("cpu=zzzzzz", "altra-q80-30"),
        ("cpu=xeon", "Several"),
        ("gpu=rtx-4009", "rtx-4090"),
        ("cpu=7950x:2", "1"),
        ("cpu=7950x:0", "cpu=7950x:0"),
        ("cpu=7950x:²", "count"),
        ("gpu=rtx-4090:65", "64"),
        ("ram=lots", "ram=lots"),
        ("disk=0", "disk=0"),
        ("vram=3GiB", "cpu, ram, gpu, disk"),
        ("cpu=7950x,cpu=7950x", "once"),
        ("", "commas"),
        ("cpu", "commas"),
        ("cpu=", "commas"),
    ],
)
def test_wrong_texts_are_told(text: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KT_LANG", "en")
    with pytest.raises(UsageError) as caught:
        simulate(text, HERE)
    assert says in str(caught.value)


def test_a_shorter_name_wins_over_one_with_more_words() -> None:
    assert hardware.gpu("3090").name == "rtx-3090" and hardware.gpu("RTX 3090 Ti").name == "rtx-3090-ti"


@given(st.text(alphabet="cpurmgdisk=:,.0123456789xGiBT -é", max_size=40))
def test_no_text_does_more_than_raise_a_usage_error(text: str) -> None:
    try:
        made = simulate(text, HERE)
    except UsageError:
        return
    assert made.machine.memory_total > 0


@given(st.integers(1, 10**6), st.sampled_from(["", "K", "M", "G", "T"]), st.sampled_from(["", "iB", "B"]))
def test_sizes(count: int, unit: str, suffix: str) -> None:
    base = 1000 if unit and suffix == "B" else 1024
    text = f"{count}{unit}{suffix}" if unit else str(count)
    assert parse_size(text) == count * base ** ("KMGT".index(unit) + 1 if unit else 0)


@pytest.mark.parametrize(("model", "name"), [
    ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA H200", "h200"), ("Tesla V100-SXM2-16GB", "v100-16gb"),
    ("NVIDIA A100-SXM4-80GB", "a100"), ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
    ("NVIDIA GeForce RTX 4070 Ti", "rtx-4070-ti"), ("AMD Radeon RX 7900 XTX", "rx-7900-xtx"),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", None), ("NVIDIA GeForce GTX 1650", None),
])  # fmt: skip
def test_rates_of_gpus_by_what_their_driver_calls_them(model: str, name: str | None) -> None:
    found = hardware.gpu_rates(Gpu(model, 24 * GIB, 24 * GIB))
    assert found == (hardware.gpu_rates(hardware.gpu(name)) if name else None)


@pytest.mark.parametrize("name", hardware.gpu_names())
def test_every_gpu_has_rates(name: str) -> None:
    rates = hardware.gpu_rates(hardware.gpu(name))
    assert rates and 1e11 < rates.reads < 1e13 and 1e13 <= rates.operations < 1e16 and 5e9 < rates.link < 6e10
    slower = hardware.gpu_rates(Gpu(name, GIB, GIB, pcie_generation=3, pcie_lanes=8))
    assert slower and slower.link == 6e9  # the slot that it is in decides
