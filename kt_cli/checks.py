"""The checks of `kt doctor`. Each works when what it looks at is absent or broken.

Packages are imported in a process of their own, so that one that crashes is a finding and not the end
of the report, and told apart as absent, out of range, or present but failing to import.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from kt_cli import output, servers
from kt_core import config, paths
from kt_core.errors import BadData, EnvironmentProblem, KTError, UsageError
from kt_core.messages import t
from kt_core.types import Machine

OK, WARN, ERROR = "ok", "warn", "error"
IMPORT_SECONDS = 120  # torch from a cold disk takes most of a minute on small machines
DISTRIBUTION = "kt-cli"
IMPORTED = ("torch", "transformers")  # the large ones, which break in ways that only an import shows
LOW_DISK = 5 * 2**30
LOW_MEMORY = 2 * 2**30


@dataclass(frozen=True)
class Check:
    """One finding: status is "ok", "warn" or "error"; suggestion is empty when there is nothing to do."""

    name: str
    status: str
    value: str
    suggestion: str = ""


def run_all(sysroot: Path) -> list[Check]:
    """Every check, in the order of the report. The slow ones, which import packages, run side by side."""
    parts: list[Callable[[], list[Check]]] = [
        python_version,
        lambda: machine(sysroot),
        required_packages,
        *(lambda name=name: [import_check(name)] for name in IMPORTED),  # type: ignore[misc]
        extension,
        settings,
        folders,
        running_servers,
    ]
    with ThreadPoolExecutor(len(parts)) as pool:
        return [check for found in pool.map(lambda part: part(), parts) for check in found]


def python_version() -> list[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    wanted = _metadata_field("Requires-Python")
    if wanted and not in_range(version, wanted):
        return [Check("python", ERROR, version, t("doctor.python_range", wanted=wanted))]
    return [Check("python", OK, f"{version} ({sys.executable})")]


# ---- the machine


def machine(sysroot: Path) -> list[Check]:
    try:
        from kt_core.machine import probe

        found = probe(sysroot)
    except Exception as error:  # the report goes on without the machine
        return [Check("machine", ERROR, f"{type(error).__name__}: {error}", t("doctor.report_it"))]
    checks = [_cpu(found), _memory(found), _gpus(found)]
    checks += [Check("probe", WARN, note) for note in found.notes]
    return [*checks, _profile(found)]


def _cpu(found: Machine) -> Check:
    if found.architecture not in ("x86_64", "aarch64"):
        return Check("cpu", ERROR, found.architecture, t("doctor.architecture"))
    value = t(
        "doctor.cpu",
        model=found.cpu_model,
        cores=found.physical_cores,
        threads=found.logical_cpus,
        allowed=len(found.allowed_cpus),
        nodes=len(found.numa_nodes),
    )
    return Check("cpu", OK, value)


def _memory(found: Machine) -> Check:
    value = t("doctor.memory", available=output.size(found.memory_available), total=output.size(found.memory_total))
    if found.memory_available < LOW_MEMORY:
        return Check("memory", WARN, value, t("doctor.low_memory"))
    return Check("memory", OK, value)


def _gpus(found: Machine) -> Check:
    if not found.gpus:
        return Check("gpu", OK, t("doctor.no_gpu"))
    return Check("gpu", OK, output.listed(f"{gpu.name} ({output.size(gpu.memory)})" for gpu in found.gpus))


def _profile(found: Machine) -> Check:
    """Whether the machine's ceilings were measured, when, and on hardware like this."""
    from kt_core.machine import profile

    name, file = "profile", profile.path()
    if not file.exists():
        return Check(name, OK, t("doctor.no_profile"))
    stored = profile.load()
    if stored is None:
        return Check(name, WARN, t("doctor.bad_profile", file=file), t("doctor.measure"))
    days = max(0, int((time.time() - stored.measured) / 86400))
    when = t("doctor.days_ago", days=days) if days else t("doctor.today")
    if profile.of(found) is None:
        return Check(name, WARN, t("doctor.other_profile", when=when), t("doctor.measure"))
    threads, rate = max(stored.read_rates.items(), key=lambda item: item[1])
    return Check(name, OK, t("doctor.profile", when=when, rate=f"{rate / 1e9:.1f}", threads=threads))


# ---- packages


def required_packages() -> list[Check]:
    """Installed versions against the ranges that kt was released with; one row, or one for each fault."""
    needed = _requirements()
    if not needed:
        return [Check("packages", WARN, t("doctor.not_a_package"), t("doctor.install_kt"))]
    faults = []
    for name, wanted in needed.items():
        version = _version(name)
        if version is None and name not in IMPORTED:  # those have a row of their own
            faults.append(Check(name, ERROR, t("doctor.absent"), _install(name)))
        elif version is not None and not in_range(version, wanted):
            value = t("doctor.out_of_range", version=version, wanted=wanted)
            faults.append(Check(name, ERROR, value, _install(name)))
    return faults or [Check("packages", OK, t("doctor.packages_ok", count=len(needed)))]


def in_range(version: str, wanted: str) -> bool:
    """Whether `version` satisfies the specifiers `wanted`; a build from source counts by its numbers."""
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(wanted).contains(version, prereleases=True)


def import_check(name: str) -> Check:
    """Absent, failing to import (with the real last line of the trace), or its version."""
    done = _python(f"import {name}; print({name}.__version__)")
    if done.returncode == 0:
        return Check(name, OK, done.stdout.strip().splitlines()[-1])
    if _version(name) is None and f"No module named '{name}'" in done.stderr:
        return Check(name, ERROR, t("doctor.absent"), _install(name))
    value = t("doctor.import_fails", version=_version(name) or "?", reason=last_error(done))
    return Check(name, ERROR, value, t("doctor.reinstall", requirement=name + _requirements().get(name, "")))


def extension() -> list[Check]:
    """The native kernels: absent, failing to import, or what they can do here."""
    name = "kernels"
    if not _extension_exists():
        return [Check(name, ERROR, t("doctor.extension_absent"), t("doctor.build_kt"))]
    done = _python("import json; from kt_core import kernels; print(json.dumps(kernels.info(), default=list))")
    try:
        info = json.loads(done.stdout.strip().splitlines()[-1]) if done.returncode == 0 else None
    except (ValueError, IndexError):
        info = None
    if not isinstance(info, dict):
        value = t("doctor.extension_fails", reason=last_error(done))
        lacking = re.search(r"No module named '(\w+)", value)
        return [
            Check(
                name,
                ERROR,
                value,
                _install(lacking[1]) if lacking and lacking[1] != "kt_core" else t("doctor.build_kt"),
            )
        ]
    tiers = info.get("tiers") or []
    absent = [f"{tier['name']} ({', '.join(tier['missing'])})" for tier in tiers if not tier["runnable"]]
    value = t(
        "doctor.kernels",
        chosen=info.get("chosen"),
        runnable=output.listed(tier["name"] for tier in tiers if tier["runnable"]),
        absent=output.listed(absent) or "-",
    )
    if info.get("chosen") == "scalar":
        return [Check(name, WARN, value, t("doctor.scalar_only"))]
    return [Check(name, OK, value)]


def _extension_exists() -> bool:
    try:
        return find_spec("kt_core._native") is not None
    except (ImportError, ValueError):
        return False


def _python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter like this one; a time-out reads as a failure."""
    try:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=IMPORT_SECONDS)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess([], 1, "", t("doctor.timed_out", seconds=IMPORT_SECONDS))


def last_error(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of a trace, or the signal that ended the process."""
    if done.returncode < 0:
        return t("doctor.killed", signal=-done.returncode)
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt|Exit)\b", line)]
    return (errors or lines or ["?"])[-1]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name) or None
    except metadata.PackageNotFoundError:
        return None


def _metadata_field(field: str) -> str:
    try:
        return str(metadata.metadata(DISTRIBUTION)[field] or "")
    except (metadata.PackageNotFoundError, KeyError):
        return ""


def _requirements() -> dict[str, str]:
    """name -> version specifiers that kt was released with, without those of extras; empty when kt is no package."""
    from packaging.requirements import Requirement

    try:
        found = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or []]
    except metadata.PackageNotFoundError:
        return {}
    return {r.name: str(r.specifier) for r in found if not r.marker or r.marker.evaluate({"extra": ""})}


def _install(name: str) -> str:
    return t("doctor.install", requirement=name + _requirements().get(name, ""))


# ---- settings, folders, servers


def settings() -> list[Check]:
    try:
        config.load()
        file = paths.config_file()
    except KTError as error:
        what, why, next_step = error.lines()
        # WARN for the shell's environment, which is easily mended, and not for the file
        status = WARN if isinstance(error, UsageError | EnvironmentProblem) else ERROR
        return [Check("settings", status, f"{what} {why}", next_step)]
    return [Check("settings", OK, str(file) if file.exists() else t("doctor.no_settings"))]


def folders() -> list[Check]:
    return [_folder("models", _models_dir), _folder("state", paths.state_dir)]


def _models_dir() -> Path:
    from kt_core.models import store

    try:
        return store.models_dir()
    except (BadData, UsageError):  # a broken settings file, reported above
        return paths.default_models_dir()


def _folder(name: str, where: Callable[[], Path]) -> Check:
    """Whether kt can keep things in the folder, which need not be there yet."""
    try:
        folder = where()
        existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free = shutil.disk_usage(existing).free
    except KTError as error:
        what, why, next_step = error.lines()
        return Check(name, ERROR, f"{what} {why}", next_step)
    except OSError as error:
        return Check(name, ERROR, str(error), t("doctor.not_writable", folder=folder))
    value = t("doctor.folder", folder=folder, free=output.size(free))
    if not existing.is_dir():
        return Check(name, ERROR, value, t("doctor.not_a_folder", file=existing))
    if not os.access(existing, os.W_OK):
        return Check(name, ERROR, value, t("doctor.not_writable", folder=existing))
    if name == "models" and free < LOW_DISK:
        return Check(name, WARN, value, t("doctor.low_disk"))
    return Check(name, OK, value)


def running_servers() -> list[Check]:
    found = servers.running()
    shown = output.listed(t("doctor.server", model=server.model, url=server.url, pid=server.pid) for server in found)
    return [Check("servers", OK, shown or t("doctor.no_servers"))]
