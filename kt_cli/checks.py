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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from kt_cli import launch, machine_checks, output, servers
from kt_cli.check import ERROR, OK, WARN, Check
from kt_core import config, paths
from kt_core.errors import BadData, EnvironmentProblem, KTError, UsageError
from kt_core.messages import t
from kt_core.types import Gpu, Machine

IMPORT_SECONDS = 120  # torch from a cold disk takes most of a minute on small machines
DISTRIBUTION = "kt-cli"
IMPORTED = ("torch", "transformers")  # the large ones, which break in ways that only an import shows
# Oldest driver that runs programs of a major version of CUDA, by NVIDIA's table of minor-version compatibility
_DRIVERS = {11: "450.80", 12: "525.60", 13: "580.65"}
# The names of torch's backends as Gpu.kind has them; Ascend's comes with a package of its own
_BACKENDS = (
    "'cpu', *(n for n, a in (('cuda', 'cuda'), ('rocm', 'hip'), ('xpu', 'xpu')) if getattr(torch.version, a, None)),"
    " *['npu' for s in [__import__('importlib.util').util.find_spec('torch_npu')] if s],"
    " f'cuda={torch.version.cuda or str()}', f'for={getattr(torch._C, \"_cuda_getArchFlags\", str)() or str()}'"
)
_KERNELS = "import json; from kt_core import kernels; print(json.dumps(kernels.info(), default=list))"
_BETWEEN = "-- torch and kernels --"  # tells what the two printed apart
LOW_DISK = 5 * 2**30
LOW_STATE = 64 * 2**20  # for logs, plans and conversations
Done = subprocess.CompletedProcess[str]


def run_all(machine: Machine) -> list[Check]:
    """Every check, in the order of the report. The slow ones, which import packages, run side by side."""
    parts: list[Callable[[], list[Check]]] = [
        python_version,
        lambda: machine_checks.check(machine),
        required_packages,
        lambda: torch_and_kernels(machine),
        lambda: [import_check("transformers")],
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


def torch_and_kernels(machine: Machine) -> list[Check]:
    """Both in one process: the kernels' wrappers import torch, which is the slowest part of the report."""
    if not _extension_exists():
        return [torch_check(machine), *extension()]
    done = _python(f"{_importing('torch', _BACKENDS)}; print({_BETWEEN!r}, flush=True); {_KERNELS}")
    version, between, info = done.stdout.partition(f"{_BETWEEN}\n")
    imported = subprocess.CompletedProcess(done.args, 0, version, "") if between else done
    told = subprocess.CompletedProcess(done.args, done.returncode, info, done.stderr)
    return [torch_check(machine, imported), *extension(told)]


def torch_check(machine: Machine, done: Done | None = None) -> Check:
    """As import_check; and whether this torch was built for the GPUs that are here."""
    check = import_check("torch", _BACKENDS, done)
    version, *words = check.value.split()
    backends = [word for word in words if "=" not in word and not word.startswith(("sm_", "compute_"))]
    if check.status != OK or not backends:
        return check
    unused = [gpu for gpu in machine.gpus if gpu.kind not in backends]
    names = {"version": version, "backends": output.listed(["cpu", *filter("cpu".__ne__, backends)])}
    if not unused:
        value = t("doctor.torch", **names)
        problem = _cuda_problem([gpu for gpu in machine.gpus if gpu.kind == "cuda"], check.value)
        return Check("torch", WARN, f"{value}: {problem[0]}", problem[1]) if problem else Check("torch", OK, value)
    value = t("doctor.torch_without", **names, gpus=output.listed(sorted({gpu.name for gpu in unused})))
    return Check("torch", WARN, value, t("doctor.torch_for", kinds=output.listed(sorted({gpu.kind for gpu in unused}))))


def _cuda_problem(gpus: list[Gpu], told: str) -> tuple[str, str] | None:
    """Why this torch cannot use these GPUs, and what to do: the driver is too old for its CUDA, or a card has no code in it."""
    found = re.search(r"cuda=(\d+)(\S*)", told)
    wanted = _DRIVERS.get(int(found[1])) if found else None
    for gpu in gpus:
        if wanted and gpu.driver and _numbers(gpu.driver) < _numbers(wanted):
            what = t("doctor.driver_old", cuda=found[1] + found[2], wanted=wanted, driver=gpu.driver) if found else ""
            return what, t("doctor.driver_update", wanted=wanted)
        major, _, minor = gpu.capability.partition(".")
        own = [(int(sm[:-1]), int(sm[-1])) for sm in re.findall(r"sm_(\d+)", told)]
        later = [
            (int(sm[:-1]), int(sm[-1])) for sm in re.findall(r"compute_(\d+)", told)
        ]  # compiled for the card when loaded
        if not own or not (major.isdecimal() and minor.isdecimal()):
            continue
        card = (int(major), int(minor))
        if not any(a == card[0] and b <= card[1] for a, b in own) and not any(code <= card for code in later):
            named = t("doctor.no_code", gpu=gpu.name, capability=f"sm_{major}{minor}")
            return named, t("doctor.torch_for", kinds=gpu.kind)
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"\d+", version)[:2])


def import_check(name: str, more: str = '""', done: Done | None = None) -> Check:
    """Absent, failing to import (with the real last line of the trace), or its version and what `more`, an expression, gives;
    `done` is the process that tried, if one has."""
    done = done or _python(_importing(name, more))
    if done.returncode == 0:
        return Check(name, OK, done.stdout.strip().splitlines()[-1].strip())
    if _version(name) is None and f"No module named '{name}'" in done.stderr:
        return Check(name, ERROR, t("doctor.absent"), _install(name))
    value = t("doctor.import_fails", version=_version(name) or "?", reason=last_error(done))
    return Check(name, ERROR, value, t("doctor.reinstall", requirement=name + _requirements().get(name, "")))


def _importing(name: str, more: str) -> str:
    return f"import {name}; print({name}.__version__, {more})"


def extension(done: Done | None = None) -> list[Check]:
    """The native kernels: absent, failing to import, or what they can do here."""
    name = "kernels"
    if not _extension_exists():
        return [Check(name, ERROR, t("doctor.extension_absent"), t("doctor.build_kt"))]
    done = done or _python(_KERNELS)
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
    runnable = output.listed(tier["name"] for tier in tiers if tier["runnable"])
    value = t("doctor.kernels", chosen=info.get("chosen"), runnable=runnable)
    if absent:
        value = t("doctor.kernels_absent", found=value, absent=output.listed(absent))
    if info.get("chosen") == "scalar":
        return [Check(name, WARN, value, t("doctor.scalar_only"))]
    return [Check(name, OK, value)]


def _extension_exists() -> bool:
    try:
        return find_spec("kt_core._native") is not None
    except (ImportError, ValueError):
        return False


def _python(code: str) -> Done:
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
    models = _folder("models", _models_dir)
    return [_store(models) if models.status != ERROR else models, _folder("state", paths.state_dir)]


def _store(folder: Check) -> Check:
    """What lies in the models folder: how many models, which of them lack files, and downloads that were not finished."""
    from kt_core.models import store
    from kt_core.models.files import local_files

    try:
        found, unfinished = store.list_models(), store.unfinished()
    except (BadData, UsageError):  # a broken settings file, reported above
        return folder
    except (KTError, OSError) as error:
        reason = " ".join(error.lines()[:2]) if isinstance(error, KTError) else str(error)
        return Check("models", WARN, f"{folder.value}; {reason}", folder.suggestion)
    value = t("doctor.store", folder=folder.value, count=len(found))
    if unfinished:
        words = [f"{name} ({output.size(size)})" for name, size in unfinished.items()]
        value = t("doctor.unfinished", found=value, names=output.listed(words))
    faulty = {}
    for model in found:
        try:
            local_files(model.path)
        except UsageError:  # several GGUF models in one folder, each of which runs by its path
            continue
        except KTError as error:
            faulty[model.name] = " ".join(error.lines()[:2])
    if not faulty:
        return Check("models", folder.status, value, folder.suggestion)
    first, reason = next(iter(faulty.items()))
    return Check("models", WARN, f"{value}; {output.listed(faulty)}: {reason}", t("doctor.mend_model", name=first))


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
        return Check(name, ERROR, error.strerror or str(error), t("doctor.not_writable", folder=folder))
    value = t("doctor.folder", folder=folder, free=output.size(free))
    if not existing.is_dir():
        return Check(name, ERROR, value, t("doctor.not_a_folder", file=existing))
    if not os.access(existing, os.W_OK):
        return Check(name, ERROR, value, t("doctor.not_writable", folder=existing))
    if name == "models" and free < LOW_DISK:
        return Check(name, WARN, value, t("doctor.low_disk"))
    if name == "state" and free < LOW_STATE:
        return Check(name, WARN, value, t("doctor.low_state"))
    return Check(name, OK, value)


def running_servers() -> list[Check]:
    found = servers.running()
    shown = output.listed(t("doctor.server", model=server.model, url=server.url, pid=server.pid) for server in found)
    return [Check("servers", OK, shown or t("doctor.no_servers")), _port(found)]


def _port(running: Sequence[servers.Server]) -> Check:
    """Whether the port that kt run begins with is free; it takes the next one where it is not."""
    try:
        host, port = config.get("server.host"), config.get("server.port")
    except KTError:  # reported above
        host, port = config.setting("server.host").default, config.setting("server.port").default
    if any(server.url.endswith(f":{port}") for server in running):
        return Check("port", OK, t("doctor.port_own", port=port))
    try:
        free = launch.is_free(host, port)
    except KTError as error:
        what, why, next_step = error.lines()
        return Check("port", WARN, f"{what} {why}", next_step)
    if free:
        return Check("port", OK, t("doctor.port_free", host=host, port=port))
    return Check("port", WARN, t("doctor.port_taken", host=host, port=port), t("doctor.port_next"))
