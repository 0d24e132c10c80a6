"""`kt doctor` when parts are absent, too old, or present but broken."""

from importlib import metadata
from pathlib import Path

import pytest
from cli_runner import Done, Run

from kt_cli import checks


def by_name(done: Done) -> dict[str, dict[str, str]]:
    found = done.json
    assert found["counts"]["error"] == sum(c["status"] == "error" for c in found["checks"])
    assert done.code == (6 if found["counts"]["error"] else 0)
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
    assert shown.code == 6 and "pip install --force-reinstall" in shown.out


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
    import json
    import subprocess

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
    assert kt("doctor", "--sysroot", str(tmp_path / "nothing")).code == 4


def test_other_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from kt_core.machine import probe

    assert checks._cpu(replace(probe(), architecture="riscv64")).status == "error"


def test_quiet_names_the_faults(kt: Run, tmp_path: Path) -> None:
    more = shim(tmp_path / "shim", "torch", "raise OSError('x')")
    done = kt("doctor", "-q", more=more)
    assert "torch" in done.out.split() and done.err == "" and done.code == 6
