"""Questions on the terminal: which of several things is meant."""

import sys
from collections.abc import Sequence
from typing import Any, TypeVar

from kt_cli import output, servers
from kt_core.messages import t

T = TypeVar("T")


def can_ask() -> bool:
    """Whether somebody is there who can be asked."""
    return sys.stdin.isatty() and output.is_terminal(sys.stdout) and not output.is_json() and not output.is_quiet()


def server(word: str | None) -> servers.Server:
    """The server that is meant; of several, the one that is chosen on the terminal. Raises as servers.the does."""
    found = servers.matching(word) if word else servers.running()
    return one_of(found) if len(found) > 1 and can_ask() else servers.the(word)


def one_of(found: list[servers.Server]) -> servers.Server:
    """The server of these that is chosen on the terminal; without one, the first."""
    if len(found) == 1 or not can_ask():
        return found[0]
    return select(t("servers.which"), [(servers.listed([server]), server) for server in found])


def select(question: str, rows: Sequence[tuple[str, T]]) -> T:
    """The value of the row that is chosen. Raises KeyboardInterrupt when the question is cancelled."""
    import questionary

    choices = [questionary.Choice(title, value) for title, value in rows]
    asked = questionary.select(question, choices, instruction=t("wizard.keys"), **_manners())
    chosen: T = asked.unsafe_ask()
    return chosen


def agree(question: str, default: bool = True) -> bool:
    """Yes or no. Raises KeyboardInterrupt when the question is cancelled."""
    import questionary

    keys = t("wizard.yes_keys" if default else "wizard.no_keys")
    # questionary would leave an English word behind it, so its line goes and kt's own stays
    asked = questionary.confirm(question, default=default, instruction=keys, erase_when_done=True, **_manners())
    agreed = bool(asked.unsafe_ask())
    output.status(f"? {question} {t('wizard.yes' if agreed else 'wizard.no')}")
    return agreed


def text(question: str, default: str = "") -> str:
    """A line of text. Raises KeyboardInterrupt when the question is cancelled."""
    import questionary

    return str(questionary.text(question, default=default, **_manners()).unsafe_ask()).strip()


def one_word(question: str, known: Sequence[str]) -> str:
    """A word, with completion of the known ones. Raises KeyboardInterrupt when the question is cancelled."""
    import questionary

    return str(questionary.autocomplete(question, list(known), **_manners()).unsafe_ask()).strip()


def path(question: str) -> str:
    """The path of a file or folder, with completion. Raises KeyboardInterrupt when the question is cancelled."""
    import questionary

    return str(questionary.path(question, **_manners()).unsafe_ask()).strip()


def _manners() -> dict[str, Any]:
    """How questions look: without colour where none is wanted."""
    from prompt_toolkit.output import ColorDepth

    return {} if output.wants_color(sys.stdout) else {"color_depth": ColorDepth.DEPTH_1_BIT}
