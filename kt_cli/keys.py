"""The API keys of a server: from the command line, the settings, and a file that only its owner needs to read."""

from pathlib import Path

from kt_core import config, paths
from kt_core.errors import BadData, NotFound, UsageError


def api_keys(given: str | None = None, file: Path | None = None) -> tuple[str, ...]:
    """The keys that clients may send, this program's own first; none: no key is asked for.

    `given` and `file` stand for the settings server.api_key and server.api_key_file. Raises NotFound and BadData for
    the file, and UsageError for a key that no header can hold.
    """
    first = config.get("server.api_key") if given is None else given
    listed = str(file) if file else config.get("server.api_key_file")
    keys = [first, *(_lines(paths.expanded(listed)) if listed else ())]
    for key in keys:
        if not key.isprintable() or key != key.strip():
            raise UsageError("run.bad_key")
    return tuple(dict.fromkeys(filter(None, keys)))


def own() -> str:
    """The key that this program sends; "" where none is set."""
    return next(iter(api_keys()), "")


def _lines(file: Path) -> list[str]:
    """One key a line; empty lines and those that begin with # are none."""
    try:
        lines = paths.text(file).splitlines()
    except FileNotFoundError as error:
        raise NotFound("run.no_key_file", file=file) from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadData("run.bad_key_file", file=file, reason=getattr(error, "strerror", None) or error) from error
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise BadData("run.empty_key_file", file=file)
    return keys
