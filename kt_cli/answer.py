"""One answer from a server, shown as it comes."""

import errno
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kt_cli import client, output, pictures, terminal
from kt_core import config, paths
from kt_core.errors import BadData, NotFound, RemoteError, UsageError
from kt_core.messages import t


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
    return client.Options(temperature, max_tokens or config.get("chat.max_tokens") or None, config.get("chat.top_p"))


def stream(
    api: client.Api,
    model: str,
    messages: list[client.Message],
    opts: client.Options,
    out: Writer,
    show_thinking: bool = True,
) -> Answer:
    """Ask, and show the answer through `out`. Ctrl-C stops the answer and is told in the result."""
    stats = client.Stats(time.monotonic())
    pieces: list[str] = []
    thinking = _Thinking(show_thinking)
    stopped = False
    clean = output.printable if output.is_terminal(sys.stdout) else str
    with terminal.no_echo() if output.is_terminal(sys.stdout) else nullcontext():
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
    """Reasoning text: dim on a terminal, or one line in its place that goes when it ends; left out elsewhere."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        self.open = False

    def feed(self, text: str) -> None:
        if not text or output.is_json() or not output.is_terminal(sys.stdout):
            return
        if self.shown or not self.open:
            output.text(output.paint(text if self.shown else t("chat.thinks"), "dim", sys.stdout))
        self.open = True

    def close(self) -> None:
        if self.open:
            output.text("\n\n" if self.shown else "\r\x1b[2K")
        self.open = False


def once(
    api: client.Api,
    model: str,
    question: str,
    system: str | None,
    opts: client.Options,
    images: Iterable[pictures.Picture] = (),
) -> None:
    """One question, one answer: its text on stdout, its figures on stderr. Raises KeyboardInterrupt when stopped."""
    answer = stream(api, model, conversation(system, pictures.content(question, images)), opts, writer(raw=False))
    if answer.stopped:
        raise KeyboardInterrupt
    if output.is_json():
        output.document({"model": model, "answer": answer.text, **answer.stats.data()})
    else:
        output.muted(answer.stats.line())


def conversation(system: str | None, question: pictures.Content) -> list[client.Message]:
    """The messages of a first question. None takes the setting's system prompt; an empty one has none."""
    system = config.get("chat.system") if system is None else system
    first: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": question}]


def assembled(prompt: str | None, files: list[Path]) -> str:
    """The question from its parts: the prompt ("-": standard input) and files; standard input where there are none.

    A single file without a prompt is the question itself. Raises UsageError, NotFound and BadData.
    """
    stdin = Path("-")
    if prompt is None and not files:
        return question_from_stdin()
    if [prompt or "", *map(str, files)].count("-") > 1:
        raise UsageError("client.two_stdin")
    if prompt is None and len(files) == 1:
        return question_from_stdin() if files[0] == stdin else check_question(_text_of(files[0]))
    texts = [f"```\n{question_from_stdin()}\n```" if file == stdin else attachment(file) for file in files]
    if prompt is not None:
        texts.insert(0, question_from_stdin() if prompt == "-" else check_question(prompt))
    return "\n\n".join(texts)


def attachment(file: Path) -> str:
    """A file as it goes along with a question: its name and its text. Raises NotFound and BadData."""
    text = _text_of(file)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{file.name}:\n{fence}\n{text.rstrip()}\n{fence}"


def _text_of(file: Path) -> str:
    try:
        return paths.text(file)
    except FileNotFoundError as error:
        raise NotFound("client.no_file", file=file) from error
    except (OSError, ValueError) as error:
        raise BadData("client.bad_file", file=file, reason=getattr(error, "strerror", None) or error) from error


def question_from_stdin() -> str:
    """All of standard input, checked."""
    try:
        text = sys.stdin.read(paths.MOST_BYTES)
        if len(text) == paths.MOST_BYTES:
            raise BadData("client.bad_file", file="-", reason=os.strerror(errno.EFBIG))
        return check_question(text)
    except UnicodeDecodeError as error:
        raise _not_text(error.encoding, error.start) from error


def check_question(question: str) -> str:
    """The question. Raises UsageError for an empty one, and for bytes that Python could not decode."""
    if not question.strip():
        raise UsageError("client.empty_question")
    try:
        question.encode()
    except UnicodeEncodeError as error:  # lone surrogates stand for such bytes
        raise _not_text("utf-8", error.start) from error
    return question


def _not_text(encoding: str, position: int) -> UsageError:
    return UsageError("client.not_text", encoding=encoding.upper(), position=position + 1)


@contextmanager
def advice(key: str) -> Iterator[None]:
    """Within this block a prompt that is too long gets the advice `key`, which fits the command that runs."""
    try:
        yield
    except client.Refused as refused:
        if refused.code != client.TOO_LONG:
            raise
        what, why, _ = refused.lines()
        raise RemoteError(what, why, t(key)) from refused
