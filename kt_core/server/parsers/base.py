"""What parsers are made of: events, the marks of a style, and the search for marks in text that comes in pieces."""

import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from kt_core.server.parsers.grammar import Grammar


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Reasoning:
    text: str


@dataclass(frozen=True)
class Call:
    """A whole call. `arguments` is the text of a JSON object."""

    name: str
    arguments: str
    id: str = ""  # "": the style writes none


Event = Text | Reasoning | Call
Schemas = Mapping[str, Any]  # name of a declared tool -> JSON schema of its parameters


class Broken(Exception):
    """The text is no call, and nothing that follows can make it one."""


class Unfinished(Broken):
    """The text ends inside a value, where even an end mark may stand."""


@dataclass(frozen=True)
class Thinking:
    """The marks around reasoning."""

    name: str
    open: str
    close: str
    after: str = ""  # between the reasoning and what follows it
    text: str = ""  # what opens an answer's text

    def opened(self, prompt_end: str, answer: str) -> bool:
        """Whether an answer begins within reasoning: the prompt, or the part of the answer that it holds, has opened it."""
        if answer:
            return answer.rfind(self.open) > answer.rfind(self.close)
        return prompt_end.rstrip().endswith(self.open)


@dataclass(frozen=True)
class Calls:
    """How a family of models writes tool calls.

    `read` takes what stands between a start mark and an end mark and returns the calls in it and the text behind them; it raises
    Broken or Unfinished. `write` gives the expression of one call, from its start mark to its end mark, for a tool's name, the
    schema of its arguments, and whether all that the schema says has to hold.
    """

    name: str
    signs: tuple[str, ...]  # a chat template that holds all of them is of this style
    starts: tuple[str, ...]
    read: Callable[[str, Schemas], tuple[list[Call], str]]
    write: "Callable[[Grammar, str, Any, bool], str]"
    ends: tuple[str, ...] = ()  # none: a call ends at the next one and with the answer
    others: tuple[str, ...] = ()  # marks around calls and in them: never part of text
    closed: bool = False  # a call without its end mark is none, because its text does not show that it is whole
    never: re.Pattern[str] | None = (
        None  # matches beginnings that no call has, so that text need not be held back for long
    )
    bare: str = ""  # an answer that begins with one of these characters may be calls without any mark
    id_length: int = 0  # 0: any
    single: bool = False  # the family's templates refuse messages with several calls
    last: tuple[str, ...] = ()  # tokens that end an answer, which not every model file says
    around: tuple[str, str] = ("", "")  # what stands before the first call and behind the last one
    between: str = ""  # what stands between two calls
    history: Callable[[dict[str, Any]], dict[str, Any]] | None = None  # an assistant's message as the templates take it

    def new_id(self) -> str:
        return uuid.uuid4().hex[: self.id_length] if self.id_length else f"call_{uuid.uuid4().hex[:24]}"


class Parser(Protocol):
    """Turns one answer's text, cut anywhere, into events; the same ones for every way of cutting. Never raises."""

    marks: tuple[str, ...]  # tokens that are a mark, or a part of one, must be part of the text

    def begin(self, prompt_end: str, answer: str) -> None:
        """Before the first piece: the end of the prompt, and the part of the answer that the prompt holds already."""
        ...

    def push(self, piece: str) -> list[Event]: ...

    def finish(self) -> list[Event]:
        """What was held back. Nothing may be pushed after it."""
        ...


class Marks:
    """Finds the first of several marks in a text, and how much of its end may be the beginning of one.

    No mark begins with another one, so a mark is known as soon as it is complete.
    """

    def __init__(self, marks: Iterable[str]) -> None:
        self._marks = tuple(dict.fromkeys(marks))
        self._pattern = re.compile("|".join(map(re.escape, self._marks)) or r"(?!)")

    def first(self, text: str) -> tuple[int, str] | None:
        """(where it starts, the mark)."""
        found = self._pattern.search(text)
        return (found.start(), found.group()) if found else None

    def unfinished(self, text: str) -> int:
        """The length of the longest end of `text` that a mark begins with."""
        return max((self._overlap(text, mark) for mark in self._marks), default=0)

    @staticmethod
    def _overlap(text: str, mark: str) -> int:
        return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)
