"""Predicted speed: the roofline's arithmetic, and what people report of machines that compute on the CPU alone."""

from dataclasses import replace

import pytest

from kt_core.errors import DoesNotFit
from kt_core.kernels.policy import POLICY
from kt_core.machine.simulate import simulate
from kt_core.models import catalogue
from kt_core.models.spec import from_config
from kt_core.plan import KERNEL_FORMATS, fit, make_plan, speed
from kt_core.types import Machine, MachineProfile, ModelFiles, ModelSpec, Node

GIB = 1 << 30
HERE = Machine(
    "Here", "x86_64", ("avx2", "f16c", "fma"), 2, 2, (0, 1), {0: Node((0, 1))}, {"cores": 2.0}, 24 * GIB, 22 * GIB
)
DENSE = {"model_type": "qwen2", "num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 29568, "vocab_size": 152064,
         "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 32768}  # fmt: skip


def stored_as(name: str, form: str, layers: int = 0) -> ModelSpec:
    """A known model (or the dense one of 72 billion) with all matrices in one format, cut to so many layers."""
    known = catalogue.find(name)
    config = dict(known.config) if known else DENSE
    if layers:
        config["num_hidden_layers"] = layers
    return from_config(config, formats={"": form})


# A virtual machine's share of a CPU is in no list: its own reads, in the slower of the two modes that it has
ZEN4 = MachineProfile({}, 1.0, {2: 34e9}, {"int8": {2: 930e9}, "bf16": {2: 470e9}}, {})
# machine, model, tokens a second that were reported of decoding; llama.cpp, ik_llama.cpp or ollama
REPORTS = [
    ("graviton4", "cpu=graviton4,ram=1TiB", stored_as("r1", "Q4_K"), 10.0),
    ("own-zen4-2cpu q4km", "", stored_as("qwen3-30b-a3b", "Q4_K", 8), 55.6),
    ("own-zen4-2cpu q8_0", "", stored_as("qwen3-30b-a3b", "Q8_0", 8), 40.2),
    ("own-zen4-2cpu bf16", "", stored_as("qwen3-30b-a3b", "BF16", 8), 22.0),
    ("6980p Q4_0", "cpu=6980p,ram=768GiB", stored_as("72b", "Q4_0"), 5.5),
    ("6980p IQ3", "cpu=6980p,ram=768GiB", stored_as("72b", "IQ3_S"), 6.1),
    ("7965wx Q4_0", "cpu=7965wx,ram=256GiB", stored_as("72b", "Q4_0"), 4.7),
    ("7965wx IQ3", "cpu=7965wx,ram=256GiB", stored_as("72b", "IQ3_S"), 5.6),
]


@pytest.mark.parametrize(("name", "machine", "spec", "reported"), REPORTS, ids=[r[0] for r in REPORTS])
def test_reports_of_cpus_are_met_within_half(name: str, machine: str, spec: ModelSpec, reported: float) -> None:
    made = simulate(machine, HERE) if machine else None
    found = made.machine if made else HERE
    threads = len(found.fast_cores) or 2
    predicted = speed.predict(found, spec, threads, made.profile if made else ZEN4)["decode_tokens_per_second"]
    assert reported / 1.5 <= predicted <= reported * 1.5, (
        f"{name}: {predicted:.3g} tok/s predicted, {reported} reported"
    )


@pytest.mark.parametrize(("form", "measured"), [("Q4_K", 517), ("Q8_0", 464), ("BF16", 396)])
def test_prompts_measured_here_are_met_within_half(form: str, measured: float) -> None:
    """docs/benchmarks.md, whole models as one native call: 512 tokens, 2 threads."""
    predicted = speed.predict(HERE, stored_as("qwen3-30b-a3b", form, 8), 2, ZEN4)["prefill_tokens_per_second"]
    assert measured / 1.5 <= predicted <= measured * 1.5


def test_a_report_of_weights_read_from_disk_is_refused() -> None:
    """128 GB with a model of 744 billion weights: what is read through the disk (1.0 tok/s) is nothing that kt runs."""
    strix = simulate("cpu=ryzen-ai-max+-395,ram=128GiB", HERE).machine
    with pytest.raises(DoesNotFit):
        fit.check(strix, "GLM-5.2", stored_as("GLM-5.2", "INT4"), None, None, {})


def test_a_prompt_is_bound_by_arithmetic_or_by_reading_all_weights() -> None:
    spec = stored_as("qwen3-30b-a3b", "Q4_K", 8)
    ends = spec.parameters_by_part["embedding"] + spec.parameters_by_part["head"]
    work = 2 * (spec.active_parameters - ends)
    found = speed.predict(HERE, spec, 2, ZEN4)["prefill_tokens_per_second"]
    assert found == pytest.approx(930e9 * 0.45 / work)
    fast = replace(ZEN4, unit_rates={"tile_bf16": {2: 1e15}})
    assert speed.predict(HERE, spec, 2, fast)["prefill_tokens_per_second"] == pytest.approx(
        512 * 34e9 * 0.8 / sum(spec.bytes_by_part.values())
    )
    assert "prefill_tokens_per_second" not in speed.predict(HERE, spec, 2, replace(ZEN4, unit_rates={}))
    floats = stored_as("qwen3-30b-a3b", "F32", 8)  # no tiles for float32
    assert "prefill_tokens_per_second" not in speed.predict(HERE, floats, 2, fast)


def test_units_are_those_of_the_kernels() -> None:
    assert {form: speed.unit_of(form) for form in KERNEL_FORMATS} == POLICY


def test_a_token_reads_no_vision_no_further_layers_and_one_row_of_the_embedding() -> None:
    spec = stored_as("r1", "BF16")
    read = 34e9 * 0.8 / speed.predict(HERE, spec, 2, ZEN4)["decode_tokens_per_second"]
    rows = spec.bytes_by_part["embedding"]  # is among the active parameters
    assert read == pytest.approx(2 * spec.active_parameters - rows, rel=0.01)


def test_portable_kernels_are_not_predicted() -> None:
    made = simulate("cpu=graviton4,ram=1TiB", HERE)
    plan = make_plan(made.machine, ModelFiles("m", "", "safetensors", ()), stored_as("r1", "Q4_K"), {}, made.profile)
    assert plan.value("tier") == "scalar" and plan.predicted == {}
