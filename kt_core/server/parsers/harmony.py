"""gpt-oss (harmony): an answer of several messages, each a header and a text.

<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}<|call|>
Analysis is reasoning; a message to a function is a call; what else goes to the commentary and final channels is for the user.
"""

import logging
import re
from typing import Any

from kt_core.messages import t
from kt_core.server.parsers.base import Broken, Call, Calls, Event, Marks, Reasoning, Schemas, Text, Thinking
from kt_core.server.parsers.grammar import Grammar, arguments
from kt_core.server.parsers.scanner import Channel
from kt_core.server.parsers.values import arguments_of, decode, name_of, rest_of

log = logging.getLogger(__name__)

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_MARKS = (_START, _CHANNEL, _MESSAGE, _CONSTRAIN, *_ENDS)
# A header is short; a longer text is an answer without one.
_HEADER = 256
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_NAME = re.compile(r"<\|channel\|>\s*(\w*)")


def read(body: str, schemas: Schemas) -> tuple[list[Call], str]:
    """The arguments of a call; the header has its name."""
    value, rest = decode(body or "{}")
    return [Call("", arguments_of(value))], rest_of(rest)


def history(message: dict[str, Any]) -> dict[str, Any]:
    """The template takes either reasoning or text beside a call, and older versions of transformers pass reasoning on by
    the template's own name for it only.
    """
    parts = [message.get(name) or "" for name in ("reasoning_content", "content")]
    if message.get("tool_calls") and all(parts):
        message = {**message, "reasoning_content": "\n".join(parts), "content": ""}
    reasoning = message.get("reasoning_content")
    return {**message, "thinking": reasoning} if reasoning else message


def write(grammar: Grammar, name: str, schema: Any, strict: bool) -> str:
    start = grammar.mark(f"{_CHANNEL}commentary to=functions.{name} {_CONSTRAIN}json{_MESSAGE}")
    return f"{start} {grammar.json(arguments(schema), strict)} {grammar.mark('<|call|>')}"


STYLE = Calls(
    name="harmony",
    signs=(_CHANNEL, _MESSAGE),
    starts=(),
    others=_MARKS,
    read=read,
    single=True,
    last=("<|call|>", "<|return|>"),
    history=history,
    write=write,
)
THINKING = Thinking(
    "harmony",
    f"{_CHANNEL}analysis{_MESSAGE}",
    "<|end|>",
    after=f"{_START}assistant",
    text=f"{_CHANNEL}final{_MESSAGE}",
)


class Harmony:
    """One answer. Without `thinking` the analysis is text, without `calls` the arguments are."""

    def __init__(self, thinking: bool, calls: bool, schemas: Schemas) -> None:
        self.marks: tuple[str, ...] = _MARKS
        self._thinking, self._calls, self._schemas = thinking, calls, schemas
        self._found = Marks(_MARKS)
        self._text, self._reasoning = Channel(Text), Channel(Reasoning)
        self._channel = self._text
        self._held = ""
        self._header: str | None = ""  # None: in a message's text
        self._name = ""  # of the function that is being called
        self._body = ""  # of the call so far
        self._called = False

    def begin(self, prompt_end: str, answer: str) -> None:
        _, start, tail = prompt_end.rpartition(_START)
        if answer:
            self._header = None
        elif start:
            self.push(tail.removeprefix("assistant"))

    def push(self, piece: str) -> list[Event]:
        self._held += piece
        events: list[Event] = []
        while self._step(events):
            pass
        return events

    def finish(self) -> list[Event]:
        held, self._held = self._held, ""
        if self._header is not None:
            return self._text.write(_unmarked(self._header + held)) + self._text.finish()
        events = [] if self._name else self._channel.write(held)
        self._body += held
        return events + (self._end() if self._name else self._channel.finish())

    def _step(self, events: list[Event]) -> bool:
        """Take what is certain up to the first mark. False when more text is needed."""
        found = self._found.first(self._held)
        end = found[0] if found else len(self._held) - self._found.unfinished(self._held)
        if self._header is not None and len(self._header) + end > _HEADER:
            self._held, self._header = _unmarked(self._header) + self._held, None
            self._channel = self._text
            return True
        before, self._held = self._held[:end], self._held[end:]
        if self._header is not None:
            self._header += before
        elif self._name:
            self._body += before
        else:
            events += self._channel.write(before)
        if found is None:
            return False
        self._held = self._held[len(found[1]) :]
        events += self._pass(found[1])
        return True

    def _pass(self, mark: str) -> list[Event]:
        if self._header is not None:
            if mark == _MESSAGE:
                self._open(self._header)
                return []
            if mark in (_CHANNEL, _CONSTRAIN):
                self._header += mark
                return []
            header, self._header = self._header.removeprefix("assistant"), ""
            return self._text.write(_unmarked(header))
        self._channel.mark()
        if mark in (_MESSAGE, _CONSTRAIN):
            return []
        events = self._end() if self._name else []
        self._header = mark if mark == _CHANNEL else ""
        return events

    def _open(self, header: str) -> None:
        recipient, channel = _RECIPIENT.search(header), _NAME.search(header)
        analysis = channel is not None and channel[1] == "analysis"
        self._header, self._body = None, ""
        self._name = recipient[1] if recipient and self._calls else ""
        self._channel = self._reasoning if analysis and self._thinking else self._text
        self._channel.mark()
        if self._channel.begun:
            self._channel.write("\n")  # goes out with the message's text

    def _end(self) -> list[Event]:
        name, self._name = self._name, ""
        try:
            (call,), rest = read(self._body, self._schemas)
            call = Call(name_of(name), call.arguments, STYLE.new_id())
        except Broken as error:
            log.warning("%s", t("server.broken_call", style=STYLE.name, reason=str(error)))
            return self._channel.write(self._body)
        if self._called:
            log.warning("%s", t("server.one_call", style=STYLE.name, name=call.name))
            return []
        self._called = True
        return [call, *self._channel.write(rest)]


def _unmarked(text: str) -> str:
    """The text without marks; they stand in a header that is none."""
    for mark in _MARKS:
        text = text.replace(mark, "")
    return text
