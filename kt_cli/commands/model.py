"""`kt model`: what is on this disk, fetching and deleting."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kt_cli import output, servers
from kt_cli.help import Command, new_app
from kt_core.errors import KTError, UsageError
from kt_core.messages import t

app = new_app("model.help")

Name = Annotated[str, typer.Argument(help="model.name", metavar="NAME")]
AnyName = Annotated[str, typer.Argument(help="model.any_name", metavar="NAME")]
PulledName = Annotated[str, typer.Argument(help="model.pulled_name", metavar="NAME")]


@app.command("list", cls=Command, help="model.list_help", epilog="model.examples")
def list_(
    pulled: Annotated[bool, typer.Option("--pulled", help="model.pulled")] = False,
    known: Annotated[bool, typer.Option("--known", help="model.known")] = False,
) -> None:
    if known:
        from kt_cli import model_show

        shapes = model_show.known()
        output.result({"models": shapes}, lambda: model_show.known_table(shapes), names=[row["name"] for row in shapes])
        return
    data = [entry for entry in _entries() if entry["pulled"] or not pulled]
    header = tuple(
        t(key) for key in ("model.column_name", "model.column_size", "model.column_format", "model.column_about")
    )
    output.result(
        {"models": data},
        lambda: output.table([_row(entry) for entry in data], header),
        names=[entry["name"] for entry in data],
    )


@app.command("pull", cls=Command, help="model.pull_help", epilog="model.examples")
def pull(name: Name) -> None:
    from kt_core.models import store

    with output.progress() as report:
        files = store.pull(name, report)
    output.result({"name": files.name, "path": files.path}, lambda: files.path)


@app.command("path", cls=Command, help="model.path_help", epilog="model.examples")
def path(name: PulledName) -> None:
    from kt_core import models

    files = models.resolve(name)
    output.result({"name": files.name, "path": files.path, "files": files.files}, lambda: files.path)


@app.command("show", cls=Command, help="model.show_help", epilog="model.show_examples")
def show(name: AnyName, hub: Annotated[bool, typer.Option("--hub", help="model.hub")] = False) -> None:
    from kt_cli import model_show

    data = model_show.found(name, hub)
    output.result(data, lambda: model_show.shown(data), names=[data["name"]])


@app.command("rm", cls=Command, help="model.rm_help", epilog="model.examples")
def rm(name: PulledName, yes: Annotated[bool, typer.Option("--yes", "-y", help="model.yes")] = False) -> None:
    from kt_core.models import store

    pulled = {entry.path: entry.bytes for entry in store.list_models()}
    folder = store.path(name)
    if folder is not None and (server := servers.using(folder)):
        raise KTError("model.in_use", name=folder.name, url=server.url, pid=server.pid)
    if folder is not None and not yes:
        _confirm(t("model.confirm", folder=folder, size=output.size(pulled.get(folder, 0))))
    removed = store.remove(name)
    output.result({"removed": removed}, lambda: "", names=())
    output.status(t("model.removed", folder=removed))


def _confirm(question: str) -> None:
    """Ask on the terminal; raises typer.Exit for a no, UsageError where there is nobody to ask."""
    if not sys.stdin.isatty() or not sys.stdout.isatty() or output.is_json():
        raise UsageError("cli.confirm_needs_yes")
    import questionary

    if not questionary.confirm(question, default=False).unsafe_ask():
        output.status(t("model.kept"))
        raise typer.Exit(1)


def _entries() -> list[dict[str, Any]]:
    """Pulled models, then the registered ones that are not pulled."""
    from kt_core.models import registry, store

    found: list[dict[str, Any]] = []
    for pulled in store.list_models():
        known = registry.find(pulled.name)
        about = t(known.description) if known else _made_of(pulled.path)
        form = _format(pulled.path)
        found.append(
            {
                "name": pulled.name,
                "pulled": True,
                "bytes": pulled.bytes,
                "download_bytes": 0,
                "format": form,
                "about": about,
                "path": pulled.path,
            }
        )
    names = {entry["name"].casefold() for entry in found}
    for entry in registry.ENTRIES:
        if entry.name.casefold() not in names:
            form = entry.file.rpartition(".")[2]
            found.append(
                {
                    "name": entry.name,
                    "pulled": False,
                    "bytes": entry.bytes,
                    "download_bytes": entry.download,
                    "format": form,
                    "about": t(entry.description),
                    "path": None,
                }
            )
    return found


def _made_of(folder: Path) -> str:
    """What `kt quant` made the folder of; empty for others, damaged labels included."""
    try:
        label = json.loads((folder / "kt.json").read_text(encoding="utf-8"))
        return t("model.made_of", method=label["method"], source=label["source"]["path"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _format(folder: Any) -> str:
    """The stored format of a pulled model; empty for one that is damaged, which `list` must survive."""
    from kt_core.models.files import local_files

    try:
        return local_files(folder).format
    except KTError:
        return ""


def _row(entry: dict[str, Any]) -> tuple[str, str, str, str]:
    size = output.size(entry["bytes"] if entry["pulled"] else entry["download_bytes"])
    shown = size if entry["pulled"] else t("model.not_pulled", size=size)
    return entry["name"], shown, entry["format"], entry["about"]
