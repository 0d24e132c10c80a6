"""The parser of all styles that put marks around reasoning and around calls."""

import logging

from kt_core.messages import t
from kt_core.server.parsers.base import (
    Broken,
    Call,
    Calls,
    Event,
    Marks,
    Reasoning,
    Schemas,
    Text,
    Thinking,
    Unfinished,
)

log = logging.getLogger(__name__)

# Characters of a call's beginning that tell whether it can be one.
_HEAD = 256
# A model that repeats itself without an end must not keep the server busy. Each call that turns out to be none costs another
# look at all that followed it, so after some no more are looked for; each mark in a call costs reading the call.
_PATIENCE = 16
_INSIDE = 64


class Channel:
    """Text of one kind. White space beside marks goes out only between text and text; between marks it is theirs."""

    def __init__(self, kind: type[Text] | type[Reasoning]) -> None:
        self._kind = kind
        self._before = ""  # white space before the last marks
        self._space = ""  # white space after them, or after the last text
        self._marked = False  # marks came after the last text
        self.begun = False

    def mark(self) -> None:
        if not self._marked:
            self._before = self._space
        self._marked, self._space = True, ""

    def write(self, text: str) -> list[Event]:
        text = self._space + text
        whole = text.rstrip()
        self._space = text[len(whole) :]
        if not whole:
            return []
        whole = self._before + whole if self.begun or not self._marked else whole.lstrip()
        self._before, self._marked, self.begun = "", False, True
        return [self._kind(whole)]

    def finish(self) -> list[Event]:
        return [self._kind(self._space)] if self._space and not self._marked else []


class Scanner:
    """One answer. A call goes out when it is whole, so that whatever is no call can still become text.

    What stands between a start mark and an end mark is read once the end mark has come. If it is no call, its start mark is
    dropped and the rest is looked at again, as text: so a broken call takes nothing with it that follows.
    """

    def __init__(self, thinking: Thinking | None, calls: Calls | None, schemas: Schemas) -> None:
        self._thinking = thinking
        self._calls = calls
        self._schemas = schemas
        thinks = (thinking.open, thinking.close) if thinking else ()
        inside = (*calls.starts, *calls.ends) if calls else ()
        self.marks = (*thinks, *inside, *(calls.others if calls else ()))
        self._outer, self._inner = Marks(self.marks), Marks(inside)
        self._text, self._reasoning = Channel(Text), Channel(Reasoning)
        self._channel = self._text
        self._bare = calls.bare if calls else ""
        self._held = ""  # not looked at yet
        self._body: str | None = None  # of the call that is being read
        self._doubt = False  # an end mark stands in the body
        self._inside = 0  # marks in the body
        self._marked = True  # the call began with a mark
        self._called = self._broken = 0

    def begin(self, prompt_end: str, answer: str) -> None:
        """The answer begins in reasoning where the prompt has opened it."""
        thinking = self._thinking
        if answer:
            self._bare = ""
        if thinking is None:
            return
        if thinking.opened(prompt_end, answer):
            self._channel = self._reasoning
            self._channel.mark()

    def push(self, piece: str) -> list[Event]:
        self._held += piece
        events: list[Event] = []
        while self._step(events):
            pass
        return events

    def finish(self) -> list[Event]:
        events: list[Event] = []
        while self._body is not None or self._held:
            held, self._held = self._held, ""  # within a call, an end mark that was cut off
            if self._body is None:
                events += self._channel.write(held)
                continue
            self._end("", events, last=True)
            if self._held:
                self._held += held
            while self._step(events):
                pass
        return events + self._channel.finish()

    def _step(self, events: list[Event]) -> bool:
        """Take what is certain from the held text, up to the first mark and with it. False when more text is needed."""
        if self._body is None and self._begins_bare():
            self._channel.mark()
            self._start(marked=False)
            self._bare = ""
        marks = self._outer if self._body is None else self._inner
        found = marks.first(self._held)
        end = found[0] if found else len(self._held) - marks.unfinished(self._held)
        before, self._held = self._held[:end], self._held[end:]
        if self._body is None:
            events += self._channel.write(before)
        elif self._add(before):
            return True
        if found is None:
            return False
        self._held = self._held[len(found[1]) :]
        self._pass(found[1], events)
        return True

    def _begins_bare(self) -> bool:
        """Whether a call without marks may begin here: nothing but white space came before."""
        text = self._held.lstrip()
        return bool(text and text[0] in self._bare and self._channel is self._text and not self._text.begun)

    def _start(self, marked: bool = True) -> None:
        self._body, self._doubt, self._inside, self._marked = "", False, 0, marked

    def _add(self, text: str) -> bool:
        """Add to the call's body. True when it turns out to be none."""
        body = self._body or ""
        self._body = body + text
        never = self._calls and self._calls.never
        if len(body) >= _HEAD or not never or not never.match(self._body[:_HEAD]):
            return False
        self._give_up("", "no call begins so")
        return True

    def _pass(self, mark: str, events: list[Event]) -> None:
        if self._body is not None:
            self._end(mark, events)
            return
        self._channel.mark()
        if self._calls and mark in self._calls.starts and self._broken < _PATIENCE:
            self._start()
        elif self._thinking and mark in (self._thinking.open, self._thinking.close):
            self._channel = self._reasoning if mark == self._thinking.open else self._text
            self._channel.mark()

    def _end(self, mark: str, events: list[Event], last: bool = False) -> None:
        """A mark in a call, or the end of the answer: the call is whole, or goes on behind the mark, or is none."""
        calls, body = self._calls, self._body or ""
        assert calls is not None
        starts = mark in calls.starts
        try:
            found, rest = calls.read(body, self._schemas)
            if calls.closed and (starts or last):
                raise Broken("it has no end")
        except Unfinished as error:
            if last or (starts and self._doubt) or self._inside == _INSIDE:
                self._give_up(mark, str(error))
            else:
                self._body, self._inside = body + mark, self._inside + 1
                self._doubt = self._doubt or not starts
        except Broken as error:
            self._give_up(mark, str(error))
        else:
            events += [call for one in found for call in self._call(one)]
            self._body = None
            self._held = rest + mark + self._held if rest or starts else self._held

    def _call(self, call: Call) -> list[Event]:
        assert self._calls is not None
        self._called += 1
        if self._called > 1 and self._calls.single:
            log.warning("%s", t("server.one_call", style=self._calls.name, name=call.name))
            return []
        return [Call(call.name, call.arguments, call.id or self._calls.new_id())]

    def _give_up(self, mark: str, reason: str) -> None:
        """The body is no call: what comes after its start mark is text, in which other marks may stand."""
        assert self._calls is not None
        if self._marked and self._body and self._body.strip():
            log.warning("%s", t("server.broken_call", style=self._calls.name, reason=reason))
        self._broken += 1
        self._held = (self._body or "") + mark + self._held
        self._body = None
