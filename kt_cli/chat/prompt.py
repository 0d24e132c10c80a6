"""What is typed: lines with editing and history on a terminal, plain ones elsewhere."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kt_cli import output
from kt_core import paths

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings

PROMPT, MORE = ">>> ", "... "
QUOTES = '"""'


class Emptied(Exception):
    """Ctrl-C at a prompt with text in it."""


class Reader:
    """Reads questions. `completions` are those of prompt_toolkit's NestedCompleter: word -> what may follow it."""

    def __init__(self, completions: Mapping[str, Any]) -> None:
        self._session = _session(completions) if output.is_terminal(sys.stdout) else None

    def question(self) -> str:
        '''One question: what was typed up to Enter, or all between """ and """. Raises EOFError, KeyboardInterrupt, Emptied.'''
        text = self._line(PROMPT)
        while _is_open(text):
            text += "\n" + self._line(MORE)
        if not text.startswith(QUOTES):
            return text
        return text.rstrip().removeprefix(QUOTES).removesuffix(QUOTES).strip("\n")

    def _line(self, prompt: str) -> str:
        if self._session is None:
            return _plain(prompt)
        try:
            return self._session.prompt(prompt)
        except KeyboardInterrupt:
            if self._session.default_buffer.text:
                raise Emptied from None
            raise


def _is_open(text: str) -> bool:
    '''Whether a text that begins with """ still lacks its end.'''
    return text.startswith(QUOTES) and not (text.rstrip().endswith(QUOTES) and len(text.rstrip()) >= 2 * len(QUOTES))


def _plain(prompt: str) -> str:
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")


def _session(completions: Mapping[str, Any]) -> "PromptSession[str]":
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import NestedCompleter
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    history = history_file()
    return PromptSession(
        history=FileHistory(str(history)) if history else InMemoryHistory(),
        completer=NestedCompleter.from_nested_dict(dict(completions)),
        complete_while_typing=False,
        enable_open_in_editor=True,
        tempfile_suffix=".md",
        multiline=True,
        prompt_continuation=MORE,
        key_bindings=_keys(),
    )


def _keys() -> "KeyBindings":
    """Enter asks; Alt-Enter and Ctrl-J begin a new line. A paste is one event, whatever lines are in it."""
    from prompt_toolkit.enums import DEFAULT_BUFFER
    from prompt_toolkit.filters import has_focus
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)  # elsewhere, as in a search of the history, Enter means something else

    @keys.add("enter", filter=typing)
    def _(event: Any) -> None:
        buffer = event.current_buffer
        if _is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=typing)
    @keys.add("c-j", filter=typing)
    def _(event: Any) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys


def history_file() -> Path | None:
    """Where typed lines are kept, readable by their owner only; None where nothing can be written."""
    file = paths.state_dir() / "chat_history"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError:
        return None
    return file
