"""Which files make up a model that lies on this disk."""

import difflib
import json
import re
from collections.abc import Iterable
from pathlib import Path

from kt_core.errors import BadData, NotFound, Unsupported, UsageError
from kt_core.formats.problems import shown
from kt_core.messages import t
from kt_core.paths import is_file
from kt_core.types import ModelFiles

_PART = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf$")

CONFIG = "config.json"  # of a Hugging Face folder
_CACHED, _SNAPSHOTS = "models--", "snapshots"
_REPOSITORY = re.compile(r"(?P<owner>\w[\w.-]*)/(?P<model>\w[\w.-]*)(?<!\.gguf)")


def local_files(path: Path, name: str = "") -> ModelFiles:
    """The files of the model at `path`: a GGUF file (any part), a folder of GGUF parts, or a Hugging Face folder.

    Raises NotFound, BadData (a part or shard is missing, no model there), Unsupported (weights in a
    format other than GGUF and safetensors), UsageError (a folder with several GGUF models).
    """
    path = path.absolute()
    if not path.exists():
        raise NotFound("models.no_path", path=path)
    name = name or (path.stem if path.is_file() else path.name)
    if path.is_file():
        return _from_file(path, name)
    if (path / CONFIG).is_file():
        return ModelFiles(name, str(path), "safetensors", tuple(map(str, _shards(path))))
    first = _only_gguf(path)
    return _from_file(first, name)


def holds_model(folder: Path) -> bool:
    """Whether the folder looks like a model: GGUF files, or a Hugging Face config."""
    return any(folder.glob("*.gguf")) or (folder / CONFIG).is_file()


def called(folder: Path) -> str:
    """A model folder's name; in the cache of Hugging Face's programs (models--OWNER--NAME/snapshots/COMMIT) the repository's."""
    place = folder.parent.parent.name
    if folder.parent.name == _SNAPSHOTS and place.startswith(_CACHED):
        return place.rpartition("--")[2]
    return folder.name


def snapshots(folder: Path) -> list[Path]:
    """What a folder of that cache holds, the newest first; nothing for another folder."""
    below = folder / _SNAPSHOTS
    if not folder.name.startswith(_CACHED) or not below.is_dir():
        return []
    return sorted(below.iterdir(), key=lambda place: place.stat().st_mtime, reverse=True)


def repository(name: str) -> str:
    """The last word of a name that has the form of a hub's repository, as in owner/model; empty for others."""
    match = _REPOSITORY.fullmatch(name)
    return match["model"] if match and not Path(match["owner"]).exists() else ""


def near(name: str, known: Iterable[str]) -> str:
    """The known names most like `name`; empty when there are none like it."""
    folded = {k.casefold(): k for k in known}
    close = difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.5)
    return t("output.comma").join(folded[c] for c in close)


def stem(name: str) -> str:
    """What the parts of a split GGUF model are called in common; another name as it is."""
    match = _PART.match(name)
    return match["stem"] if match else name


def _from_file(path: Path, name: str) -> ModelFiles:
    if path.suffix.lower() != ".gguf":
        raise Unsupported("models.not_a_model", path=path)
    parts = _parts(path)
    return ModelFiles(name, str(parts[0]), "gguf", tuple(map(str, parts)))


def _parts(path: Path) -> list[Path]:
    """All parts of a split GGUF model, in order; the file alone when it is not split."""
    match = _PART.match(path.name)
    if not match:
        return [path]
    count = int(match["count"])
    parts = [path.with_name(f"{match['stem']}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
    missing = [p.name for p in parts if not is_file(p)]
    if missing or not parts:
        raise BadData("models.missing_files", path=path.parent, missing=", ".join(missing[:5]), count=len(missing))
    return parts


def _only_gguf(folder: Path) -> Path:
    files = sorted(folder.glob("*.gguf"))
    models = {stem(f.name): f for f in reversed(files)}
    if not models:
        raise BadData("models.empty_folder", path=folder)
    if len(models) > 1:
        raise UsageError("models.several", path=folder, files=", ".join(sorted(f.name for f in models.values())))
    return next(iter(models.values()))


def _shards(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = sorted(_indexed(index))
        missing = [shown(s) for s in shards if not is_file(folder / s)]
        if missing:
            raise BadData("models.missing_files", path=folder, missing=", ".join(missing[:5]), count=len(missing))
        return [folder / s for s in shards]
    files = sorted(folder.glob("*.safetensors"))
    if none := [
        shown(file.name) for file in files if not is_file(file)
    ]:  # links to nowhere; and pipes, which never end
        raise BadData("models.missing_files", path=folder, missing=", ".join(none[:5]), count=len(none))
    if not files and (any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth"))):
        raise Unsupported("models.pickle", path=folder)
    if not files:
        raise BadData("models.empty_folder", path=folder)
    return files


def _indexed(index: Path) -> set[str]:
    """File names in a shard index. Raises BadData for anything else, names outside the folder included."""
    try:
        found = json.loads(index.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BadData("models.bad_index", path=index, reason=error.strerror or error) from None
    except (ValueError, RecursionError) as error:
        raise BadData("models.bad_index", path=index, reason=t("models.config_not_json", reason=error)) from None
    shards = found.get("weight_map") if isinstance(found, dict) else None
    names = list(shards.values()) if isinstance(shards, dict) else []
    if not names or not all(isinstance(n, str) and Path(n).name == n for n in names):
        raise BadData("models.bad_index", path=index, reason=t("models.index_names"))
    return set(names)
