"""`kt doctor` when parts are absent, too old, or present but broken."""

import json
import resource
import socket
import subprocess
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from cli_runner import Done, Run
from test_cli_schemas import DOCTOR, fits

from kt_cli import checks, machine_checks
from kt_core.machine import probe
from kt_core.types import Gpu, Node


def by_name(done: Done) -> dict[str, dict[str, str]]:
    found = done.json
    fits(found, DOCTOR)
    assert found["counts"]["error"] == sum(c["status"] == "error" for c in found["checks"])
    assert done.code == (1 if found["counts"]["error"] else 0)
    return {check["name"]: check for check in found["checks"]}


def shim(folder: Path, name: str, text: str) -> dict[str, str]:
    """An environment in which `import name` runs `text`."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    root = Path(__file__).parent.parent.parent
    return {"PYTHONPATH": f"{folder}:{root}"}


def test_report(kt: Run) -> None:
    done = kt("doctor")
    for name in ("python", "cpu", "memory", "gpu", "torch", "transformers", "kernels", "settings", "models", "state"):
        assert f" {name} " in done.out
    assert " ok, " in done.err
    chinese = kt("doctor", more={"KT_LANG": "zh"})
    assert "正常" in chinese.out


def test_broken_torch_shows_its_own_words(kt: Run, tmp_path: Path) -> None:
    more = shim(tmp_path / "shim", "torch", "raise OSError('libtorch_cpu.so: undefined symbol: _ZN3c10')")
    found = by_name(kt("doctor", "--json", more=more))
    assert found["torch"]["status"] == "error"
    assert "fails to import: OSError: libtorch_cpu.so: undefined symbol: _ZN3c10" in found["torch"]["value"]
    assert found["cpu"]["status"] == "ok"
    shown = kt("doctor", more=more)
    assert shown.code == 1 and "pip install --force-reinstall" in shown.out


def test_torch_that_crashes_the_process(kt: Run, tmp_path: Path) -> None:
    more = shim(tmp_path / "shim", "torch", "import os; os.kill(os.getpid(), 4)")
    assert "signal 4" in by_name(kt("doctor", "--json", more=more))["torch"]["value"]


def test_absent_is_told_from_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.import_check("kt_no_such_package").value == "absent"
    monkeypatch.setattr(checks, "_version", lambda name: "9.9")
    assert "fails to import: ModuleNotFoundError" in checks.import_check("kt_no_such_package").value


def test_versions_out_of_range(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["torch>=2.11,<3", "kt-nothing>=1", "rich>=999", "numpy>=1; extra == 'x'", "typer"]
    monkeypatch.setattr(metadata, "requires", lambda name: wanted)
    found = {check.name: check for check in checks.required_packages()}
    assert set(found) == {"kt-nothing", "rich"}
    assert found["kt-nothing"].value == "absent" and "pip install 'kt-nothing>=1'" in found["kt-nothing"].suggestion
    assert found["rich"].status == "error" and "is outside >=999" in found["rich"].value


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("2.13.0+cpu", ">=2.11,<3", True),
        ("2.9", ">=2.11,<3", False),
        ("3.0.0", ">=2.11,<3", False),
        ("1.0", "==1.0.0", True),
        ("1.5.2", "!=1.5.*", False),
        ("1.4", "", True),
        ("5.24.0.dev0", ">=5.17,<6", True),
    ],
)
def test_ranges(version: str, wanted: str, fits: bool) -> None:
    assert checks.in_range(version, wanted) == fits


def test_extension_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    (check,) = checks.extension()
    assert check.status == "error" and "not built" in check.value and "pip install" in check.suggestion


def test_extension_broken(kt: Run, tmp_path: Path) -> None:
    """A file that is no shared library in the place of the extension: the loader's own words are shown."""
    import sysconfig

    broken = tmp_path / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    broken.write_bytes(b"\x7fELF not really")
    hook = f"""
import importlib.util, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, {str(broken)!r}) if name == "kt_core._native" else None
sys.meta_path.insert(0, Finder())
"""
    more = shim(tmp_path / "shim", "sitecustomize", hook)
    found = by_name(kt("doctor", "--json", more=more))
    assert found["kernels"]["status"] == "error" and "fails to load" in found["kernels"]["value"]
    assert "_native" in found["kernels"]["value"]


def test_kernels_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    tiers = [("scalar", []), ("avx2", []), ("amx", ["amx_tile"])]
    rows = [{"name": name, "missing": missing, "runnable": not missing} for name, missing in tiers]
    info: dict[str, object] = {"tiers": rows, "chosen": "avx2"}
    monkeypatch.setattr(checks, "_extension_exists", lambda: True)
    monkeypatch.setattr(checks, "_python", lambda code: subprocess.CompletedProcess([], 0, json.dumps(info) + "\n", ""))
    (check,) = checks.extension()
    assert (
        check.status == "ok"
        and check.value == "avx2 chosen; runnable: scalar, avx2; not here, for want of: amx (amx_tile)"
    )
    info["chosen"] = "scalar"
    assert checks.extension()[0].status == "warn"


def test_sysroot(kt: Run, tmp_path: Path) -> None:
    found = by_name(kt("doctor", "--json", "--sysroot", str(tmp_path)))
    assert any(name == "probe" for name in found), "an empty tree must leave notes"
    machine = kt("doctor", "--json", "--sysroot", str(tmp_path)).json["machine"]
    assert machine["allowed_cpus"] == [0] and machine["memory_total"] == 0 and machine["notes"]
    assert kt("doctor", "--sysroot", str(tmp_path / "nothing")).code == 4


def test_other_architecture() -> None:
    checks_ = machine_checks.check(replace(probe(), architecture="riscv64"))
    assert next(check for check in checks_ if check.name == "cpu").status == "error"


def test_limits_are_listed_and_the_deciding_one_is_named() -> None:
    limits = {"online": 16.0, "affinity": 16.0, "cores": 8.0, "quota": 2.5}
    machine = replace(
        probe(),
        limits=limits,
        logical_cpus=16,
        smt="unknown",
        memory_limits={"ram": 64 << 30, "cgroup": 8 << 30},
        memory_policy="bind:1",
        numa_nodes={0: Node((0,), 64 << 30), 9: Node((), 16 << 30, kind="gpu", usable=False)},
        gpus=(Gpu("X", 24 << 30, 1, "570.1", capability="8.9", node=1, pcie_generation=4, pcie_lanes=16),),
    )
    found = {check.name: check.value for check in machine_checks.check(machine)}
    assert found["threads"].startswith("2: the container's quota is 2.5 of 16 CPUs; limits: online 16, affinity 16,")
    assert "cores 8, quota 2.5" in found["threads"]
    assert "threads a core unknown" in found["cpu"]
    assert "control group may use 8.00 GiB (memory: 64.00 GiB); inherited memory policy: bind:1" in found["memory"]
    assert found["numa"] == "node 0 (1 CPUs, 64.0 GiB), node 9 (0 CPUs, 16.0 GiB): a GPU's memory"
    advice = {check.name: check.suggestion for check in machine_checks.check(replace(machine, numa_balancing=True))}
    assert "numa_balancing" in advice["system"]
    assert found["gpu"] == "X (24.0 GiB, sm_89, driver 570.1, PCIe 4.0 x16, node 1)"


def test_torch_that_was_built_for_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        checks, "_python", lambda code: subprocess.CompletedProcess([], 0, "2.13.0+cu130 cpu cuda\n", "")
    )
    card = Gpu("Radeon", 1, 1, kind="rocm")
    assert checks.torch_check(replace(probe(), gpus=())).value == "2.13.0+cu130, built for cpu, cuda"
    found = checks.torch_check(replace(probe(), gpus=(card,)))
    assert found.status == "warn" and "cannot use Radeon" in found.value and "rocm" in found.suggestion


@pytest.mark.parametrize(
    ("driver", "capability", "cuda", "code", "said"),
    [
        ("580.65.06", "8.9", "13.0", "sm_80 sm_90", ""),  # code for 8.0 runs on 8.9
        ("570.133", "8.9", "13.0", "sm_80", "takes driver 580.65 or newer; 570.133 is installed"),
        ("570.133", "8.9", "12.8", "sm_80", ""),
        ("580.65.06", "12.0", "13.0", "sm_80 sm_90", "no code for X (sm_120)"),
        ("580.65.06", "12.0", "13.0", "sm_80 compute_90", ""),  # compiled for it when it is loaded
        ("580.65.06", "6.1", "13.0", "sm_75 compute_90", "no code for X (sm_61)"),
        ("", "", "13.0", "sm_75", ""),
        ("580.65.06", "9.0", "", "", ""),
    ],
)
def test_torch_cuda_and_driver_fit(
    driver: str, capability: str, cuda: str, code: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = Gpu("X", 1, 1, driver, capability=capability)
    told = subprocess.CompletedProcess([], 0, f"2.13.0 cpu cuda cuda={cuda} for={code}\n", "")
    found = checks.torch_check(replace(probe(), gpus=(card,)), told)
    assert found.status == ("warn" if said else "ok") and said in found.value and bool(found.suggestion) == bool(said)
    assert "2.13.0, built for cpu, cuda" in found.value and "cuda=" not in found.value


def test_health_of_the_models_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KT_PATHS_MODELS", str(tmp_path))
    for name, files in {
        "good": {"a.gguf": b"x"},
        "torn": {"a-00001-of-00002.gguf": b"x"},
        "two": {"a.gguf": b"", "b.gguf": b""},
    }.items():
        (tmp_path / name).mkdir()
        for file, content in files.items():
            (tmp_path / name / file).write_bytes(content)
    half = tmp_path / ".partial" / "half"
    half.mkdir(parents=True)
    (half / "x.part").write_bytes(b"1234")
    found = checks.folders()[0]
    assert found.status == "warn" and "models: 3" in found.value and "half (4 B)" in found.value
    assert (
        "torn" in found.value and "a-00002-of-00002.gguf" in found.value and "kt model verify torn" in found.suggestion
    )
    (tmp_path / "torn" / "a-00002-of-00002.gguf").write_bytes(b"")
    assert checks.folders()[0].status == "ok"


def test_the_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("KT_SERVER_PORT", str(port))
        found = checks.running_servers()[-1]
        assert found.status == "warn" and f"another program has {port}" in found.value and found.suggestion
    assert f"{port} at 127.0.0.1 is free" in checks.running_servers()[-1].value


def test_quiet_names_the_faults(kt: Run, tmp_path: Path) -> None:
    more = shim(tmp_path / "shim", "torch", "raise OSError('x')")
    done = kt("doctor", "-q", more=more)
    assert "torch" in done.out.split() and done.err == "" and done.code == 1


def test_torch_and_kernels_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process tries both: where torch is fine and the kernels are not, each row says so; where torch is not, both do."""
    monkeypatch.setattr(checks, "_extension_exists", lambda: True)
    alone = replace(probe(), gpus=())
    broken = subprocess.CompletedProcess([], 1, f"2.13.0 cpu\n{checks._BETWEEN}\n", "ImportError: no symbol")
    monkeypatch.setattr(checks, "_python", lambda code: broken)
    torch, kernels = checks.torch_and_kernels(alone)
    assert torch.status == "ok" and torch.value.startswith("2.13.0")
    assert kernels.status == "error" and "no symbol" in kernels.value
    monkeypatch.setattr(checks, "_python", lambda code: subprocess.CompletedProcess([], 1, "", "OSError: libtorch"))
    torch, kernels = checks.torch_and_kernels(alone)
    assert torch.status == kernels.status == "error" and "libtorch" in torch.value and "libtorch" in kernels.value


@pytest.mark.alone
def test_the_report_takes_three_seconds(kt: Run) -> None:
    """On two CPUs, of which it keeps both busy: 2.5 s of processor time, 1.8 s by the clock on Zen 4. torch is imported once."""
    seconds = []
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert kt("doctor", "-q").code in (0, 1)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 4, seconds
