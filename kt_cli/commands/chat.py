"""`kt chat`: talk to a running server."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from kt_cli import answer, client, keys, output, servers
from kt_cli.help import Command, new_app
from kt_core import config, paths
from kt_core.errors import KTError, NotFound
from kt_core.messages import t

PROMPT, MORE = ">>> ", "... "
QUOTES = '"""'

app = new_app("chat.help")


@dataclass
class Chat:
    """A conversation and where it is held."""

    api: client.Api
    model: str
    options: client.Options
    system: str
    raw: bool
    messages: list[client.Message] = field(default_factory=list)  # without the system prompt
    done: bool = False

    def all_messages(self) -> list[client.Message]:
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.messages]


@app.command(cls=Command, help="chat.help", epilog="chat.examples")
def chat(
    url: Annotated[str | None, typer.Option("--url", help="chat.url", metavar="URL")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="chat.model", metavar="NAME")] = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="chat.system", metavar="TEXT")] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", "-t", help="chat.temperature", metavar="NUMBER", min=0, max=2)
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="chat.max_tokens", metavar="COUNT", min=1)
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="chat.raw")] = False,
) -> None:
    api, model = _where(url, model)
    options = answer.options(temperature, max_tokens)
    if not sys.stdin.isatty():
        with answer.advice("chat.too_long_once"):
            answer.once(api, model, answer.question_from_stdin(), system, options)
        return
    system = config.get("chat.system") if system is None else system
    conversation = Chat(api, model, options, system, raw)
    output.status(t("chat.welcome", model=model, url=api.url))
    _loop(conversation)


def _where(url: str | None, model: str | None) -> tuple[client.Api, str]:
    """The server and the model to talk to."""
    key = keys.own()
    if url is None:
        server = servers.find(model)
        if server is None and model and (others := servers.running()):
            raise NotFound("chat.no_such_server", model=model, running=output.listed(s.model for s in others))
        if server is None:
            raise NotFound("chat.no_server", model=model or "demo")
        url = server.url
    api = client.Api(url.rstrip("/").removesuffix("/v1"), key)
    offered = client.models(api)
    if model is None and offered:
        return api, offered[0]
    if model not in offered:
        raise NotFound("chat.no_model", model=model, url=url, offered=output.listed(offered))
    return api, model


def _loop(chat: Chat) -> None:
    """Read, answer, repeat. Ctrl-D ends it; so does Ctrl-C twice at an empty prompt, with code 130."""
    read = _reader()
    warned = False
    while not chat.done:
        try:
            line = _question(read)
        except EOFError:
            return
        except _Emptied:  # Ctrl-C with something typed throws that away and no more
            warned = False
            continue
        except KeyboardInterrupt:
            if warned:
                raise
            warned = True
            output.muted(t("chat.again"))
            continue
        warned = False
        if line.startswith("/"):
            _command(chat, line)
        elif line.strip():
            chat.messages.append({"role": "user", "content": line})
            _answer(chat)


class _Emptied(Exception):
    """Ctrl-C at a prompt with text in it."""


def _reader() -> Callable[[str], str]:
    """A function that shows a prompt and returns a line; it raises EOFError and KeyboardInterrupt."""
    if not output.is_terminal(sys.stdout):

        def plain(prompt: str) -> str:
            sys.stderr.write(prompt)
            sys.stderr.flush()
            line = sys.stdin.readline()
            if not line:
                raise EOFError
            return line.removesuffix("\n")

        return plain
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    history = _history_file()
    session: PromptSession[str] = PromptSession(
        history=FileHistory(str(history)) if history else InMemoryHistory(),
        completer=WordCompleter(list(COMMANDS), sentence=True),
        complete_while_typing=False,
        enable_open_in_editor=True,
    )

    def edited(prompt: str) -> str:
        try:
            return session.prompt(prompt)
        except KeyboardInterrupt:
            if session.default_buffer.text:
                raise _Emptied from None
            raise

    return edited


def _history_file() -> Path | None:
    """Where typed lines are kept, readable by their owner only; None where nothing can be written."""
    file = paths.state_dir() / "chat_history"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError:
        return None
    return file


def _question(read: Callable[[str], str]) -> str:
    '''One question: a line, or several between """ and """.'''
    line = read(PROMPT)
    if not line.startswith(QUOTES):
        return line
    line = line.removeprefix(QUOTES)
    while not line.rstrip().endswith(QUOTES):
        line += "\n" + read(MORE)
    return line.rstrip().removesuffix(QUOTES).strip("\n")


def _answer(chat: Chat) -> None:
    """Answer the last question. A question that fails leaves the conversation as it was before."""
    try:
        answer.check_question(chat.messages[-1]["content"])
        with answer.advice("chat.too_long"):
            got = answer.stream(chat.api, chat.model, chat.all_messages(), chat.options, answer.writer(chat.raw))
    except KTError as failure:
        chat.messages.pop()
        output.error(failure)
        return
    if got.text:
        chat.messages.append({"role": "assistant", "content": got.text})
    else:
        chat.messages.pop()
    output.muted(t("chat.stopped") if got.stopped else got.stats.line())


# ---- commands: name -> (help key, function of the conversation and the rest of the line)


def _help(chat: Chat, rest: str) -> None:
    rows = [(name, t(key)) for name, (key, _) in COMMANDS.items()]
    output.status(output.table([*rows, (QUOTES, t("chat.help_quotes")), ("Ctrl-C", t("chat.help_interrupt"))]))


def _clear(chat: Chat, rest: str) -> None:
    chat.messages.clear()
    output.muted(t("chat.cleared"))


def _exit(chat: Chat, rest: str) -> None:
    chat.done = True


def _system(chat: Chat, rest: str) -> None:
    if rest:
        chat.system = rest
        output.muted(t("chat.system_set"))
    else:
        output.status(chat.system or t("chat.system_none"))


def _retry(chat: Chat, rest: str) -> None:
    if chat.messages and chat.messages[-1]["role"] == "assistant":
        chat.messages.pop()
    if chat.messages:
        _answer(chat)
    else:
        output.status(t("chat.nothing_to_retry"))


def _save(chat: Chat, rest: str) -> None:
    """Write the conversation beside the target and rename; an existing file is not replaced."""
    if not rest:
        output.status(t("chat.save_where"))
        return
    file = paths.expanded(rest)
    if paths.exists(file):
        output.status(t("chat.save_exists", file=file))
        return
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    data = {"model": chat.model, "messages": chat.all_messages()}
    try:
        beside.write_text(json.dumps(data, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        beside.replace(file)
    except (
        OSError,
        ValueError,
    ) as error:  # ValueError: text or a name that cannot be written, such as half a character
        with suppress(OSError, ValueError):
            beside.unlink(missing_ok=True)
        output.error(KTError("chat.save_failed", file=file, reason=getattr(error, "strerror", None) or error))
        return
    output.muted(t("chat.saved", file=file))


COMMANDS: dict[str, tuple[str, Callable[[Chat, str], None]]] = {
    "/help": ("chat.help_help", _help),
    "/clear": ("chat.help_clear", _clear),
    "/system": ("chat.help_system", _system),
    "/retry": ("chat.help_retry", _retry),
    "/save": ("chat.help_save", _save),
    "/exit": ("chat.help_exit", _exit),
}
ALSO = {"/quit": "/exit", "/bye": "/exit", "/q": "/exit", "/?": "/help"}  # what other programs call them


def _command(chat: Chat, line: str) -> None:
    name, _, rest = line.strip().partition(" ")
    name = ALSO.get(name, name)
    if name in COMMANDS:
        COMMANDS[name][1](chat, rest.strip())
        return
    from difflib import get_close_matches

    near = get_close_matches(name, list(COMMANDS), n=1, cutoff=0.5)
    output.status(t("chat.unknown_near", name=name, near=near[0]) if near else t("chat.unknown", name=name))
