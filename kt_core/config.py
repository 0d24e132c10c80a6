"""Every setting once: key, type, default, environment name, help.

Precedence: command-line flag > environment > file > default. The file is TOML; `set` keeps its
comments and writes it beside and renames. A file that cannot be read is never overwritten.
"""

import fcntl
import importlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kt_core import paths
from kt_core.errors import BadData, EnvironmentProblem, KTError, NotFound, UsageError
from kt_core.messages import t


@dataclass(frozen=True)
class Setting:
    """One setting. `help` is a message key; `minimum` and `maximum` are inclusive bounds of numbers."""

    key: str
    type: type  # str, int, float or bool
    default: Any
    env: str
    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    secret: bool = False


def _setting(key: str, type: type, default: Any, **more: Any) -> Setting:
    name = key.replace(".", "_")
    env = more.pop("env", f"KT_{name.upper()}")
    return Setting(key, type, default, env, f"config.{name}", **more)


SETTINGS: tuple[Setting, ...] = (
    _setting("general.language", str, "auto", env="KT_LANG", choices=("auto", "en", "zh")),
    _setting("general.color", str, "auto", choices=("auto", "always", "never")),
    _setting("paths.models", str, ""),
    _setting("paths.searched", str, ""),
    _setting("server.host", str, "127.0.0.1"),
    _setting("server.port", int, 30000, minimum=1, maximum=65535),
    _setting("server.api_key", str, "", secret=True),
    _setting("server.api_key_file", str, ""),
    _setting("server.cors", str, ""),
    _setting("server.media_hosts", str, ""),
    _setting("server.log_prompts", bool, False),
    _setting("server.tool_parser", str, "auto"),
    _setting("server.reasoning_parser", str, "auto"),
    _setting("inference.threads", int, 0, minimum=0, maximum=4096),
    _setting("inference.context", int, 0, minimum=0),
    _setting("inference.max_running", int, 0, minimum=0, maximum=512),
    _setting("inference.kv_dtype", str, "auto", choices=("auto", "bfloat16", "float32", "fp8_e4m3")),
    _setting("inference.prefix_host", str, "auto"),
    _setting("inference.prefix_disk", str, "auto"),
    _setting("chat.temperature", float, 0.7, minimum=0, maximum=2),
    _setting("chat.top_p", float, 0.9, minimum=0, maximum=1),
    _setting("chat.max_tokens", int, 0, minimum=0),
    _setting("chat.system", str, ""),
    _setting("chat.save", bool, True),
)
_BY_KEY = {setting.key: setting for setting in SETTINGS}


@dataclass(frozen=True)
class Config:
    """The settings in force: key -> value, and key -> "environment", "file" or "default"."""

    values: dict[str, Any]
    origins: dict[str, str]

    def get(self, key: str) -> Any:
        return self.values[setting(key).key]

    def origin(self, key: str) -> str:
        return self.origins[setting(key).key]


def setting(key: str) -> Setting:
    """The setting named `key`. Raises NotFound with the nearest names."""
    if key in _BY_KEY:
        return _BY_KEY[key]
    near = _near(key)
    raise NotFound(
        "config.unknown_key_near" if near else "config.unknown_key", name=key, near=t("output.comma").join(near)
    )


def load() -> Config:
    """Read the environment and the file. Raises BadData (file) or UsageError (environment)."""
    try:
        file_values = _file_values(paths.config_file())
    except EnvironmentProblem:  # no home folder, so no file
        file_values = {}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for entry in SETTINGS:
        text = os.environ.get(entry.env, "")
        if text:
            values[entry.key], origins[entry.key] = _from_environment(entry, text), "environment"
        elif entry.key in file_values:
            values[entry.key], origins[entry.key] = file_values[entry.key], "file"
        else:
            values[entry.key], origins[entry.key] = entry.default, "default"
    return Config(values, origins)


def get(key: str) -> Any:
    """The value of `key` in force. Raises NotFound for an unknown key, BadData for a broken file."""
    return load().get(key)


def origin(key: str) -> str:
    """Where the value of `key` comes from: "environment", "file" or "default"."""
    return load().origin(key)


def set(key: str, value: Any) -> Any:
    """Store `value` (its type, or text that reads as its type) in the file; returns what was stored.

    Raises NotFound for an unknown key, UsageError for a value that does not fit, BadData when the
    file is broken (it is left alone).
    """
    entry = setting(key)
    typed = parse(entry, value) if isinstance(value, str) else _checked(entry, value)
    file = paths.config_file()
    with _alone(file):
        document = _parse_file(file)
        _file_values(file)  # a file with other faults is not written over either
        section, name = key.split(".")
        if section not in document:
            import tomlkit

            document[section] = tomlkit.table()
        document[section][name] = typed
        write_file(file, document.as_string())
    return typed


def unset(key: str) -> bool:
    """Take `key` out of the file; False when it was not there. Raises as `set` does."""
    section, name = setting(key).key.split(".")
    file = paths.config_file()
    with _alone(file):
        document = _parse_file(file)
        there = key in _file_values(file)
        if there:
            del document[section][name]
            write_file(file, document.as_string())
    return there


def replace(draft: Path) -> None:
    """Take the text of `draft` over as the settings. Raises BadData, and leaves the settings alone, when it is not right."""
    _file_values(draft)
    file = paths.config_file()
    with _alone(file):
        write_file(file, draft.read_text(encoding="utf-8-sig"))


def parse(entry: Setting, text: str) -> Any:
    """The value that `text` stands for. Raises UsageError naming the type when it stands for none."""
    try:
        value = _convert(entry.type, text)
    except ValueError:
        raise _wrong(UsageError, entry, text) from None
    return _checked(entry, value)


def describe(entry: Setting) -> str:
    """What `entry` takes, in words: its choices, or its type with the bounds."""
    if entry.choices:
        return " | ".join(entry.choices)
    kind = t("config.type_secret" if entry.secret else f"config.type_{entry.type.__name__}")
    if entry.minimum is not None and entry.maximum is not None:
        return t("config.between", kind=kind, low=f"{entry.minimum:g}", high=f"{entry.maximum:g}")
    if entry.minimum is not None:
        return t("config.at_least", kind=kind, low=f"{entry.minimum:g}")
    return kind


def _convert(kind: type, text: str) -> Any:
    if kind is bool:
        words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
        if text.strip().lower() not in words:
            raise ValueError(text)
        return words[text.strip().lower()]
    return kind(text)


def _from_environment(entry: Setting, text: str) -> Any:
    if entry.key == "general.language":  # KT_LANG also takes locale names such as zh_CN.UTF-8
        text = re.split(r"[-_.@]", text)[0].lower()
    try:
        return parse(entry, text)
    except UsageError as error:
        value = _shown(entry, os.environ[entry.env])
        raise UsageError("config.bad_environment", name=entry.env, value=value, takes=describe(entry)) from error


def _checked(entry: Setting, value: Any, error: type[KTError] = UsageError) -> Any:
    """`value` as the setting's type. An int serves as a float; a bool is not an int here."""
    if entry.type is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 2**1000 else value  # larger ones have no float
    fits = type(value) is entry.type and (not entry.choices or value in entry.choices)
    if fits and isinstance(value, str):
        fits = _is_text(value) and (value.isprintable() or not entry.secret)  # a key goes into one header line
    if fits and entry.minimum is not None:
        fits = value >= entry.minimum
    if fits and entry.maximum is not None:
        fits = value <= entry.maximum
    if not fits:
        raise _wrong(error, entry, value)
    return value


def _is_text(value: str) -> bool:
    """Whether `value` can be written as UTF-8; words of the command line need not be."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(entry: Setting, value: Any) -> Any:
    """A value as an error may show it."""
    return t("config.secret") if entry.secret else value


def _wrong(error: type[KTError], entry: Setting, value: Any) -> KTError:
    value = _shown(entry, value)
    if error is BadData:
        return BadData(
            "config.bad_file_value", name=entry.key, value=value, takes=describe(entry), file=paths.config_file()
        )
    return error("config.bad_value", name=entry.key, value=value, takes=describe(entry))


def _file_values(file: Path) -> dict[str, Any]:
    """Checked values of the file, by key; every section and key in it must be known."""
    if not _present(file):  # spares the parser's import on the way to `kt --help`
        return {}
    values: dict[str, Any] = {}
    for section, table in _parse_file(file).unwrap().items():
        entries = table if isinstance(table, dict) else {"": table}
        for name, value in entries.items():
            key = f"{section}.{name}" if name else section
            if key not in _BY_KEY:
                near = _near(key)
                message = "config.unknown_key_in_file_near" if near else "config.unknown_key_in_file"
                raise BadData(message, name=key, file=file, near=t("output.comma").join(near))
            values[key] = _checked(_BY_KEY[key], value, BadData)
    return values


def _present(file: Path) -> bool:
    """Whether the file is there. Raises BadData for a device, a pipe or a folder, and for a path that cannot be one."""
    try:
        if file.exists() and not file.is_file():
            raise BadData("config.not_a_file", file=file)
        return file.exists()
    except OSError as error:
        raise BadData("config.unreadable", file=file, reason=error.strerror or error) from error


def _parse_file(file: Path) -> Any:
    """The file as a tomlkit document; an empty one when there is no file."""
    try:
        text = file.read_text(encoding="utf-8-sig") if _present(file) else ""  # some editors begin with a mark
    except UnicodeDecodeError as error:
        raise BadData("config.not_text", file=file, position=error.start) from error
    except OSError as error:
        raise BadData("config.unreadable", file=file, reason=error.strerror or error) from error
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse(text)
    except TOMLKitError as error:
        line, column, reason = _place_of_fault(text, error)
        faulty = _without_secret(text.split("\n")[line - 1].strip())
        raise BadData("config.broken_file", file=file, line=line, column=column, reason=reason, text=faulty) from error


def _place_of_fault(text: str, error: Exception) -> tuple[int, int, str]:
    """Line and column, from 1, and the reason. Python's own parser, where there is one, knows the place better."""
    place, reason = "", ""
    try:
        importlib.import_module("tomllib").loads(text)
    except ModuleNotFoundError:  # Python 3.10
        pass
    except ValueError as fault:
        reason, _, place = str(fault).partition(" (at ")
    found = re.match(r"line (\d+), column (\d+)", place)
    lines = text.rstrip().split("\n")  # the end is where the last words are
    if found:
        return min(int(found[1]), len(lines)), int(found[2]), reason
    if place:  # "end of document"
        return len(lines), len(lines[-1]) + 1, reason
    line, column = getattr(error, "line", len(lines)), getattr(error, "col", 0) + 1
    return min(line, len(lines)), column, str(error).partition(" at line ")[0]


def _without_secret(line: str) -> str:
    """A line of the file as it may be shown."""
    secret = any(entry.secret and entry.key.rpartition(".")[2] in line for entry in SETTINGS)
    return line.partition("=")[0] + "= ..." if secret else line


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Within this block no other process changes the file, so that no change between reading and writing is lost.

    The lock is on the file's folder and goes with the process. Where there is no folder yet, or the file system has no
    locks, it is gone without.
    """
    folder = -1
    try:
        file.resolve().parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(file.resolve().parent, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX)
    except (OSError, RuntimeError):
        pass
    try:
        yield
    finally:
        if folder >= 0:
            os.close(folder)


def write_file(file: Path, text: str, private: bool = True) -> None:
    """Replace `file` as `replace_file` does. Raises KTError, which names the variable that moves settings."""
    try:
        file.resolve().parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, text, private)
    except OSError as error:
        raise KTError("config.cannot_write", file=file, reason=error.strerror or error) from error


def replace_file(file: Path, text: str, private: bool = False) -> None:
    """Replace `file` in one step. Private: only its owner may read it, for it may hold the API key; else who could, and a new
    one as the umask has it. Raises OSError, and leaves nothing of the new text then."""
    target = file.resolve()  # a link to a dotfiles folder stays a link
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        mode = 0o600 if private else 0o666
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors=None if private else "surrogateescape") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        if not private and target.exists():
            beside.chmod(stat.S_IMODE(target.stat().st_mode))
        beside.replace(target)
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def _near(key: str) -> list[str]:
    """Up to three known keys like `key`, by whole name or by last part."""
    from difflib import get_close_matches

    last = key.rpartition(".")[2]
    by_last = [known for known in _BY_KEY if get_close_matches(last, [known.rpartition(".")[2]], cutoff=0.7)]
    near = get_close_matches(key, list(_BY_KEY), cutoff=0.6) or by_last
    return near[:3]
