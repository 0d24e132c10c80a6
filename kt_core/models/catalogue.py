"""Models that kt knows the shapes of, so that planning works before any download; and those that a user adds.

The built-in ones are catalogue.json: name -> `config` (what its config.json says of shapes and storage, or the name of a
model with the same one), `aliases`, `repos` (format -> repository, the published precision first), `vision` and `mtp`
(weights that are no part of the language model), `parsers`, `quirks`. A user's own are in models.toml beside the settings,
a table for each name, with `path` or `repo`, `aliases`, and `like` (a built-in model with the same shapes).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from kt_core import config, paths
from kt_core.errors import BadData, NotFound
from kt_core.formats.problems import Problems
from kt_core.models.spec import from_config
from kt_core.models.storage import REPACKED
from kt_core.types import ModelSpec

_FILE = Path(__file__).with_name("catalogue.json")
_FIELDS = {"path": str, "repo": str, "like": str, "aliases": list}


@dataclass(frozen=True)
class Known:
    """One model. `repos`: format -> repository; `config` is empty where only files say what the model is."""

    name: str
    aliases: tuple[str, ...] = ()
    repos: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, int] = field(default_factory=dict)
    parsers: tuple[str, str] | None = None
    quirks: tuple[str, ...] = ()
    form: str = ""  # of repos, the one that was asked for; "": the published precision
    path: str = ""  # of a user's model
    own: bool = False  # whether the user added it

    @property
    def repo(self) -> str:
        """The repository of the form that was asked for, else of the published precision; "" for none."""
        return self.repos.get(self.form) or next(iter(self.repos.values()), "")


@cache
def builtin() -> dict[str, Known]:
    """The built-in models by name."""
    entries: dict[str, dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))
    found = {}
    for name, entry in entries.items():
        config = entry["config"]
        found[name] = Known(
            name,
            tuple(entry.get("aliases", ())),
            entry["repos"],
            entries[config]["config"] if isinstance(config, str) else config,
            {part: entry[part] for part in ("vision", "mtp") if part in entry},
            tuple(entry["parsers"]) if "parsers" in entry else None,
            tuple(entry.get("quirks", ())),
        )
    return found


def own() -> dict[str, Known]:
    """The user's models by name. Raises BadData, with every problem, for a file that is not right."""
    file = paths.models_file()
    if not paths.is_file(file):
        return {}
    import tomlkit
    from tomlkit.exceptions import ParseError

    problems = Problems()
    found: dict[str, Known] = {}
    try:
        tables = tomlkit.parse(file.read_text(encoding="utf-8-sig")).unwrap()
    except (OSError, ValueError, ParseError) as error:
        problems.add("models.config_unreadable", reason=error)
        tables = {}
    for name, table in tables.items():
        if known := _own_entry(name, table, problems):
            found[name] = known
    if problems:
        raise BadData("models.bad_catalogue", path=file, problems=problems)
    return found


def add(name: str, source: Mapping[str, Any]) -> Path:
    """Put a model of the user's into models.toml, in place of one of that name. Raises BadData for what no entry can be
    and for a file that is not right, KTError when it cannot be written."""
    problems = Problems()
    _own_entry(name, dict(source), problems)
    if problems:
        raise BadData("models.bad_catalogue", path=paths.models_file(), problems=problems)
    return _change(lambda document: document.update({name: dict(source)}))


def forget(name: str) -> Path:
    """Take a model of the user's out of models.toml. Its files stay. Raises as add does."""
    return _change(lambda document: document.pop(name))


def _change(change: Callable[[Any], object]) -> Path:
    import tomlkit

    own()  # a file with faults is not written over
    file = paths.models_file()
    document = tomlkit.parse(file.read_text(encoding="utf-8-sig")) if paths.is_file(file) else tomlkit.document()
    change(document)
    config.write_file(file, document.as_string())
    return file


def _own_entry(name: str, table: Any, problems: Problems) -> Known | None:
    if not isinstance(table, dict) or not table.keys() & {"path", "repo"}:
        problems.add("models.entry_empty", name=name)
        return None
    for key, value in table.items():
        if key not in _FIELDS:
            problems.add("models.entry_key", name=name, field=key, known=", ".join(_FIELDS))
        elif not isinstance(value, _FIELDS[key]) or (key == "aliases" and not all(isinstance(a, str) for a in value)):
            problems.add("models.entry_value", name=name, field=key, value=value)
    like = table.get("like")
    shape = _match(builtin(), str(like)) if like else None
    if like and shape is None:
        problems.add("models.entry_like", name=name, like=like)
    if problems:
        return None
    base = shape or Known(name)
    repos = {"": table["repo"]} if "repo" in table else {}
    return replace(
        base, name=name, aliases=tuple(table.get("aliases", ())), repos=repos, path=table.get("path", ""), own=True
    )


def find(name: str) -> Known | None:
    """The model with this name, alias or repository (then in that one's form), in any case; a user's own comes first.

    Raises as own does.
    """
    return _match(own(), name) or _match(builtin(), name)


def _match(models: Mapping[str, Known], name: str) -> Known | None:
    wanted = name.casefold()
    for known in models.values():
        if wanted in (word.casefold() for word in (known.name, *known.aliases)):
            return known
        for form, repo in known.repos.items():
            if repo.casefold() == wanted:
                return replace(known, form=form)
    return None


def not_here(known: Known) -> NotFound:
    """The error for a model that only the hub has, with the way to get it."""
    return NotFound("models.known_repository", name=known.name, repo=known.repo)


def names() -> list[str]:
    """Names and aliases of all models, for suggestions."""
    models = {**builtin(), **own()}
    return [word for known in models.values() for word in (known.name, *known.aliases)]


def spec(known: Known) -> ModelSpec | None:
    """What the built-in shapes say of a model in its form; None where there are none, and for GGUF files, whose formats
    differ from file to file."""
    if not known.config or known.form == "GGUF":
        return None
    formats = REPACKED.get(known.form) if known.form != next(iter(known.repos), "") else None
    found = from_config(dict(known.config), beside=known.beside, formats=formats)
    return refined(found, known)


def refined(found: ModelSpec, known: Known) -> ModelSpec:
    """The spec with what is known of this model and not of its whole family: parsers and quirks."""
    tool, reasoning = known.parsers or (found.tool_parser, found.reasoning_parser)
    quirks = dict.fromkeys((*found.quirks, *known.quirks))
    return replace(found, tool_parser=tool, reasoning_parser=reasoning, quirks=tuple(quirks))
