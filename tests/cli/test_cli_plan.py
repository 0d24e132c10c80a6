"""`kt plan`: what it shows and refuses, in both languages, without torch and without a download."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Run

BIG = "cpu=xeon-6454s:2,ram=1TiB,gpu=rtx-4090:1,disk=2TiB"
WITHOUT_TORCH = """
import sys
for name in ('torch', 'transformers', 'kt_core._native'): sys.modules[name] = None
from kt_cli.main import main
main()
"""


def test_a_plan_for_another_machine(kt: Run) -> None:
    done = kt("plan", "qwen3-30b-a3b", "--simulate", BIG, "--json", program=("-c", WITHOUT_TORCH))
    data = done.json
    assert done.code == 0 and data["fits"] is True and data["machine"]["simulated"] is True
    assert set(data) == {
        "schema_version",
        "model",
        "machine",
        "disk",
        "notes",
        "fits",
        "decisions",
        "memory",
        "predicted",
    }
    assert data["model"] == {"name": "Qwen3-30B-A3B", "source": "shapes", "path": None}
    chosen = {d["name"]: d["value"] for d in data["decisions"]}
    assert all(set(d) == {"name", "value", "reason", "source", "flag"} and d["reason"] for d in data["decisions"])
    named = {d["flag"]: d["value"] for d in data["decisions"] if d["flag"]}
    assert chosen["threads"] == named["--kt-cpuinfer"] == 63  # one is the GPU's
    assert [pool["node"] for pool in chosen["pools"]] == [0, 1] and chosen["devices"] == ["cuda:0"]
    assert chosen["gpu_experts"] == named["--kt-num-gpu-experts"] and chosen["context"] == 40960
    for device in ("cpu", "cuda:0"):
        memory = data["memory"][device]
        assert memory["needed"] == sum(memory["parts"].values()) <= memory["available"], device
    cpu = data["memory"]["cpu"]
    assert set(cpu["nodes"]) == {"0", "1"} and sum(cpu["nodes"].values()) == pytest.approx(
        cpu["parts"]["weights"], abs=1
    )
    assert cpu["parts"]["weights"] < cpu["load_peak"] < cpu["needed"]
    assert data["memory"]["cpu"]["parts"]["weights"] < data["disk"]["download"] < data["disk"]["free"] == 2 << 40
    assert 40 < data["predicted"]["decode_tokens_per_second"] < 100
    assert data["predicted"]["prefill_tokens_per_second"] > 100 and "not measured" in data["predicted"]["reason"]
    assert data["notes"] == []
    r1 = kt("plan", "r1", "--simulate", BIG, "--json").json
    (devices,) = [decision for decision in r1["decisions"] if decision["name"] == "devices"]
    assert devices["value"] == [] and "what every token needs" in devices["reason"] and set(r1["memory"]) == {"cpu"}


def test_the_same_without_its_gpu(kt: Run) -> None:
    data = kt("plan", "r1", "--simulate", BIG, "--device", "cpu", "--json").json
    chosen = {d["name"]: d["value"] for d in data["decisions"]}
    assert chosen["threads"] == 64 and chosen["devices"] == [] and chosen["context"] == 163840
    cpu = data["memory"]["cpu"]
    assert set(data["memory"]) == {"cpu"} and cpu["needed"] == sum(cpu["parts"].values()) <= cpu["available"]
    assert cpu["parts"]["weights"] == data["disk"]["download"]
    assert 5 < data["predicted"]["decode_tokens_per_second"] < 12


def test_a_table_in_two_languages(kt: Run) -> None:
    shown = kt("plan", "qwen3-30b-a3b", "--simulate", BIG).out
    for piece in (
        "threads",
        "64 usable physical cores",
        "gpu_experts",
        "tok/s",
        "Speed: not measured",
        "rtx-4090",
        "To download: 56.9 GiB",
    ):
        assert piece in shown, piece
    chinese = kt("plan", "qwen3-30b-a3b", "--simulate", BIG, more={"KT_LANG": "zh"}).out
    assert "预测速度" in chinese and "每层一个需要" in chinese
    assert "63" in kt("plan", "qwen3-30b-a3b", "--simulate", BIG, "--quiet").out.splitlines()


def test_what_does_not_fit_is_refused_with_3(kt: Run) -> None:
    small = ("plan", "qwen3-30b-a3b", "--simulate", "cpu=9950x,ram=24GiB,disk=1TiB")
    done = kt(*small)
    assert done.code == 3 and done.out == "" and "GiB are missing" in done.err and "GPTQ-Int4" in done.err
    data = (told := kt(*small, "--json")).json
    assert told.code == 3 and data["fits"] is False and data["error"]["exit_code"] == 3 and "decisions" not in data
    long = kt("plan", "qwen3-30b-a3b", "--simulate", "ram=60GiB,disk=1TiB", "--context", "40000")
    assert long.code == 3 and "--context" in long.err
    gpu = kt("plan", "r1", "--simulate", "cpu=9950x,ram=24GiB,disk=1TiB,gpu=rtx-3060")
    assert gpu.code == 3 and "are missing" in gpu.err and "--force" not in gpu.err
    both = kt("plan", "qwen3-30b-a3b", "--simulate", "cpu=9950x,ram=20GiB,disk=1TiB,gpu=rtx-4090")
    assert both.code == 3 and "experts of each layer on the GPU" in both.err and "Qwen3-30B-A3B-GPTQ-Int4" in both.err
    disk = kt("plan", "qwen3-30b-a3b", "--simulate", "ram=96GiB,disk=10GiB")
    assert disk.code == 3 and "on the disk" in disk.err


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("qwen3-30b-a3b", "--simulate", "cpu=xeon-6455s"), 2, "xeon-gold-6454s"),
        (("qwen3-30b-a3b", "--simulate", "gpu=rtx-4009"), 2, "rtx-4090"),
        (("qwen3-30b-a3b", "--simulate", "vram=4GiB"), 2, "cpu, ram, gpu, disk"),
        (("no-such-model-anywhere",), 4, "no-such-model-anywhere"),
    ],
)
def test_wrong_words(kt: Run, args: tuple[str, ...], code: int, says: str) -> None:
    done = kt("plan", *args)
    assert done.code == code and says in done.err


def test_settings_hold_for_this_machine_alone(kt: Run, tmp_path: Path) -> None:
    """A configuration alone is planned for, and nothing of it is downloaded."""
    config = {"model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 512, "num_experts": 4,
              "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
              "head_dim": 16, "max_position_embeddings": 512}  # fmt: skip
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(config))
    here = {"KT_INFERENCE_CONTEXT": "128"}

    def context(*more: str) -> tuple[int, str]:
        decisions = kt("plan", str(tmp_path / "tiny"), "--json", *more, more=here).json["decisions"]
        return next((d["value"], d["source"]) for d in decisions if d["name"] == "context")

    assert context() == (128, "config") and context("--context", "64") == (64, "user")
    assert context("--simulate", "cpu=7950x,ram=8GiB") == (512, "model")


@pytest.mark.alone
def test_it_takes_half_a_second(kt: Run, tmp_path: Path) -> None:
    """Of processor time, which others on the machine move little: 0.30 s on Zen 4, compiled modules kept as pip keeps them. On
    slower CPUs (0.58 s on Zen 3) what the libraries' own import takes there says how much slower: 2.7 times that, here 3.5."""
    kept = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path / "compiled")}
    libraries = [sys.executable, "-c", "import typer, rich.console, pydantic"]

    def spent(run: Callable[[], Any]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    seconds, imports = [], []
    for _ in range(4):
        seconds.append(spent(lambda: kt("plan", "r1", "--simulate", BIG, "--json", more=kept)))
        imports.append(spent(lambda: subprocess.run(libraries, env={**os.environ, **kept}, check=True)))
    assert min(seconds) < max(0.5, 3.5 * min(imports)), (seconds, imports)


def test_a_kernel_tier_that_the_environment_forces(kt: Run) -> None:
    """The kernels obey it whatever a plan says: so a plan knows it, and refuses before anything loads what they would refuse."""
    forced = kt("plan", "demo", "--json", more={"KT_KERNEL_CPU_VARIANT": "scalar"})
    assert chosen(forced.json)["tier"] == "scalar"
    wrong = kt("plan", "demo", more={"KT_KERNEL_CPU_VARIANT": "sse9"})
    assert wrong.code == 2 and "sse9" in wrong.err and "avx512_vnni" in wrong.err
    elsewhere = kt("plan", "r1", "--simulate", BIG, "--json", more={"KT_KERNEL_CPU_VARIANT": "sse9"})
    assert chosen(elsewhere.json)["tier"] is None


def chosen(document: dict[str, list[dict[str, object]]]) -> dict[str, object]:
    return {decision["name"]: decision["value"] for decision in document["decisions"]}  # type: ignore[misc]


def test_a_pasted_command(kt: Run) -> None:
    command = (
        "CUDA_VISIBLE_DEVICES=0 python -m sglang.launch_server --host 0.0.0.0 --port 30000 --model-path qwen3-30b-a3b "
        "--kt-weight-path qwen3-30b-a3b --kt-method BF16 --kt-cpuinfer 64 --kt-threadpool-count 2 --kt-num-gpu-experts 32 "
        "--mem-fraction-static 0.8 --trust-remote-code --served-model-name Qwen3 --context-length 16384"
    )
    data = kt("plan", "--from", command, "--simulate", BIG, "--json").json
    found = chosen(data)
    assert data["model"]["name"] == "Qwen3-30B-A3B" and found["method"] == "BF16"
    assert (found["threads"], found["gpu_experts"], found["context"], len(found["pools"])) == (64, 32, 16384, 2)
    assert [note.split()[0] for note in data["notes"]] == ["--host", "--port", "--trust-remote-code"]
    talk = kt("plan", "--from=" + command, "--simulate", BIG).err
    assert "Warning: --trust-remote-code has no effect" in talk and "Warning: --host" in talk
    assert "不起作用" in kt("plan", f"--from={command}", "--simulate", BIG, more={"KT_LANG": "zh"}).err


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("qwen3-30b-a3b", "--kt-num-gpu-expert", "2"), 2, "--kt-num-gpu-experts"),
        (("qwen3-30b-a3b", "--kt-cpuinfer", "many"), 2, "--threads takes a whole number"),
        (("qwen3-30b-a3b", "--kt-lora-path", "x"), 7, "--lora NAME=FOLDER"),
        (("qwen3-30b-a3b", "--simulate", BIG, "--kt-method", "AMXINT4"), 7, "stored for BF16"),
        (("qwen3-30b-a3b", "--simulate", BIG, "--kt-num-gpu-experts", "60"), 3, "--kt-num-gpu-experts"),
        (("--from", "python -m sglang.launch_server"), 2, "no command that starts a server"),
        (("--from",), 2, "--from needs a value"),
    ],
)
def test_flags_that_are_refused(kt: Run, args: tuple[str, ...], code: int, says: str) -> None:
    done = kt("plan", *args)
    assert done.code == code and says in done.err and done.out == ""
    told = kt("plan", "--json", *args)
    assert told.code == code and told.err == "" and told.json["error"]["exit_code"] == code


def test_a_gpu_of_this_machine_is_left_out_and_said_so(kt: Run, tmp_path: Path) -> None:
    """The flags of a hybrid server are taken, and the reason says that they do nothing."""
    data = kt("plan", "demo", "--kt-num-gpu-experts", "4", "--json").json
    (found,) = [decision for decision in data["decisions"] if decision["name"] == "devices"]
    assert found["value"] == [] and found["reason"].endswith("without effect: gpu_experts")


def test_models_that_kt_makes_are_planned_before_they_are_there(kt: Run, tmp_path: Path) -> None:
    data = kt("plan", "demo", "--json").json
    assert data["model"] == {"name": "demo", "source": "shapes", "path": None} and data["fits"]
    assert chosen(data)["context"] == 8192 and not (tmp_path / "data").exists()
