"""Where kt keeps things: XDG folders, one per kind of data; and paths that a person typed. Nothing is created here."""

import errno
import os
from pathlib import Path

from kt_core.errors import EnvironmentProblem

MOST_BYTES = 1 << 28  # of what may have no end: a device, a pipe


def home(variable: str, default: str) -> Path:
    """The folder that an environment variable names, else this one of the home folder. Raises EnvironmentProblem when neither the variable nor a home folder is there."""
    value = os.environ.get(variable)
    if value:
        return Path(value)
    try:
        return Path.home() / default
    except RuntimeError:  # no HOME, and a user id that no account has: containers run so
        raise EnvironmentProblem("core.no_home", variable=variable) from None


def expanded(name: str | Path) -> Path:
    """The path with "~" resolved; "~somebody" without such a user stays as it is."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def exists(path: Path) -> bool:
    """Whether anything is there; not so for what no path can be, such as a name that is too long."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def is_file(path: Path) -> bool:
    """Whether a file is there; False as exists has it."""
    return exists(path) and path.is_file()


def content(file: Path) -> bytes:
    """All bytes of a file that a person named. Raises OSError, for a device or a pipe that gives more than MOST_BYTES too: reading
    /dev/zero to its end takes all memory, and no Ctrl-C stops it."""
    with file.open("rb") as opened:
        if file.is_file():
            return opened.read()
        found = opened.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(file))
    return found


def text(file: Path) -> str:
    """The same, as UTF-8 without the mark that may begin it, with its lines ended as Python has them. Raises OSError and
    UnicodeDecodeError."""
    return content(file).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


def config_file() -> Path:
    """The TOML file that holds the user's settings; KT_CONFIG_FILE names another."""
    named = os.environ.get("KT_CONFIG_FILE")
    return Path(named) if named else home("XDG_CONFIG_HOME", ".config") / "kt" / "config.toml"


def models_file() -> Path:
    """The TOML file that holds the models that the user added, beside the settings."""
    return config_file().with_name("models.toml")


def state_dir() -> Path:
    """Running servers, logs and chats."""
    return home("XDG_STATE_HOME", ".local/state") / "kt"


def cache_dir() -> Path:
    """What can be made again: machine profile, headers, prefix pages."""
    return home("XDG_CACHE_HOME", ".cache") / "kt"


def default_models_dir() -> Path:
    """Where pulled models go unless the setting `paths.models` names another folder."""
    return home("XDG_DATA_HOME", ".local/share") / "kt" / "models"
