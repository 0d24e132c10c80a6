"""A hub's repository as a model of the store: what it would take, fetching it, and checking and mending what is there.

Beside the model's files lies MANIFEST, which says where they came from and what the hub says of their content. A file gets
its name only when its content was right, so a pull that was killed goes on with the first file that has none.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from kt_core.errors import BadData, DoesNotFit, EnvironmentProblem, KTError, NotFound
from kt_core.messages import t
from kt_core.models import catalogue, download, files, registry, remote, store
from kt_core.models.files import local_files
from kt_core.models.remote import File
from kt_core.types import ModelFiles, Progress

MANIFEST = ".kt.json"
INCOMING = ".incoming"  # folder of files that nobody has checked yet
ATTEMPTS = 4  # at a download, each of which goes on where the last one stopped; the last only looks
_BESIDE = (".json", ".jinja", ".txt", ".model", ".tiktoken")  # tokenizers, templates and settings beside the shards
_MOST_BESIDE = 1 << 26  # bytes of such a file
_CHUNK = 1 << 20
Fill = Callable[[Path], Sequence[File]]  # brings files into a folder, and says what they are
OK, MISSING, SIZE, CONTENT, UNKNOWN = "ok", "missing", "size", "content", "unknown"


@dataclass(frozen=True)
class Repository:
    """Files of one model at one commit. `folder` is the model's name in the store."""

    repo: str
    revision: str
    folder: str
    files: tuple[File, ...]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Checked:
    """`state`: OK, MISSING, SIZE or CONTENT where these differ, UNKNOWN where nobody says what they should be."""

    file: str
    bytes: int
    state: str


def of(name: str) -> str:
    """The repository that a model's name stands for; one of a repository is that itself. Raises NotFound."""
    if files.repository(name.partition(":")[0]):
        return name
    known = catalogue.find(name)
    if known is None or not known.repo:
        raise store.unknown(name)
    return known.repo


def find(name: str, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> Repository:
    """What "owner/model" or "owner/model:QUANT" holds: the model's files, or those that `include` names as fnmatch does,
    without those of `exclude`.

    Raises as remote.read_headers does, and NotFound when the patterns leave nothing.
    """
    repo, quant = remote.parts_of(name)
    with remote.connected(repo, store.models_dir()) as client:
        revision, listed = remote.listing(client, repo)
    if include:
        wanted = [file for file in listed if matches(file.name, include)]
    else:
        wanted = remote.chosen(repo, listed, quant)
        if not wanted[0].name.endswith(".gguf"):
            wanted += [
                file for file in listed if belongs(file.name) and file.size <= _MOST_BESIDE and file not in wanted
            ]
    wanted = sorted((file for file in wanted if not matches(file.name, exclude)), key=lambda file: file.name)
    if not wanted:
        raise NotFound("repository.nothing_left", name=name, patterns=" ".join([*include, *exclude]))
    model = repo.partition("/")[2]
    return Repository(repo, revision, f"{model}-{quant}" if quant else model, tuple(wanted))


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def belongs(name: str) -> bool:
    """Whether a file of that name goes along with weights."""
    return "/" not in name and name[:1] != "." and Path(name).suffix in _BESIDE


def pull(found: Repository, progress: Progress) -> ModelFiles:
    """Download what is not there yet. Raises KTError when another model has the name, DoesNotFit when the disk is too
    full, BadData for wrong content, EnvironmentProblem for a hub that does not give it."""

    def fill(partial: Path) -> Sequence[File]:
        _fetch(found.repo, found.revision, found.files, partial, progress)
        return found.files

    origin = {"repo": found.repo, "revision": found.revision}
    return take(found.folder, found.repo, origin, found.bytes, fill, progress)


def take(folder: str, name: str, origin: Mapping[str, str], size: int, fill: Fill, progress: Progress) -> ModelFiles:
    """A new model of the store, whose files `fill` puts into the folder that it is given, unless it is there; the first word of
    `origin` tells it from others of its name. Raises KTError when another model has the name, DoesNotFit."""
    target, first = store.models_dir() / folder, next(iter(origin))
    try:
        with store.lock(folder, progress):
            if not target.exists():
                if registry.find(folder):
                    raise KTError("repository.taken", name=name, folder=target)
                partial = store.models_dir() / ".partial" / folder
                check_disk(name, partial, size)
                files = fill(partial)
                _keep(partial, {Path(file.name).name for file in files})
                manifest = {**origin, "files": [asdict(file) for file in files]}
                (partial / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
                partial.replace(target)
            elif _manifest(target).get(first) != origin[first]:
                raise KTError("repository.taken", name=name, folder=target)
    except OSError as error:
        reason = error.strerror or error
        raise KTError("models.disk_failed", name=name, folder=store.models_dir(), reason=reason) from error
    return local_files(target, folder)


def _keep(partial: Path, names: Set[str]) -> None:
    """Leave out what an ended pull from somewhere else has left there."""
    for place in partial.iterdir():
        if place.name not in names:
            shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()


def check_disk(name: str, partial: Path, size: int) -> None:
    """Raises DoesNotFit where the disk has no room for so many bytes, of which some may be in `partial` already."""
    partial.mkdir(parents=True, exist_ok=True)
    there = sum(file.stat().st_size for file in partial.rglob("*") if file.is_file())
    free, needed = shutil.disk_usage(partial).free, size - there
    if free < needed:
        sizes = {"needed": f"{needed / 2**30:.2f} GiB", "free": f"{free / 2**30:.2f} GiB"}
        raise DoesNotFit("models.disk_full", name=name, folder=store.models_dir(), **sizes)


def _fetch(repo: str, revision: str, wanted: Sequence[File], folder: Path, progress: Progress) -> None:
    """The files in `folder`, each under its last name. What is there already, whole or in part, is not asked for again."""
    incoming = folder / INCOMING
    incoming.mkdir(parents=True, exist_ok=True)
    total = sum(file.size for file in wanted)
    for attempt in range(1, ATTEMPTS + 1):
        missing = [file.name for file in wanted if not _taken(repo, file, folder, progress)]
        if not missing:
            shutil.rmtree(incoming)
            return
        try:
            download.from_hub(repo, revision, missing, incoming, folder, total, progress)
        except download.SourceFailed as failure:
            if attempt == ATTEMPTS:
                raise EnvironmentProblem("models.hub_failed", name=repo, reason=failure) from None
    raise EnvironmentProblem("models.hub_failed", name=repo, reason=missing[0])


def _taken(repo: str, file: File, folder: Path, progress: Progress) -> bool:
    """Whether the file has its last name, which it gets here once it has come and is right. Raises BadData for wrong content."""
    name = Path(file.name).name
    path, got = folder / name, folder / INCOMING / name
    if state(path, file, content=False) == OK:
        return True
    if not got.is_file():
        return False
    progress(t("models.stage_check", file=name), 0, 0, "")
    if state(got, file) not in (OK, UNKNOWN):
        got.unlink()
        raise BadData("repository.wrong_content", name=repo, file=file.name)
    got.replace(path)
    return True


def state(path: Path, file: File, content: bool = True) -> str:
    """How the file at `path` compares with what is published; without `content` by its size alone."""
    if not path.is_file():
        return MISSING
    if file.size and path.stat().st_size != file.size:
        return SIZE
    if not content:
        return OK
    if file.sha256:
        return OK if download.sha256(path) == file.sha256 else CONTENT
    if file.blob:
        return OK if _blob(path) == file.blob else CONTENT
    return UNKNOWN


def _blob(path: Path) -> str:
    """The file's id in git."""
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as content:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def verify(name: str, progress: Progress) -> list[Checked]:
    """Every file of a pulled model against what was published. Raises NotFound for a model that is not pulled."""
    folder = _folder(name)
    found, published = [], _published(folder)
    total, done = sum(file.size for file in published), 0
    for file in published:
        path = folder / Path(file.name).name
        progress(file.name, done, total, "bytes")
        found.append(Checked(path.name, file.size, state(path, file)))
        done += file.size
    if not published:
        found = [Checked(Path(path).name, Path(path).stat().st_size, UNKNOWN) for path in local_files(folder).files]
    return found


def repair(name: str, broken: Sequence[str], progress: Progress) -> None:
    """Fetch these files of a pulled model again, and no others. Raises what pull raises."""
    folder = _folder(name)
    entry = registry.find(folder.name)
    if entry:
        (folder / entry.file).unlink(missing_ok=True)
        store.pull(entry.name, progress)
        return
    manifest = _manifest(folder)
    wanted = [file for file in _published(folder) if Path(file.name).name in broken]

    def fill(partial: Path) -> Sequence[File]:
        _fetch(str(manifest["repo"]), str(manifest["revision"]), wanted, partial, progress)
        return wanted

    mend(name, broken, fill, progress)


def mend(name: str, broken: Sequence[str], fill: Fill, progress: Progress) -> None:
    """Replace these files of a pulled model by what `fill` brings. Raises BadData where that is not what was taken at first."""
    folder = _folder(name)
    partial = store.models_dir() / ".partial" / folder.name
    with store.lock(folder.name, progress):
        partial.mkdir(parents=True, exist_ok=True)
        fill(partial)
        for file in _published(folder):
            last = Path(file.name).name
            if last not in broken:
                continue
            if state(partial / last, file) not in (OK, UNKNOWN):
                raise BadData("repository.wrong_content", name=name, file=last)
            (partial / last).replace(folder / last)
        shutil.rmtree(partial, ignore_errors=True)


def origin(name: str) -> Mapping[str, Any]:
    """Where a pulled model came from: `repo`, `package` or `path`; nothing for one that kt did not take."""
    return _manifest(_folder(name))


def _folder(name: str) -> Path:
    folder = store.path(name)
    if folder is None:
        raise store.not_pulled(name)
    return folder


def _published(folder: Path) -> list[File]:
    """What is known of a model's files; nothing for one that kt did not download."""
    entry = registry.find(folder.name)
    if entry:
        return [File(entry.file, entry.bytes, entry.sha256)]
    with suppress(KeyError, TypeError):
        return [File(**file) for file in _manifest(folder)["files"]]
    return []


def _manifest(folder: Path) -> dict[str, Any]:
    """What pull wrote down; empty where it did not, or where somebody changed it to something else."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
