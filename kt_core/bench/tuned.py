"""What `kt tune` found for a model on this machine; `kt run` plans with it. One file in the cache folder."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kt_core import paths
from kt_core.machine import profile
from kt_core.types import Machine, ModelFiles

VERSION = 1


@dataclass(frozen=True)
class Tuned:
    """`settings`: the plan's overrides, none where the plan's own choice was the fastest. `gain`: speed over the plan's own,
    1.0 for the same. `trials` are the search's, `repeats` what decided: see serving.search."""

    settings: dict[str, Any]
    gain: float
    measured: float  # seconds since the epoch
    trials: list[dict[str, Any]] = field(default_factory=list)
    repeats: list[dict[str, Any]] = field(default_factory=list)


def path() -> Path:
    return paths.cache_dir() / "tuned.json"


def find(machine: Machine, files: ModelFiles) -> Tuned | None:
    """None where nothing was measured of this model, as it is on the disk, on hardware like this."""
    entry = _entries(machine).get(_key(files))
    try:
        return None if entry is None else Tuned(**entry)
    except TypeError:
        return None


def keep(machine: Machine, files: ModelFiles, found: Tuned) -> Path:
    """Write it in place of what was known of the model. What was measured on other hardware goes."""
    entries = {**_entries(machine), _key(files): asdict(found)}
    return _write(machine, entries)


def forget(machine: Machine, files: ModelFiles) -> bool:
    """Whether there was something to forget."""
    entries = _entries(machine)
    known = entries.pop(_key(files), None) is not None
    if known:
        _write(machine, entries)
    return known


def _write(machine: Machine, entries: dict[str, Any]) -> Path:
    document = {"version": VERSION, "fingerprint": profile.fingerprint(machine), "models": entries}
    path().parent.mkdir(parents=True, exist_ok=True)
    beside = path().with_suffix(".part")
    beside.write_text(json.dumps(document, indent=1), encoding="utf-8")
    beside.replace(path())
    return path()


def _entries(machine: Machine) -> dict[str, Any]:
    try:
        document = json.loads(path().read_text(encoding="utf-8"))
        same = document["fingerprint"] == json.loads(json.dumps(profile.fingerprint(machine)))
        return dict(document["models"]) if document["version"] == VERSION and same else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _key(files: ModelFiles) -> str:
    """A model's files by place, size and time: one that was made anew is another model."""
    stats = []
    for name in files.files:
        try:
            found = Path(name).stat()
        except OSError:
            continue
        stats.append(f"{found.st_size}.{found.st_mtime_ns}")
    return " ".join([files.path, *stats])
