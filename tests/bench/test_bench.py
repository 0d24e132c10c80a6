"""The bench: jobs, routing, the roofline's arithmetic, checks that can fail, the profile and the support table."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kt_core.bench import cases, ceilings, check, job, layers, measure, rivals, routing, shapes, support
from kt_core.bench.measure import COMPUTE, MEMORY, Call, Ceilings
from kt_core.bench.run import rows
from kt_core.errors import DoesNotFit, Unsupported, UsageError
from kt_core.kernels import SUPPORTED, Linear, attention, peak_rate, set_threads, units
from kt_core.kernels.native import load
from kt_core.machine import probe, profile
from kt_core.types import Machine, MachineProfile
from kt_core.weights import Matrix, decode_matrix

MIB = 2**20


@pytest.fixture(autouse=True)
def _threads():
    torch_threads = torch.get_num_threads()
    yield
    set_threads(2)
    torch.set_num_threads(torch_threads)


def machine(cache: int = 32 * MIB, available: int = 2**40) -> Machine:
    return replace(probe(), last_level_cache=cache, memory_available=available)


def make(kind: str = job.MOE, size: tuple[int, ...] = (256, 256, 8, 2), **fields: Any) -> job.Job:
    here = fields.pop("machine", machine(cache=1 * MIB))
    return job.make(kind, here, shapes.Shape("test", *size), **({"threads": (1,), "repeats": 1} | fields))


def quiet(*_: object) -> None:
    pass


# ---- shapes and jobs


def test_shapes_are_found_by_any_usual_name():
    assert shapes.find("qwen3-30b-a3b").experts == 128
    assert shapes.find("deepseek-ai/DeepSeek-R1") == shapes.find("DeepSeek_V3")
    assert set(shapes.ALIASES.values()) <= {shape.name for shape in shapes.SHAPES}
    with pytest.raises(UsageError, match="did you mean"):
        shapes.find("qwen3-30b")
    with pytest.raises(UsageError, match=r"glm-4\.5-air"):
        shapes.find("something else")


def test_a_job_travels_as_text():
    made = make(formats=("BF16", "Q4_K"), tokens=(1, 8), tiers=(None, "avx2"), layers=3, check=True)
    assert job.Job.parse(made.text()) == made


def test_layers_are_as_many_as_caches_cannot_hold():
    made = make(size=(1024, 512, 8, 2), machine=machine(cache=32 * MIB))
    assert made.layer_bytes("BF16") == 8 * 3 * 1024 * 512 * 2
    assert made.layer_count("BF16") == 6  # 4 x 32 MiB by 24 MiB
    assert made.is_cold("BF16")
    small = replace(
        made, memory=made.layer_bytes("BF16") * 3 + made.needed_bytes("BF16") - 6 * made.layer_bytes("BF16")
    )
    assert small.layer_count("BF16") == 3
    assert not small.is_cold("BF16")
    job.check_memory(replace(small, formats=("BF16",)))
    assert replace(made, layers=2).layer_count("BF16") == 2


def test_memory_is_checked_with_the_numbers():
    made = make(size=(7168, 2048, 256, 8), formats=("BF16",), machine=machine(available=8 << 30))
    with pytest.raises(DoesNotFit, match=r"--experts \d+") as caught:
        job.check_memory(made)
    text = str(caught.value)
    assert "0.08 GiB an expert" in text
    assert "7.20 GiB may be used" in text
    fits = int(text.partition("--experts ")[2].partition(")")[0])
    assert 0 < fits < 100
    job.check_memory(replace(made, experts=fits))
    with pytest.raises(DoesNotFit):
        job.check_memory(replace(made, experts=fits + 1))
    with pytest.raises(DoesNotFit):  # torch's weights are bfloat16, whatever ours are
        job.check_memory(replace(made, formats=("Q2_K",), experts=fits + 1, vs="torch"))
    job.check_memory(replace(made, memory=0))  # a size that is unknown refuses nothing


def test_names_are_checked():
    here = replace(machine(), features=("avx2", "fma", "f16c"))
    job.check_names(here, ("BF16",), (None, "avx2"))
    with pytest.raises(UsageError, match="Q8_0"):
        job.check_names(here, ("Q9_9",), ())
    with pytest.raises(Unsupported, match="Q8_0"):
        job.check_names(here, ("I64",), ())
    with pytest.raises(UsageError, match="avx512_vnni"):
        job.check_names(here, (), ("sse",))
    with pytest.raises(Unsupported, match="scalar, avx2"):
        job.check_names(here, (), ("amx",))
    shape = shapes.Shape("x", 2048, 1408, 1, 1)
    assert "1408" in str(job.wrong_blocks(job.MOE, shape, "Q4_K"))
    assert job.wrong_blocks(job.LINEAR, shape, "Q4_K") is None
    assert job.wrong_blocks(job.MOE, shape, "Q8_0") is None


@pytest.mark.parametrize("outputs", [1, 7, 8, 12])
def test_every_format_that_is_not_refused_can_be_made(outputs):
    shape = shapes.Shape("x", 256, outputs, 1, 1)
    for format in SUPPORTED:
        if job.wrong_blocks(job.LINEAR, shape, format) is None:
            Linear(cases.weight(format, outputs, 256))
        else:
            assert format == "AWQ" and outputs % 8


def test_a_refusal_names_only_what_would_help():
    made = make(size=(1 << 20, 1 << 20, 2, 1), formats=("F32",), machine=machine(available=8 << 30))
    with pytest.raises(DoesNotFit) as caught:
        job.check_memory(replace(made, name=job.OWN))
    assert "--experts" not in str(caught.value) and "sizes" in str(caught.value)


def test_packed_weights_take_the_bytes_that_a_job_counts():
    for format in SUPPORTED:
        packed = Linear(cases.weight(format, 64, 512)).nbytes
        assert packed == pytest.approx(job.stored_bytes(format, 64, 512), rel=0.1), format


@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 128, 8), (4, 10, 3), (512, 128, 8), (3, 1, 1)])
def test_routing_is_even_and_never_repeats_at_once(tokens, experts, top_k):
    calls = routing.even(tokens, experts, top_k)
    for ids in calls:
        assert ids.shape == (tokens, top_k)
        assert all(len(set(token)) == top_k for token in ids.tolist())
    used = torch.bincount(torch.cat(calls).flatten(), minlength=experts)
    assert used.max() - used.min() <= -(-tokens // (experts // top_k))
    if tokens * top_k < experts:
        assert used.max() == 1


# ---- the roofline


class Fixed:
    """A prober that sees the same ceilings always."""

    def __init__(self, read: float, units: dict[str, float]) -> None:
        self._ceilings = Ceilings(read, units)

    def look(self, units: object, tier: object) -> Ceilings:
        return self._ceilings


@pytest.mark.parametrize(
    ("nbytes", "operations", "limit", "ideal"),
    [(4e6, {"int8": 1e6}, MEMORY, 4e-3), (1e6, {"int8": 1e6, "bf16": 3e6}, COMPUTE, 7e-3)],
)
def test_the_share_is_the_rooflines_time_by_the_time_taken(nbytes, operations, limit, ideal):
    call = Call(lambda: time.sleep(0.02), int(nbytes), operations)
    got = measure.measure([call], Fixed(1e9, {"int8": 1e9, "bf16": 0.5e9}), None, 3)  # type: ignore[arg-type]
    assert got.limit == limit
    assert 0.02e6 <= got.low_us <= got.median_us <= got.high_us < 0.1e6
    assert got.share_of_ceiling == pytest.approx(ideal * 1e6 / got.median_us, rel=1e-6)
    assert got.gbps == pytest.approx(nbytes / got.median_us * 1e-3, rel=1e-6)
    assert got.tflops == pytest.approx(sum(operations.values()) / got.median_us * 1e-6, rel=1e-6)


def test_every_unit_has_a_peak():
    names = units()
    assert {"f32", "bf16", "int8"} <= set(names)
    assert ("tile_bf16" in names) == ("amx" in cases.tiers())
    set_threads(1)
    for tier in cases.tiers():
        for unit in units(tier):
            assert 1e9 < peak_rate(unit, tier, 0.002) < 1e13
    with pytest.raises(ValueError, match="no unit"):
        peak_rate("nothing")
    with pytest.raises(RuntimeError, match="unknown kernel tier"):
        units("nothing")


# ---- whole runs, small


SOME = ("BF16", "FP8_BLOCK", "INT4", "IQ2_XXS", "MXFP4", "Q4_K", "Q8_0")  # a format of each kind; tests/kernels has all


@pytest.mark.parametrize("kind", [job.MOE, job.LINEAR])
@pytest.mark.parametrize(
    "formats", [SOME, pytest.param(tuple(sorted(SUPPORTED)), marks=pytest.mark.full)], ids=["some", "all"]
)
def test_formats_are_measured_and_right(kind, formats):
    size = (256, 256, 8, 2) if kind == job.MOE else (256, 256, 1, 1)
    made = make(kind, size, formats=formats, tokens=(1, 9), check=True)
    made = replace(made, probe=4 * MIB)
    found = list(rows(made, quiet, quiet))
    assert [row["format"] for row in found] == [format for format in formats for _ in range(2)]
    for row in found:
        assert row["error"] <= row["bound"], row
        assert row["median_us"] > 0 and row["gbps"] > 0 and row["tflops"] > 0 and row["share_of_ceiling"] > 0, row


@pytest.mark.parametrize("kind", [job.MOE, job.LINEAR])
@pytest.mark.parametrize("format", ["BF16", "Q8_0", "Q4_K"])
def test_the_prefill_path_is_checked_by_its_own_rounding(kind, format):
    made = make(kind, (512, 256, 4, 2) if kind == job.MOE else (512, 256, 1, 1))
    load().force_prefill(6)
    try:
        assert layers.Paths(format, None).path(5) == "direct"
        assert layers.Paths(format, None).path(6) == "prefill"
        assert check.check(made, format, None, 20).good
    finally:
        load().force_prefill(0)


@pytest.mark.parametrize("kind", [job.MOE, job.LINEAR])
def test_a_wrong_result_is_seen(kind, monkeypatch):
    made = make(kind, (256, 256, 8, 2) if kind == job.MOE else (256, 256, 1, 1))
    assert check.check(made, "Q8_0", None, 3).good

    def other(matrix: Matrix) -> Any:
        values = decode_matrix(matrix)
        values[0] = 0  # one row of each weight
        return values

    monkeypatch.setattr(check, "decode_matrix", other)
    assert not check.check(made, "Q8_0", None, 3).good
    assert not check.Checked(float("nan"), 1).good


def test_a_tier_that_is_asked_for_is_measured():
    made = replace(make(formats=("Q8_0",), tokens=(1,), tiers=tuple(cases.tiers()), check=True), probe=4 * MIB)
    assert [row["tier"] for row in rows(made, quiet, quiet)] == cases.tiers()


def test_torch_gives_the_same_numbers():
    """The opponent does the same work: its bfloat16 experts against ours, on the same weights and input."""
    made = make(size=(64, 32, 4, 2))
    layer = list(rivals._unit_weights(made, rivals.BF16))
    x, ids, mix = layers.inputs(5, 64), routing.even(5, 4, 2)[0], layers.mixing(5, 2)
    got = rivals._experts(layer, x.to(torch.bfloat16), ids, mix.to(torch.bfloat16)).float()
    gate = x.sum(dim=1, keepdim=True) * 0.01
    one = torch.nn.functional.silu(gate) * gate * 0.01 * 32  # every weight is 0.01 and the mix adds up to 1
    assert torch.allclose(got, one.expand(5, 64), rtol=0.05, atol=1e-3)


def test_torch_rows_follow():
    made = replace(make(formats=("BF16",), tokens=(1, 4), vs="torch"), probe=4 * MIB)
    found = list(rows(made, quiet, quiet))
    assert [row["format"] for row in found] == ["BF16", "BF16"] + [n for n in rivals.names() for _ in range(2)]


LATENT, GROUPED = shapes.Cache(20, 1, 96, 64), shapes.Cache(8, 2, 64, 48)


@pytest.mark.parametrize("cache", [LATENT, GROUPED], ids=["latent", "grouped"])
def test_attention_is_measured_and_right(cache, monkeypatch):
    size = shapes.Shape("test", cache.heads * cache.key_size, cache.heads * cache.value_size, 1, 1, 0, cache)
    made = job.make(
        job.ATTENTION,
        machine(cache=1 * MIB),
        size,
        threads=(1,),
        keys=(70, 300),
        tokens=(1, 33),
        formats=job.CACHE_FORMATS,
        repeats=1,
        check=True,
    )
    made = replace(made, probe=4 * MIB)
    assert job.Job.parse(made.text()) == made
    found = list(rows(made, quiet, quiet))
    assert [(row["format"], row["keys"], row["tokens"]) for row in found] == [
        (format, keys, tokens) for format in job.CACHE_FORMATS for keys in (70, 300) for tokens in (1, 33)
    ]
    for row in found:
        assert row["error"] <= row["bound"], row
        per_key = row["touched_bytes"] / (-(-row["keys"] // 64) * 64)
        assert per_key == cache.kv_heads * cache.columns * (2 if row["format"] == "BF16" else 4)
    with pytest.raises(UsageError, match="33 tokens"):
        job.check_keys(replace(made, keys=(32,)))
    attend = attention.attend
    monkeypatch.setattr(attention, "attend", lambda *args, **more: attend(*args, **more) * 1.01)
    assert not check.check(replace(made, keys=(300,)), "BF16", None, 1).good


def test_weights_that_a_cache_may_hold_are_mentioned():
    notes: list[str] = []
    made = replace(make(formats=("BF16",), tokens=(1,), layers=1, machine=machine(cache=32 * MIB)), probe=4 * MIB)
    assert len(list(rows(made, quiet, notes.append))) == 1
    assert len(notes) == 1 and "caches" in notes[0]


@pytest.mark.parametrize("format", sorted(SUPPORTED))
def test_random_weights_are_ordinary_numbers(format):
    values = decode_matrix(cases.weight(format, 16, 512))
    assert np.isfinite(values).all()
    assert 1e-4 < np.abs(values).max() < 100
    assert values.std(axis=1).min() > 0
    assert (cases.weight(format, 16, 512, seed=1).data != cases.weight(format, 16, 512).data).any()


# ---- profile and table


def test_the_profile_is_kept_for_this_hardware_only(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert profile.load() is None
    made = replace(make(job.CEILINGS, (0, 0, 0, 0), threads=(1, 2)), probe=4 * MIB)
    found = list(ceilings.rows(made, quiet))
    assert [(row["what"], row["threads"]) for row in found if row["what"] == "read"] == [("read", 1), ("read", 2)]
    assert ceilings.store(found) == str(tmp_path / "kt" / "machine.json")
    here = probe()
    stored = profile.of(here)
    assert stored is not None
    assert set(stored.read_rates) == {1, 2}
    assert set(stored.unit_rates) == set(units())
    assert abs(stored.measured - time.time()) < 60
    assert profile.of(replace(here, cpu_model="another")) is None
    assert profile.of(replace(here, memory_available=1)) is not None
    profile.path().write_text('{"version": 99}')
    assert profile.load() is None
    with pytest.raises(ValueError, match="version 99"):
        MachineProfile.read(profile.path())


def test_the_support_table_is_current():
    """Of tiers that this build lacks, for want of a newer compiler, nothing can be said."""
    text = support.FILE.read_text(encoding="utf-8")
    written = support.parse(text)
    tiers = cases.compiled_tiers()
    keep = [0, 1, *(i for i, name in enumerate(written[0]) if name in tiers)]
    assert [[row[i] for i in keep] for row in written] == support.table(tiers), (
        "run: python -m kt_core.bench.support --write"
    )
    if len(keep) == len(written[0]):
        assert text == support.page(tiers)


def test_the_table_covers_every_format():
    for tier in cases.compiled_tiers():
        column = list(cases.cases(tier, assumed=True))
        assert {case.format for case in column if case.path == cases.DIRECT} == SUPPORTED
        for case in column:
            assert case.served_by in cases.compiled_tiers()
