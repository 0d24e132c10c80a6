"""A conversation: where it is held, what was said, and one more answer."""

from dataclasses import dataclass, field
from pathlib import Path

from kt_cli import answer, client, output, pictures
from kt_cli.chat import saved
from kt_core.errors import KTError
from kt_core.messages import t


@dataclass
class Totals:
    """Figures of all answers so far."""

    answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    used: int = 0  # tokens of the context that the last answer left behind it

    def add(self, stats: client.Stats) -> None:
        self.answers += 1
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
            setattr(self, name, getattr(self, name) + getattr(stats, name))
        self.used = stats.prompt_tokens + stats.completion_tokens


@dataclass
class Chat:
    """A conversation and where it is held."""

    api: client.Api
    model: str
    options: client.Options
    system: str
    raw: bool = False
    context: int = 0  # tokens that the model holds; 0: not known
    thinking: bool = True  # whether reasoning is shown
    file: Path | None = None  # where the conversation is kept
    messages: list[client.Message] = field(default_factory=list)  # without the system prompt
    attached: list[str] = field(default_factory=list)  # texts that go along with the next question
    images: list[pictures.Picture] = field(default_factory=list)  # the same
    totals: Totals = field(default_factory=Totals)
    done: bool = False

    def all_messages(self) -> list[client.Message]:
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.messages]

    def keep(self) -> None:
        """Write the conversation to its file; one that cannot be written is kept no longer, which is said once."""
        if self.file is None or not self.messages:
            return
        try:
            saved.write(self.file, self.model, self.all_messages())
        except KTError as failure:
            self.file = None
            output.warn(*failure.lines())

    def turns(self) -> int:
        return sum(message["role"] == "user" for message in self.messages)


def ask(chat: Chat, question: str) -> None:
    """Put a question, with what is attached to it."""
    text = "\n\n".join([question, *chat.attached])
    chat.messages.append({"role": "user", "content": pictures.content(text, chat.images)})
    if reply(chat):
        chat.attached.clear()
        chat.images.clear()


def reply(chat: Chat) -> bool:
    """Answer the last question. False when it failed, which leaves the conversation as it was before."""
    try:
        answer.check_question(pictures.text_of(chat.messages[-1]["content"]))
        with answer.advice("chat.too_long"):
            out = answer.writer(chat.raw)
            got = answer.stream(chat.api, chat.model, chat.all_messages(), chat.options, out, chat.thinking)
    except KTError as failure:
        chat.messages.pop()
        output.error(failure)
        return False
    if got.text:
        chat.messages.append({"role": "assistant", "content": got.text})
        chat.keep()
    else:
        chat.messages.pop()
    if got.stopped:
        output.muted(t("chat.stopped"))
    else:
        chat.totals.add(got.stats)
        output.muted(got.stats.line(chat.context))
    return True
