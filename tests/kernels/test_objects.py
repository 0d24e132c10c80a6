"""What the compiler put into each tier's object: a tier may not leak into another CPU's code."""

import platform
import re
import shutil
import subprocess
import zlib
from functools import cache
from pathlib import Path

import pytest

from kt_core.kernels import SUPPORTED

ROOT = Path(__file__).parents[2]
# what no object of a tier may contain: tiers from the left on lack what is right of them
FORBIDDEN = {"scalar": "%ymm|%zmm|%tmm", "avx2": "%zmm|%tmm", "amx": "no such register"}

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="one tier only")


@cache
def objects():
    """Objects of the newest build, by target."""
    builds = sorted(ROOT.glob("build/*/build.ninja"), key=lambda path: path.stat().st_mtime)
    if not builds:
        pytest.fail("the extension was not built from this checkout: make install")
    folder = builds[-1].parent / "CMakeFiles"
    # a kept build folder may still have objects of files that are gone
    found = [
        o
        for o in folder.glob("*.dir/**/*.o")
        if (ROOT / "native" / Path(*o.relative_to(folder).parts[1:])).with_suffix("").exists()
    ]
    return {name: [o for o in found if f"{name}.dir" in o.parts] for name in {o.parts[-3][:-4] for o in found}}


def tool(*command):
    assert shutil.which(command[0]), f"{command[0]} comes with every compiler"
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def tier_objects():
    return {name[len("kt_isa_") :]: files for name, files in objects().items() if name.startswith("kt_isa_")}


def test_there_is_an_object_for_each_tier():
    assert set(tier_objects()) >= {"scalar", "avx2", "avx512", "avx512_vnni", "avx512_bf16"}
    assert {"kt_core", "_native"} <= set(objects())


def test_tier_objects_export_their_table_and_nothing_else():
    for tier, files in tier_objects().items():
        (file,) = files
        symbols = [line.split() for line in tool("nm", "-C", str(file)).splitlines()]
        defined = [s for s in symbols if len(s) >= 3]
        weak = [s for s in symbols if s[-2] in "WwVvu" or s[0] in "WwVvu"]
        assert not weak, (tier, weak)
        exported = [s[2] for s in defined if s[1].isupper()]
        assert exported == [f"kt::kt_table_{tier}"], (tier, exported)


def test_tier_objects_stay_in_their_registers():
    for tier, files in tier_objects().items():
        code = tool("objdump", "-d", "--no-show-raw-insn", str(files[0]))
        forbidden = FORBIDDEN.get(tier, "%tmm")
        assert not re.search(forbidden, code), tier
    assert "%ymm" in tool("objdump", "-d", str(tier_objects()["avx2"][0]))
    assert "vpdpbusd" in tool("objdump", "-d", str(tier_objects()["avx512_vnni"][0]))
    assert "vdpbf16ps" in tool("objdump", "-d", str(tier_objects()["avx512_bf16"][0]))
    assert "vpdpbusd" not in tool("objdump", "-d", str(tier_objects()["avx512"][0]))
    if "amx" in tier_objects():
        assert "tdpbf16ps" in tool("objdump", "-d", str(tier_objects()["amx"][0]))


def test_common_objects_keep_to_the_floor():
    for name in ("kt_core", "_native"):
        for file in objects()[name]:
            assert not re.search("%ymm|%zmm|%tmm", tool("objdump", "-d", "--no-show-raw-insn", str(file))), file


def test_tiers_have_no_start_up_code():
    for tier, files in tier_objects().items():
        assert ".init_array" not in tool("objdump", "-h", str(files[0])), tier


def program(source, target):
    """A program of native/ with the very objects of the module."""
    kernels = (files for name, files in objects().items() if name == "kt_core" or name.startswith("kt_isa_"))
    linked = [str(file) for files in kernels for file in files]
    native = ROOT / "native"
    flags = ["-std=c++20", "-O1", f"-I{native}/include", f"-I{native}"]
    tool("c++", *flags, str(native / source), *linked, "-pthread", "-o", str(target))
    return target


def test_native_program(tmp_path):
    """native/tests: all tiers, guard pages, pool, fork."""
    command = [program("tests/main.cpp", tmp_path / "kt_native_tests")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stdout
    assert "tier scalar" in result.stdout


def test_any_bits_as_weights(tmp_path):
    """native/fuzz for 30 seconds of CPU time, from a number that changes with the kernels: what fails, fails again."""
    sources = sorted(path for path in (ROOT / "native").rglob("*") if path.suffix in (".h", ".cpp"))
    seed = zlib.crc32(b"".join(path.read_bytes() for path in sources))
    command = [str(program("fuzz/decoders.cpp", tmp_path / "kt_fuzz")), "30", str(seed)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stdout
    counts = dict(re.findall(r"(\w+): (\d+) cases", result.stdout))
    assert set(counts) == SUPPORTED and min(map(int, counts.values())) > 20
