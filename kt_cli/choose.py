"""Questions on the terminal: which of several things is meant."""

import sys

from kt_cli import output, servers
from kt_core.messages import t


def can_ask() -> bool:
    """Whether somebody is there who can be asked."""
    return sys.stdin.isatty() and output.is_terminal(sys.stdout) and not output.is_json() and not output.is_quiet()


def server(word: str | None) -> servers.Server:
    """The server that is meant; of several, the one that is chosen on the terminal. Raises as servers.the does."""
    found = servers.matching(word) if word else servers.running()
    if len(found) < 2 or not can_ask():
        return servers.the(word)
    import questionary

    titles = [questionary.Choice(servers.listed([server]), server) for server in found]
    chosen: servers.Server = questionary.select(t("servers.which"), titles).unsafe_ask()
    return chosen
