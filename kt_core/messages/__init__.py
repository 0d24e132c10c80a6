"""The catalogue of everything a person reads, in English and Chinese.

One file per room holds `MESSAGES`: key -> (English, Chinese). A key's first dotted part is the
file's name, so a room is loaded when its first message is shown. Placeholders are
`str.format` fields and must be the same in both languages (a test checks it).
"""

import importlib
import os
import re
from functools import cache

LANGUAGES = ("en", "zh")
_language: str | None = None
# What a terminal obeys: control characters but line ends and tabs, and marks that turn the direction of writing.
OBEYED = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
_OBEYED = re.compile(OBEYED)


def set_language(code: str | None) -> None:
    """Choose `en` or `zh`; None goes back to the environment's choice."""
    global _language
    _language = code if code in LANGUAGES else None


def language() -> str:
    """The language in force: set_language, then KT_LANG, LC_ALL, LC_MESSAGES, LANG, then English."""
    if _language:
        return _language
    for name in ("KT_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        value = os.environ.get(name, "")
        if value and value != "auto":
            return "zh" if value.lower().startswith("zh") else "en"
    return "en"


@cache
def room(name: str) -> dict[str, tuple[str, str]]:
    """The messages of one room. Raises ModuleNotFoundError for an unknown room."""
    messages: dict[str, tuple[str, str]] = importlib.import_module(f"kt_core.messages.{name}").MESSAGES
    return messages


def t(key: str, **args: object) -> str:
    """The text of `key` in the current language, `plain`. Raises KeyError for an unknown key."""
    text = room(key.partition(".")[0])[key][LANGUAGES.index(language())]
    return plain(text.format(**args)) if args else text


def plain(text: str) -> str:
    """`text` without what a terminal would obey: names of files, models' words and servers' errors are no commands."""
    return text if text.isprintable() else _OBEYED.sub("", text)
