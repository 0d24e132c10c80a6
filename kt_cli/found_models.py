"""Models on this disk: what a folder tree holds, and what `kt model list` shows of each."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kt_core import paths
from kt_core.errors import KTError, UsageError
from kt_core.messages import t
from kt_core.models import catalogue, registry, store
from kt_core.models.files import CONFIG, called, local_files, stem
from kt_core.types import ModelFiles

DEEPEST = 6  # folders below the one that is scanned
SKIPPED = ("node_modules", "__pycache__", "site-packages")


@dataclass(frozen=True)
class Found:
    """A model in a folder tree; `problem` says in words what is wrong with it, "" where nothing is."""

    name: str
    path: str
    format: str
    bytes: int
    problem: str = ""


def scan(folder: Path) -> list[Found]:
    """Every model below `folder`, whatever the size of its files: folders with a configuration and weights, GGUF files."""
    return [found for place in _places(folder) for found in _models(place)]


def _places(folder: Path) -> Iterator[Path]:
    """Folders to look into; links are not followed, so none is seen twice."""
    base = len(folder.parts)
    for place, below, _ in os.walk(folder):
        here = Path(place)
        deep = len(here.parts) - base >= DEEPEST
        below[:] = [] if deep else sorted(name for name in below if name[0] != "." and name not in SKIPPED)
        yield here


def _models(folder: Path) -> Iterator[Found]:
    """The models that lie in `folder` itself."""
    shards = any(folder.glob("*.safetensors"))
    if shards and (folder / CONFIG).is_file():
        yield _read(folder, called(folder))
        return
    seen: set[str] = set()
    for file in sorted(folder.glob("*.gguf")):
        if "mmproj" in file.name:  # a part of a model, which reads pictures
            continue
        found = _read(file, stem(file.name).removesuffix(".gguf"))
        if found.path not in seen:  # the parts of a split one are one model
            seen.add(found.path)
            yield found


def _read(path: Path, name: str) -> Found:
    try:
        files = local_files(path, name)
    except KTError as failure:
        return Found(name, str(path), "", 0, " ".join(filter(None, failure.lines()[:2])))
    return Found(name, files.path, files.format, size(files))


def size(files: ModelFiles) -> int:
    return sum(Path(file).stat().st_size for file in files.files)


def entries() -> list[dict[str, Any]]:
    """Models in the store, those that the user added, then the registered ones that are not pulled."""
    found = [_pulled(model) for model in store.list_models()]
    found += [_own(known) for known in catalogue.own().values() if known.path]
    names = {entry["name"].casefold() for entry in found}
    return found + [_registered(entry) for entry in registry.ENTRIES if entry.name.casefold() not in names]


def _pulled(model: store.Pulled) -> dict[str, Any]:
    known = registry.find(model.name)
    about = t(known.description) if known else _made_of(model.path)
    return _entry(model.name, bytes=model.bytes, format=_format(model.path), about=about, path=model.path)


def _made_of(folder: Path) -> str:
    """What `kt quant` made the folder of; empty for others, damaged labels included."""
    try:
        label = json.loads((folder / "kt.json").read_text(encoding="utf-8"))
        source = label["source"]
        return t("model.made_of", method=label["method"], source=source["name"] or source["path"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _own(known: catalogue.Known) -> dict[str, Any]:
    """A path that is not there, as of a disk that is not mounted, is shown and not dropped."""
    path = paths.expanded(known.path)
    if not paths.exists(path):
        return _entry(known.name, missing=True, about=t("model.missing", path=path), path=path)
    found = _read(path, known.name)
    about = found.problem or t("model.added", path=path)
    return _entry(known.name, bytes=found.bytes, format=found.format, about=about, path=path)


def _registered(entry: registry.Entry) -> dict[str, Any]:
    form, about = entry.file.rpartition(".")[2], t(entry.description)
    sizes = {"bytes": entry.bytes, "download_bytes": entry.download}
    return _entry(entry.name, pulled=False, format=form, about=about, **sizes)


def _entry(name: str, **known: Any) -> dict[str, Any]:
    usual = {"pulled": True, "missing": False, "bytes": 0, "download_bytes": 0, "format": "", "about": "", "path": None}
    return {"name": name, **usual, **known}


def _format(folder: Path) -> str:
    """The stored format of a pulled model; empty for one that is damaged, which `list` must survive."""
    try:
        return local_files(folder).format
    except KTError:
        return ""


def new_name(name: str) -> str:
    """A name that the user may give a model. Raises UsageError."""
    if not name or os.sep in name or name[0] in "-@." or registry.find(name) or not name.isprintable():
        raise UsageError("model.bad_name", name=name)
    return name
