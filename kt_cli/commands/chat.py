"""`kt chat`: talk to a running server."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.main import get_command

from kt_cli import answer, choose, client, keys, output, pictures, servers
from kt_cli.help import Command, new_app
from kt_core import config
from kt_core.errors import KTError, NotFound
from kt_core.messages import t

app = new_app("chat.help")


@app.command(cls=Command, help="chat.help", epilog="chat.examples")
def chat(
    ctx: typer.Context,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="chat.prompt", metavar="TEXT")] = None,
    file: Annotated[list[Path] | None, typer.Option("--file", "-f", help="chat.file", metavar="FILE")] = None,
    image: Annotated[list[str] | None, typer.Option("--image", help="chat.image", metavar="IMAGE")] = None,
    go_on: Annotated[bool, typer.Option("--continue", "-c", help="chat.continue")] = False,
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
    no_save: Annotated[bool, typer.Option("--no-save", help="chat.no_save")] = False,
) -> None:
    once = prompt is not None or bool(file) or not sys.stdin.isatty()
    if url is None and not once and not servers.running() and choose.can_ask() and choose.agree(t("chat.start_one")):
        start_one(ctx)
        return
    api, model, context = _where(url, model)
    options = answer.options(temperature, max_tokens)
    if image:
        pictures.check(api, model)
    images = [pictures.load(name) for name in image or []]
    if once:
        question = answer.assembled(prompt, file or [])
        with answer.advice("chat.too_long_once"):
            answer.once(api, model, question, system, options, images)
        return
    converse(api, model, context, options, system=system, raw=raw, save=not no_save, go_on=go_on, images=images)


def converse(
    api: client.Api,
    model: str,
    context: int,
    options: client.Options,
    *,
    system: str | None = None,
    raw: bool = False,
    save: bool = True,
    go_on: bool = False,
    images: list[pictures.Picture] | None = None,
) -> None:
    """A conversation on the terminal, until the user leaves it. With `go_on` the newest kept one is taken up. `images` go
    along with the first question."""
    from kt_cli.chat import commands, saved
    from kt_cli.chat.loop import talk
    from kt_cli.chat.session import Chat

    system = config.get("chat.system") if system is None else system
    file = saved.new_file() if save and config.get("chat.save") else None
    conversation = Chat(api, model, options, system, raw, context, file=file, images=images or [])
    output.status(t("chat.welcome", model=model, url=api.url))
    if go_on:
        kept = saved.newest(1)
        if not kept:
            raise NotFound("saved.none")
        commands.take_up(conversation, kept[0])
    talk(conversation)


def start_one(ctx: typer.Context) -> None:
    """The questions of `kt run`, as if that had been typed."""
    from kt_cli.commands.run import app as run

    command = get_command(run)
    with command.make_context("run", [], parent=ctx.parent) as below:
        command.invoke(below)


def _where(url: str | None, model: str | None) -> tuple[client.Api, str, int]:
    """The server, the model to talk to, and how many tokens it holds (0: not known)."""
    if url is None:
        url = _server(model).url
    api = client.Api(url.rstrip("/").removesuffix("/v1"), keys.own())
    offered = client.models(api)
    if model is None and offered:
        model = next(iter(offered))
    if model not in offered:
        raise NotFound("chat.no_model", model=model, url=url, offered=output.listed(offered))
    return api, model, offered[model]


def _server(model: str | None) -> servers.Server:
    """A server that runs here: the one with `model`; of several, the one that is chosen, or the newest."""
    ready = servers.ready()
    found = [server for server in ready if model in (None, server.model)]
    if not found and model and ready:
        raise NotFound("chat.no_such_server", model=model, running=output.listed(s.model for s in ready))
    if not found and (loading := servers.running()):
        raise KTError("chat.still_loading", model=loading[0].model, url=loading[0].url)
    if not found:
        raise NotFound("chat.no_server", model=model or "demo")
    return choose.one_of(found)
