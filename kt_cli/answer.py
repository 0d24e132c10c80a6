"""One answer from a server, shown as it comes."""

import sys
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

from kt_cli import client, output
from kt_core import config
from kt_core.errors import UsageError


@dataclass(frozen=True)
class Answer:
    """What came of a question. `stopped` when Ctrl-C ended it early."""

    text: str
    stats: client.Stats
    stopped: bool = False


class Writer(Protocol):
    """Shows the text of an answer."""

    def feed(self, text: str) -> None: ...
    def close(self) -> None: ...


class Raw:
    """Text as it is."""

    def __init__(self) -> None:
        self.last = ""

    def feed(self, text: str) -> None:
        self.last = text or self.last
        output.text(text)

    def close(self) -> None:
        if self.last and not self.last.endswith("\n"):
            output.text("\n")


class Silent:
    """Nothing: the answer is shown as one JSON document."""

    def feed(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


def writer(raw: bool) -> Writer:
    """Markdown on a terminal, text elsewhere and where it is asked for."""
    if output.is_json():
        return Silent()
    if raw or not output.is_terminal(sys.stdout):
        return Raw()
    from kt_cli.markdown import Writer as Markdown

    return Markdown(output.console())


def options(temperature: float | None, max_tokens: int | None) -> client.Options:
    """Flags before settings."""
    temperature = temperature if temperature is not None else config.get("chat.temperature")
    return client.Options(temperature, max_tokens or config.get("chat.max_tokens") or None)


def stream(api: client.Api, model: str, messages: list[client.Message], opts: client.Options, out: Writer) -> Answer:
    """Ask, and show the answer through `out`. Ctrl-C stops the answer and is told in the result."""
    stats = client.Stats(time.monotonic())
    pieces: list[str] = []
    thinking = _Thinking()
    stopped = False
    clean = output.printable if output.is_terminal(sys.stdout) else str
    try:
        with closing(client.chat(api, model, messages, opts)) as parts:
            for part in parts:
                stats.add(part)
                thinking.feed(clean(part.reasoning))
                if part.text:
                    thinking.close()
                    pieces.append(part.text)
                    out.feed(clean(part.text))
    except KeyboardInterrupt:
        stopped = True
    finally:
        thinking.close()
        out.close()
    return Answer("".join(pieces), stats, stopped)


class _Thinking:
    """Reasoning text: dim on a terminal, left out elsewhere."""

    def __init__(self) -> None:
        self.open = False

    def feed(self, text: str) -> None:
        if text and not output.is_json() and output.is_terminal(sys.stdout):
            self.open = True
            output.text(output.paint(text, "dim", sys.stdout))

    def close(self) -> None:
        if self.open:
            output.text("\n\n")
        self.open = False


def once(api: client.Api, model: str, question: str, system: str | None, opts: client.Options) -> None:
    """One question, one answer: its text on stdout, its figures on stderr. Raises KeyboardInterrupt when stopped."""
    out: Writer = Silent() if output.is_json() else Raw()
    answer = stream(api, model, conversation(system, question), opts, out)
    if answer.stopped:
        raise KeyboardInterrupt
    if output.is_json():
        output.document({"model": model, "answer": answer.text, **answer.stats.data()})
    else:
        output.muted(answer.stats.line())


def conversation(system: str | None, question: str) -> list[client.Message]:
    """The messages of a first question. None takes the setting's system prompt; an empty one has none."""
    system = config.get("chat.system") if system is None else system
    first: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": question}]


def check_question(question: str) -> str:
    """The question; an empty one is an error."""
    if not question.strip():
        raise UsageError("client.empty_question")
    return question
