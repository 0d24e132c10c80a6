"""`kt microbench`: what a person and a program get, refusals, and an end in the middle."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import Run

from kt_cli import machine_checks
from kt_cli.check import OK, WARN, Check
from kt_core.machine import probe, profile

SMALL = [
    "--hidden",
    "256",
    "--intermediate",
    "256",
    "--experts",
    "8",
    "--top-k",
    "2",
    "--threads",
    "1",
    "--layers",
    "1",
]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["moe", "--shape", "qwen3-30b"], 2, "did you mean qwen3-30b-a3b"),
        (["linear", "--shape", "x"], 2, "deepseek-v3"),
        (["moe", "--formats", "Q8_9"], 2, "Q8_0"),
        (["moe", "--formats", "I64"], 7, "Q8_0"),
        (["moe", "--formats", "Q4_K", "--shape", "glm-4.5-air"], 7, "1408"),
        (["moe", "--tier", "sse9"], 2, "avx512_vnni"),
        (["moe", "--vs", "numpy"], 2, "torch"),
        (["moe", "--tokens", "1,x"], 2, "whole numbers"),
        (["moe", "--tokens", ""], 2, "whole numbers"),
        (["moe", "--tokens", "0"], 2, "whole numbers"),
        (["moe", "--threads", "99999"], 2, "4096"),
        (["moe", "--experts", "4", "--top-k", "5"], 2, "5 of 4"),
        (["moe", "--repeats", "0"], 2, "1 or more"),
        (["moe", "--tokens", "9" * 5000], 2, "whole numbers"),
        (["moe", "--layers", "9" * 4000], 2, "at most 18 digits"),
        (["moe", "--hidden", "7"], 2, "multiples of 32"),
        (["moe", "--intermediate", "100"], 2, "For example: --intermediate 96"),
        (["linear", "--outputs", "33"], 2, "multiples of 32"),
        (["moe", "--layers", "9", "--experts", "100000"], 3, "--experts"),
        (["linear", "--outputs", "20000000"], 3, "GiB"),
        (["attention", "--keys", "2000000000"], 3, "--keys"),
        (["attention", "--keys", "100", "--tokens", "101"], 2, "100 keys"),
        (["attention", "--formats", "Q8_0"], 7, "BF16, F32"),
    ],
)
def test_refusals(kt: Run, args: list[str], code: int, words: str) -> None:
    done = kt("microbench", *args)
    assert done.code == code, done.err
    assert words in done.err
    assert done.out == ""
    assert kt("microbench", *args, "--json").json["error"]["exit_code"] == code


def test_a_tier_that_the_environment_forces_wrongly(kt: Run) -> None:
    done = kt("microbench", "moe", *SMALL, more={"KT_KERNEL_CPU_VARIANT": "sse9"})
    assert done.code == 6
    assert "sse9" in done.err and "Starting" in done.err


def test_moe_for_programs(kt: Run) -> None:
    done = kt("microbench", "moe", *SMALL, "--tokens", "1,5", "--repeats", "2", "--check", "--json")
    assert done.code == 0, done.err
    data = done.json
    assert data["kind"] == "moe"
    assert data["shape"] == {"name": "-", "hidden": 256, "intermediate": 256, "experts": 8, "top_k": 2}
    rows = data["rows"]
    assert [(row["format"], row["tokens"]) for row in rows] == [
        (format, tokens) for format in ("BF16", "Q8_0", "Q4_K") for tokens in (1, 5)
    ]
    for row in rows:
        assert row["threads"] == 1
        for name in ("median_us", "gbps", "tflops", "share_of_ceiling", "read_gbps"):
            assert row[name] > 0, name
        assert all(rate > 0 for rate in row["unit_tflops"].values())
        assert row["error"] <= row["bound"]
    assert len(data["notes"]) == 3  # one layer of such experts fits in any cache


def test_linear_for_people(kt: Run) -> None:
    args = (
        "--inputs",
        "512",
        "--outputs",
        "256",
        "--formats",
        "Q8_0",
        "--tokens",
        "2",
        "--repeats",
        "1",
        "--vs",
        "torch",
    )
    done = kt("microbench", "linear", *args, "--threads", "1", "--layers", "1")
    assert done.code == 0, done.err
    assert "512 inputs, 256 outputs" in done.out
    assert done.out.splitlines()[2].split()[:3] == ["FORMAT", "TIER", "PATH"]
    assert [line.split()[0] for line in done.out.splitlines()[3:]][:2] == ["Q8_0", "torch-bf16"]
    assert "caches" in done.err


def test_attention(kt: Run) -> None:
    args = (
        "--shape",
        "kimi-k2",
        "--keys",
        "100",
        "--tokens",
        "1,3",
        "--threads",
        "1",
        "--layers",
        "1",
        "--repeats",
        "1",
    )
    done = kt("microbench", "attention", *args, "--check")
    assert done.code == 0, done.err
    assert "64 query heads, 1 kv heads, keys of 576, values of 512" in done.out
    assert [line.split()[3:6] for line in done.out.splitlines()[3:]] == [["1", "1", "100"], ["1", "3", "100"]]
    data = kt("microbench", "attention", *args, "--json").json
    assert data["shape"]["key_size"] == 576
    assert [row["keys"] for row in data["rows"]] == [100, 100]


def test_formats_that_a_shape_cannot_have_are_left_out_of_the_usual_ones(kt: Run) -> None:
    done = kt("microbench", "moe", *SMALL, "--intermediate", "96", "--tokens", "1", "--repeats", "1")
    assert done.code == 0, done.err
    assert "Q4_K" in done.err
    assert "Q4_K" not in done.out


def test_ceilings_make_the_profile_that_doctor_and_plans_read(kt: Run, env: dict[str, str]) -> None:
    done = kt("microbench", "ceilings", "--threads", "1", "--repeats", "1")
    assert done.code == 0, done.err
    assert "memory read" in done.out
    file = Path(env["XDG_CACHE_HOME"]) / "kt" / "machine.json"
    assert str(file) in done.err
    stored = profile.load()
    assert stored is not None and set(stored.read_rates) == {1}
    found = doctor()
    assert found.status == OK
    assert f"{stored.read_rates[1] / 1e9:.1f} GB/s" in found.value
    text = file.read_text()
    file.write_text(text.replace('"cores": ', '"cores": 9'))
    found = doctor()
    assert found.status == WARN
    assert "kt microbench ceilings" in found.suggestion
    file.write_text("{")
    assert doctor().status == WARN
    file.unlink()
    assert doctor().status == OK


def doctor() -> Check:
    """What `kt doctor` says of the profile."""
    return next(check for check in machine_checks.check(probe()) if check.name == "profile")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_end_in_the_middle_leaves_no_process_and_shows_what_there_is(env: dict[str, str], number: int) -> None:
    args = ["moe", *SMALL, "--formats", "BF16", "--tokens", ",".join(map(str, range(1, 2000)))]
    command = [sys.executable, "-m", "kt_cli", "microbench", *args]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stderr and process.stdout
    while "Measuring" not in process.stderr.readline():
        assert process.poll() is None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert children and not any(Path(f"/proc/{child}").exists() for child in children)
    assert "Traceback" not in err
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "Interrupted" in err
        assert out.splitlines()[3].split()[0] == "BF16"


def test_a_process_that_dies_is_told(env: dict[str, str]) -> None:
    args = ["moe", *SMALL, "--formats", "BF16", "--tokens", ",".join(map(str, range(1, 2000))), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kt_cli", "microbench", *args], stdout=subprocess.PIPE, text=True, env=env
    )
    children: list[str] = []
    while not children and process.poll() is None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "signal 9" in json.loads(out)["error"]["what"]
