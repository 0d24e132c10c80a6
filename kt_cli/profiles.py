"""Named profiles of `kt run`: `kt run @NAME` stands for the options that the file profiles/NAME.toml holds.

A key is the name of an option without its dashes, or `model`; true stands for an option without a value.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from kt_core import config, paths
from kt_core.errors import BadData, EnvironmentProblem, NotFound, UsageError
from kt_core.messages import t

MARK = "@"
_NAME = re.compile(r"\w[\w.-]{0,63}")


def expanded(args: list[str], flags: set[str]) -> list[str]:
    """The words of a command line, with a profile's in place of @NAME. What else is there wins, as the later option does.

    An option keeps its value, except those of `flags`, which take none: -p @someone asks, and names no profile.
    """
    for place, word in enumerate(args):
        before = args[place - 1] if place else ""
        if word.startswith(MARK) and (not before.startswith("-") or before in flags):
            return [*words(word.removeprefix(MARK)), *args[:place], *args[place + 1 :]]
    return args


def folder() -> Path:
    return paths.config_file().with_name("profiles")


def file(name: str) -> Path:
    return folder() / f"{name}.toml"


def names() -> list[str]:
    with suppress(OSError, EnvironmentProblem):
        return sorted(found.stem for found in folder().glob("*.toml") if _NAME.fullmatch(found.stem))
    return []


def words(name: str) -> list[str]:
    """The command line that a profile stands for. Raises NotFound, and BadData for a file that is not right."""
    if not _NAME.fullmatch(name) or not paths.is_file(file(name)):
        known = t("output.comma").join(MARK + known for known in names())
        raise NotFound("profiles.absent" if known else "profiles.none", name=name, known=known)
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        found = tomlkit.parse(file(name).read_text(encoding="utf-8-sig")).unwrap()
    except (OSError, ValueError, TOMLKitError) as error:
        raise BadData("profiles.bad", file=file(name), reason=getattr(error, "strerror", None) or error) from error
    line = [str(found.pop("model"))] if "model" in found else []
    for key, value in found.items():
        if isinstance(value, dict | list):
            raise BadData("profiles.bad", file=file(name), reason=t("profiles.nested", option=key))
        if value is not False:
            line += [f"--{key}"] if value is True else [f"--{key}", str(value)]
    return line


def save(name: str, model: str, options: dict[str, Any]) -> Path:
    """Write a profile, in place of one of that name. Raises UsageError for a name that cannot be one, KTError as config does."""
    if not _NAME.fullmatch(name):
        raise UsageError("profiles.bad_name", name=name)
    import tomlkit

    document = tomlkit.document()
    document.add(tomlkit.comment(f"kt run {MARK}{name}"))
    document.add("model", model)
    for key, value in options.items():
        document.add(key, value)
    config.write_file(file(name), document.as_string())
    return file(name)


def line(model: str, options: dict[str, Any]) -> list[str]:
    """The words of a command line, from the model and the options as `save` takes them."""
    found = [model]
    for key, value in options.items():
        found += [f"--{key}"] if value is True else [f"--{key}", str(value)]
    return found
