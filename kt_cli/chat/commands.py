"""What begins with a slash: each command is a function of the conversation and the rest of the line."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kt_cli import answer, client, editor, keys, output, pictures, servers, terminal
from kt_cli.chat import saved, session
from kt_cli.chat.prompt import QUOTES
from kt_core import paths
from kt_core.errors import BadData, KTError, NotFound
from kt_core.flags import whole
from kt_core.messages import t

LISTED = 10  # kept conversations that /load shows
OFF = "none"  # the word that leaves a parameter to the server
# parameter of an answer -> its type and bounds
PARAMETERS: dict[str, tuple[type, float, float]] = {
    "temperature": (float, 0, 2),
    "top_p": (float, 0, 1),
    "top_k": (int, 0, 1_000_000),
    "min_p": (float, 0, 1),
    "max_tokens": (int, 1, 10_000_000),
    "seed": (int, 0, 2**63 - 1),
}
# word of /think -> whether reasoning is shown, whether the model is told to reason; None leaves it as it is
THINKING = {"show": (True, None), "hide": (False, None), "on": (None, True), "off": (None, False)}


def is_command(line: str) -> bool:
    """A path such as /usr/bin is none."""
    return re.match(r"/[a-z?]+(\s|$)", line) is not None


def run(chat: session.Chat, line: str) -> None:
    name, _, rest = line.strip().partition(" ")
    name = ALSO.get(name, name)
    if name in COMMANDS:
        try:
            COMMANDS[name][1](chat, rest.strip())
        except KTError as failure:
            output.error(failure)
        return
    from difflib import get_close_matches

    near = get_close_matches(name, list(COMMANDS), n=1, cutoff=0.5)
    output.status(t("chat.unknown_near", name=name, near=near[0]) if near else t("chat.unknown", name=name))


def completions(chat: session.Chat) -> dict[str, Any]:
    """What may follow each command, for prompt_toolkit's NestedCompleter."""
    from prompt_toolkit.completion import PathCompleter

    files = PathCompleter(expanduser=True)
    return {
        **dict.fromkeys(COMMANDS),
        **dict.fromkeys(("/file", "/image", "/save", "/load"), files),
        "/set": dict.fromkeys(PARAMETERS),
        "/think": dict.fromkeys(THINKING),
        "/model": {chat.model: None, **{server.model: None for server in servers.ready()}},
    }


def _help(chat: session.Chat, rest: str) -> None:
    rows = [(name, t(key)) for name, (key, _) in COMMANDS.items()]
    typed = [(QUOTES, "chat.help_quotes"), ("Alt-Enter", "chat.help_newline"), ("Ctrl-C", "chat.help_interrupt")]
    output.status(output.table([*rows, *[(name, t(key)) for name, key in typed]]))


def _clear(chat: session.Chat, rest: str) -> None:
    """The conversation so far stays in its file, and a new one begins."""
    chat.messages.clear()
    chat.attached.clear()
    chat.images.clear()
    chat.totals = session.Totals()
    if chat.file:
        chat.file = saved.new_file()
    output.muted(t("chat.cleared"))


def _exit(chat: session.Chat, rest: str) -> None:
    chat.done = True


def _system(chat: session.Chat, rest: str) -> None:
    if rest:
        chat.system = rest
        output.muted(t("chat.system_set"))
    else:
        output.status(chat.system or t("chat.system_none"))


def _set(chat: session.Chat, rest: str) -> None:
    name, _, text = rest.partition(" ")
    if not name:
        rows = [(known, _shown(getattr(chat.options, known))) for known in PARAMETERS]
        output.status(output.table(rows))
        return
    if name not in PARAMETERS:
        raise NotFound("chat.no_parameter", name=name, known=output.listed(PARAMETERS))
    kind, low, high = PARAMETERS[name]
    try:
        value = None if text.strip() == OFF else kind(text)
    except ValueError:
        value = low - 1
    if value is not None and not low <= value <= high:
        raise BadData("chat.bad_parameter", name=name, low=f"{low:g}", high=f"{high:g}", value=text)
    chat.options = replace(chat.options, **{name: value})
    output.muted(t("chat.parameter_set", name=name, value=_shown(value)))


def _shown(value: Any) -> str:
    return t("chat.left_to_server") if value is None else str(value)


def _think(chat: session.Chat, rest: str) -> None:
    """Without a word: show it if it is hidden, and the other way round."""
    if rest and rest not in THINKING:
        raise NotFound("chat.no_thinking", word=rest, known=output.listed(THINKING))
    shown, wanted = THINKING[rest] if rest else (not chat.thinking, None)
    if shown is not None:
        chat.thinking = shown
        output.muted(t("chat.thinking_shown" if shown else "chat.thinking_hidden"))
    if wanted is not None:
        chat.options = replace(chat.options, enable_thinking=wanted)
        output.muted(t("chat.thinking_on" if wanted else "chat.thinking_off"))


def _retry(chat: session.Chat, rest: str) -> None:
    if chat.messages and chat.messages[-1]["role"] == "assistant":
        chat.messages.pop()
    if chat.messages:
        session.reply(chat)
    else:
        output.status(t("chat.nothing_to_retry"))


def _undo(chat: session.Chat, rest: str) -> None:
    while chat.messages and chat.messages.pop()["role"] != "user":
        pass
    chat.keep()
    output.muted(t("chat.undone", count=chat.turns()))


def _edit(chat: session.Chat, rest: str) -> None:
    with TemporaryDirectory(prefix="kt-") as folder:  # of mode 0700
        question = editor.compose(rest, Path(folder) / "question.md").strip("\n")
    if question.strip():
        output.status(question)
        session.ask(chat, question)
    else:
        output.muted(t("chat.edit_empty"))


def _file(chat: session.Chat, rest: str) -> None:
    if not rest:
        output.status(t("chat.file_which"))
        return
    chat.attached.append(answer.attachment(paths.expanded(rest)))
    output.muted(t("chat.attached", file=rest))


def _image(chat: session.Chat, rest: str) -> None:
    if not rest:
        output.status(t("chat.image_which"))
        return
    pictures.check(chat.api, chat.model)
    names = pictures.paths_in(rest)
    for name in names if pictures.is_nothing_else(rest, names) else [rest]:  # dropped on the terminal, or typed
        chat.images.append(pictures.load(name))
        output.muted(t("chat.attached", file=name))


def took_images(chat: session.Chat, line: str) -> bool:
    """Attach the images whose paths a question names, where the model sees images. True when it names nothing else: then
    there is no question yet."""
    names = pictures.paths_in(line)
    try:
        if not names or client.sees(chat.api, chat.model) is not True:
            return False
        chat.images += [pictures.load(name) for name in names]
    except KTError as failure:
        output.error(failure)
        return True
    alone = pictures.is_nothing_else(line, names)
    for name in names:
        output.muted(t("chat.attached" if alone else "chat.goes_along", file=name))
    return alone


def _save(chat: session.Chat, rest: str) -> None:
    """A copy; an existing file is not replaced."""
    if not rest:
        output.status(t("chat.save_where"))
        return
    file = paths.expanded(rest)
    if paths.exists(file):
        output.status(t("chat.save_exists", file=file))
        return
    saved.write(file, chat.model, chat.all_messages())
    output.muted(t("chat.saved", file=file))


def _copy(chat: session.Chat, rest: str) -> None:
    """The last answer, as it was written."""
    answers = [pictures.text_of(message["content"]) for message in chat.messages if message["role"] == "assistant"]
    if not answers:
        output.status(t("chat.nothing_to_copy"))
    elif terminal.copy(answers[-1]):
        output.muted(t("chat.copied", count=len(answers[-1])))
    else:
        output.status(t("chat.copy_no_terminal"))


def _load(chat: session.Chat, rest: str) -> None:
    kept = saved.newest(LISTED)
    if not rest:
        rows = [(str(number), found.model, found.title) for number, found in enumerate(kept, 1)]
        output.status(output.table(rows) if rows else t("chat.none_kept"))
        return
    number = whole(rest) or 0
    found = kept[number - 1] if 0 < number <= len(kept) else saved.read(paths.expanded(rest))
    take_up(chat, found)


def take_up(chat: session.Chat, found: saved.Conversation) -> None:
    """Go on with a kept conversation, in its own file where that is one of kt's."""
    first = 1 if found.system else 0
    chat.messages = [dict(message) for message in found.messages[first:]]
    chat.system = found.system or chat.system
    if chat.file:
        chat.file = found.file if found.file.parent == saved.folder() else saved.new_file()
    output.muted(t("chat.taken_up", title=found.title, count=chat.turns()))


def _stats(chat: session.Chat, rest: str) -> None:
    totals = chat.totals
    used = t("chat.stats_of", used=totals.used, context=chat.context) if chat.context else str(totals.used)
    rows = [
        (t("chat.stats_answers"), str(totals.answers)),
        (t("chat.stats_in"), str(totals.prompt_tokens)),
        (t("chat.stats_cached"), str(totals.cached_tokens)),
        (t("chat.stats_out"), str(totals.completion_tokens)),
        (t("chat.stats_context"), used),
    ]
    output.status(output.table(rows))


def _model(chat: session.Chat, rest: str) -> None:
    """Another model of this server, or of another one that runs here; the conversation goes along."""
    here = client.models(chat.api)
    others = {server.model: server for server in servers.ready()}
    if not rest:
        output.status("\n".join(f"{'*' if name == chat.model else ' '} {name}" for name in {**here, **others}))
        return
    if rest not in here and rest in others:
        chat.api = client.Api(others[rest].url, keys.own())
        here = client.models(chat.api)
    if rest not in here:
        raise NotFound("chat.no_model_here", model=rest, offered=output.listed({**here, **others}))
    chat.model, chat.context = rest, here[rest]
    output.muted(t("chat.now_with", model=rest, url=chat.api.url))


Action = Callable[[session.Chat, str], None]
COMMANDS: dict[str, tuple[str, Action]] = {
    "/help": ("chat.help_help", _help),
    "/clear": ("chat.help_clear", _clear),
    "/retry": ("chat.help_retry", _retry),
    "/undo": ("chat.help_undo", _undo),
    "/edit": ("chat.help_edit", _edit),
    "/file": ("chat.help_file", _file),
    "/image": ("chat.help_image", _image),
    "/system": ("chat.help_system", _system),
    "/set": ("chat.help_set", _set),
    "/think": ("chat.help_think", _think),
    "/model": ("chat.help_model", _model),
    "/copy": ("chat.help_copy", _copy),
    "/stats": ("chat.help_stats", _stats),
    "/save": ("chat.help_save", _save),
    "/load": ("chat.help_load", _load),
    "/exit": ("chat.help_exit", _exit),
}
ALSO = {"/quit": "/exit", "/bye": "/exit", "/q": "/exit", "/?": "/help"}  # what other programs call them
