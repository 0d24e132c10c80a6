"""Texts that a person names, whole: what is none is refused in words."""

from pathlib import Path

from kt_core import paths
from kt_core.errors import BadData, NotFound
from kt_core.messages import t


def read_text(path: Path) -> str:
    """UTF-8, without the mark that some editors begin with. Raises NotFound; BadData for an empty file and for what is no
    text."""
    try:
        text = paths.text(path)
    except FileNotFoundError:
        raise NotFound("formats.text_missing", path=path) from None
    except OSError as error:
        raise BadData("formats.text_unreadable", path=path, reason=error.strerror or error) from None
    except UnicodeDecodeError as error:
        raise _odd(path, t("formats.text_no_utf8", place=error.start)) from None
    if "\0" in text:
        raise _odd(path, t("formats.text_binary", place=len(text[: text.index("\0")].encode())))
    if not text.strip():
        raise _odd(path, t("formats.text_empty"))
    return text


def _odd(path: Path, reason: str) -> BadData:
    return BadData("formats.text_unreadable", path=path, reason=reason)
