"""The folder of pulled models: one folder per model, unfinished work in `.partial`, locks in `.locks`."""

import fcntl
import importlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kt_core import config, paths
from kt_core.errors import BadData, DoesNotFit, KTError, NotFound, UsageError
from kt_core.messages import t
from kt_core.models import catalogue, registry
from kt_core.models.download import fetch, sha256
from kt_core.models.files import called, holds_model, local_files, near, repository, snapshots
from kt_core.models.registry import Entry
from kt_core.types import ModelFiles, Progress

_LOCK_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Pulled:
    """A model in the store. `bytes` counts all its files."""

    name: str
    path: Path
    bytes: int


def models_dir() -> Path:
    """The folder that holds pulled models: the setting paths.models, else the user's data folder.

    Raises UsageError for the home of an unknown user (~name), EnvironmentProblem without a home folder.
    """
    named = config.get("paths.models")
    try:
        return Path(named).expanduser() if named else paths.default_models_dir()
    except RuntimeError as error:
        raise UsageError("models.no_user", folder=named, reason=error) from None


def searched() -> list[Path]:
    """Other folders in which models are looked for, as the setting paths.searched has them; some may not be there now."""
    return [paths.expanded(word.strip()) for word in config.get("paths.searched").split(",") if word.strip()]


def list_models() -> tuple[Pulled, ...]:
    """Every model in the store, by name, then those of the other folders that are searched; the first of a name counts.
    Folders without a model are left out. Raises KTError for an unreadable folder."""
    found: dict[str, Path] = {}
    for root in (models_dir(), *searched()):
        try:
            below = _folders(root)
            deeper = [folder for parent in below for folder in _folders(parent)] if root != models_dir() else []
            cached = [folder for parent in below for folder in snapshots(parent)]
            for folder in filter(holds_model, (*below, *deeper, *cached)):
                found.setdefault(called(folder), folder)
        except OSError as error:
            raise KTError("models.unreadable", folder=root, reason=error.strerror or error) from error
    return tuple(Pulled(name, folder, _bytes(folder)) for name, folder in found.items())


def _folders(root: Path) -> list[Path]:
    return sorted(p for p in root.iterdir() if p.is_dir() and p.name[0] != ".") if root.is_dir() else []


def unfinished() -> dict[str, int]:
    """Downloads that were ended and that a pull goes on with: name -> bytes that are there."""
    folder = models_dir() / ".partial"
    names = _folders(folder) if folder.is_dir() else []
    return {place.name: size for place in names if (size := _bytes(place))}


def path(name: str) -> Path | None:
    """The folder of a pulled model, by name, alias or repository in any case; None when it is not pulled."""
    entry = registry.find(name)
    here = {model.name.casefold(): model.path for model in list_models()}
    found = here.get((entry.name if entry else name).casefold())
    if found or entry or not here:
        return found
    known = catalogue.find(name)
    words = (known.name, *(repo.rpartition("/")[2] for repo in known.repos.values())) if known else (repository(name),)
    return next((here[word.casefold()] for word in words if word.casefold() in here), None)


def pull(name: str, progress: Progress) -> ModelFiles:
    """Download or make a registered model, unless it is there already.

    Goes on where a killed pull stopped; a second pull of the same model waits for the first. Raises
    NotFound for an unknown name, DoesNotFit when the disk is too full, and what download.fetch raises.
    """
    entry = registry.find(name)
    if entry is None:
        known = catalogue.find(name)
        if known and known.repo and not repository(name):
            raise catalogue.not_here(known)
        raise unknown(name)
    target = models_dir() / entry.name / entry.file
    try:
        with lock(entry.name, progress):
            if not target.is_file():
                _check_disk(entry)
                _make(entry, target, progress)
    except OSError as error:
        raise KTError(
            "models.disk_failed", name=entry.name, folder=models_dir(), reason=error.strerror or error
        ) from error
    return local_files(target, entry.name)


def adopt(name: str, folder: Path) -> bool:
    """List a folder that was made here under `name`, by a link where it lies elsewhere. False when the name is taken."""
    place = models_dir() / name
    if place.resolve() == folder.resolve():
        return True
    if registry.find(name) or path(name) or place.exists() or place.is_symlink():
        return False
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(folder)
    return True


def remove(name: str) -> Path:
    """Delete a pulled model; returns the folder that was deleted: of one that lies elsewhere, the link to it.

    Raises NotFound when it is not pulled, KTError when the file system refuses.
    """
    folder = path(name)
    if folder is None:
        raise not_pulled(name)
    if folder.parent != models_dir():
        raise KTError("models.only_searched", folder=folder)
    doomed = folder.with_name(f".removed-{folder.name}-{os.getpid()}")
    try:
        if folder.is_symlink():
            folder.unlink()
            return folder
        folder.replace(doomed)  # a kill from here on leaves no half model under its name
        shutil.rmtree(doomed)
    except OSError as error:
        raise KTError("models.remove_failed", folder=folder, reason=error.strerror or error) from error
    return folder


def not_pulled(name: str) -> NotFound:
    """The error for a model that is not in the store."""
    pulled = t("output.comma").join(m.name for m in list_models())
    return NotFound("models.not_pulled", name=name, pulled=pulled or t("models.none"))


def unknown(name: str) -> NotFound:
    """The error for a name that nothing here goes by, with the nearest ones."""
    if repository(name):
        return NotFound("models.repository", name=name)
    close = near(name, known_names())
    return NotFound("models.unknown_near", name=name, near=close) if close else NotFound("models.unknown", name=name)


def known_names() -> list[str]:
    """Names of the registry, of pulled models, of models whose shapes are known and of the user's own."""
    names = [name for entry in registry.ENTRIES for name in (entry.name, *entry.aliases)]
    return list(dict.fromkeys((*names, *(model.name for model in list_models()), *catalogue.names())))


def _make(entry: Entry, target: Path, progress: Progress) -> None:
    partial = _partial(entry)
    made = _build(entry, partial, progress) if entry.recipe else fetch(entry, partial, progress)
    target.parent.mkdir(parents=True, exist_ok=True)
    made.replace(target)
    shutil.rmtree(partial, ignore_errors=True)


def _build(entry: Entry, partial: Path, progress: Progress) -> Path:
    """The entry's file, made by its recipe from its base model, which is downloaded unless it is pulled."""
    base = registry.find(entry.base)
    assert base is not None
    made = partial / entry.file
    with lock(base.name, progress):
        pulled = models_dir() / base.name / base.file
        source = pulled if pulled.is_file() else fetch(base, _partial(base), progress, entry.name)
        importlib.import_module(f"kt_core.models.{entry.recipe}").build(source, made, progress)
        found = sha256(made)
        if found != entry.sha256:
            made.unlink()
            raise BadData("models.build_differs", name=entry.name, expected=entry.sha256, found=found)
        if source != pulled:
            shutil.rmtree(_partial(base), ignore_errors=True)
    return made


def _partial(entry: Entry) -> Path:
    folder = models_dir() / ".partial" / entry.name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _check_disk(entry: Entry) -> None:
    """The file itself, and while it is made: the download, and the base model with its own download."""
    base = registry.find(entry.base) if entry.base else None
    needed = sum(_peak_bytes(e) for e in (entry, base) if e) - _bytes(models_dir() / ".partial" / entry.name)
    free = shutil.disk_usage(models_dir()).free
    if free < needed:
        raise DoesNotFit("models.disk_full", name=entry.name, folder=models_dir(), needed=_gib(needed), free=_gib(free))


def _peak_bytes(entry: Entry) -> int:
    return entry.bytes + max((source.bytes for source in entry.sources), default=0)


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"


def _bytes(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) if folder.is_dir() else 0


@contextmanager
def lock(name: str, progress: Progress) -> Iterator[None]:
    """Hold the model's lock; the kernel gives it up when the process dies."""
    folder = models_dir() / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress(t("models.stage_wait", name=name), 0, 0, "")
                time.sleep(_LOCK_POLL_SECONDS)
        yield
