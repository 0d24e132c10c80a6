"""Which tier runs: detection, the choice, forcing it, and what is said about it."""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kt_core.kernels import info
from kt_core.kernels.native import load
from kt_core.machine import probe
from kt_core.plan import tiers as flags

TIERS = ["scalar", "avx2", "avx512", "avx512_vnni", "avx512_vbmi", "avx512_bf16", "amx"]
AVX2 = ["avx2", "fma", "f16c", "os_ymm"]
AVX512 = [*AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl", "os_zmm"]
AMX = [*AVX512, "avx512_vnni", "avx512vbmi", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16", "os_amx"]

x86_only = pytest.mark.skipif(platform.machine() != "x86_64", reason="other machines have the scalar tier only")


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KT_LANG": "en", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def runnable():
    return [tier["name"] for tier in info()["tiers"] if tier["runnable"]]


@x86_only
def test_what_the_flags_allow_is_what_the_extension_runs():
    """The plan and the bench judge by the flags alone, before the extension is loaded; AMX takes a permission too."""
    assert [name for name in flags.runnable(probe()) if name != "amx"] == [n for n in runnable() if n != "amx"]


def test_tiers_are_reported_lowest_first():
    assert [tier["name"] for tier in info()["tiers"]] == TIERS
    for tier in info()["tiers"]:
        assert tier["runnable"] == (not tier["missing"])
        assert set(tier["missing"]) <= {*tier["needs"], "compiler support"}
    assert info()["reason"]
    assert info()["compiler"]
    assert "scalar" in runnable()


@x86_only
def test_detection_agrees_with_the_system():
    text = Path("/proc/cpuinfo").read_text()
    flags = set(re.search(r"^flags\s*:(.*)$", text, re.M)[1].split())
    # Linux hides a flag whose registers it does not save, so a listed AVX flag implies the os_ bit
    known = set(AMX) - {"os_ymm", "os_zmm", "os_amx"}
    found = set(info()["features"])
    assert found & known == flags & known
    assert ("os_ymm" in found) == ("avx2" in flags)
    assert ("os_zmm" in found) == ("avx512f" in flags)
    assert "amx_permission" not in found or "amx_tile" in flags


@x86_only
@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ([], "scalar"),
        (AVX2, "avx2"),
        ([f for f in AVX2 if f != "f16c"], "scalar"),
        ([f for f in AVX2 if f != "os_ymm"], "scalar"),
        ([*AVX2, "avx512f", "os_zmm"], "avx2"),
        ([f for f in AVX512 if f != "os_zmm"], "avx2"),
        (AVX512, "avx512"),
        ([*AVX512, "avx512_vnni"], "avx512_vnni"),
        ([*AVX512, "avx512vbmi", "avx512_bf16"], "avx512_bf16"),
        ([*AVX512, "avx512_vnni", "avx512_bf16"], "avx512_vnni"),
        ([*AVX512, "avx512_vnni", "avx512vbmi"], "avx512_vbmi"),
        ([*AVX2, "avx512_vnni", "avx512_bf16"], "avx2"),
        (AMX, "avx512_bf16"),
        ([*AMX, "amx_permission"], "amx"),
        ([f for f in [*AMX, "amx_permission"] if f != "os_amx"], "avx512_bf16"),
    ],
)
def test_choice_for_a_cpu(features, expected):
    choice = load().choose(features)
    assert (choice["verdict"], choice["tier"]) == ("ok", expected)
    for position, name in enumerate(TIERS):
        forced = load().choose(features, name)
        if forced["verdict"] == "ok":
            assert forced["tier"] == name
            assert position <= TIERS.index(expected)
        else:
            assert forced["verdict"] == "not_runnable"
            assert forced["missing"]
            assert all(word in forced["reason"] for word in forced["missing"])


@x86_only
def test_amx_without_permission_says_so():
    choice = load().choose(AMX, "amx")
    assert choice["verdict"] == "not_runnable"
    assert choice["missing"] == ["amx_permission"]
    assert "amx_permission" in choice["reason"]
    assert "can run: scalar, avx2, avx512" in choice["reason"]


def test_unknown_feature_is_an_error():
    with pytest.raises(ValueError, match="mmx2"):
        load().choose(["mmx2"])


SHOW = "from kt_core.kernels import info; i = info(); print(i['chosen'], *(f['tier'] for f in i['formats'].values()))"
USE = """
import numpy as np, torch
from kt_core.weights import Matrix
from kt_core.kernels import Linear, info
data = np.zeros((20, 68), np.uint8)
print(float(Linear(Matrix("Q8_0", 20, 64, data))(torch.ones(9, 64)).abs().sum()))
"""


@pytest.mark.parametrize("tier", TIERS)
def test_forced_tier(tier):
    result = run(SHOW + USE, KT_KERNEL_CPU_VARIANT=tier)
    if tier in runnable():
        assert result.returncode == 0, result.stderr  # a negative code would be an illegal instruction
        chosen, *served = result.stdout.splitlines()[0].split()
        assert chosen == tier
        assert all(TIERS.index(name) <= TIERS.index(tier) for name in served)
        assert result.stdout.splitlines()[1] == "0.0"
    else:
        assert result.returncode == 1
        assert f"Kernel tier {tier} cannot run on this machine." in result.stderr
        assert "Missing: " in result.stderr
        assert "can run: scalar" in result.stderr


def test_forced_unknown_name():
    result = run(SHOW, KT_KERNEL_CPU_VARIANT="sse9")
    assert result.returncode == 1
    assert "Unknown kernel tier 'sse9'." in result.stderr
    assert all(tier in result.stderr for tier in TIERS)
    chinese = run(SHOW, KT_KERNEL_CPU_VARIANT="sse9", KT_LANG="zh", PYTHONIOENCODING="utf-8")
    assert "未知的内核级别" in chinese.stderr


def test_debug_prints_the_search():
    result = run(SHOW, KT_KERNEL_DEBUG="1")
    assert result.returncode == 0
    assert result.stderr.count("kt kernels:") == len(TIERS) + 2
    assert not run(SHOW).stderr


def test_missing_extension_is_an_environment_problem():
    code = """
import sys
sys.modules["kt_core._native"] = None
from kt_core import errors, kernels
try:
    kernels.info()
except errors.EnvironmentProblem as error:
    print(error.exit_code, *error.lines(), sep="|")
"""
    result = run(code)
    assert result.stdout.startswith("6|The native kernels could not be loaded.|"), result.stderr
