"""`kt model`: what is on this disk, fetching and deleting."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kt_cli import choose, found_models, output, servers
from kt_cli.commands import model_path
from kt_cli.help import Command, new_app
from kt_core import paths
from kt_core.errors import BadData, KTError, NotFound, UsageError
from kt_core.messages import t

if TYPE_CHECKING:
    from kt_core.models.registry import Entry
    from kt_core.models.sources import Source

app = new_app("model.help")
STATES = {
    "ok": "model.state_ok",
    "missing": "model.state_missing",
    "size": "model.state_size",
    "content": "model.state_content",
    "unknown": "model.state_unknown",
}

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
    data = [entry for entry in found_models.entries() if entry["pulled"] or not pulled]
    header = tuple(
        t(key) for key in ("model.column_name", "model.column_size", "model.column_format", "model.column_about")
    )
    output.result(
        {"models": data},
        lambda: output.table([_row(entry) for entry in data], header),
        names=[entry["name"] for entry in data],
    )


@app.command("pull", cls=Command, help="model.pull_help", epilog="model.pull_examples")
def pull(
    name: Annotated[str, typer.Argument(help="model.pull_name", metavar="NAME")],
    include: Annotated[list[str] | None, typer.Option("--include", help="model.include", metavar="PATTERN")] = None,
    exclude: Annotated[list[str] | None, typer.Option("--exclude", help="model.exclude", metavar="PATTERN")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="model.dry_run")] = False,
) -> None:
    from kt_core.models import registry, sources, store

    entry = registry.find(name)
    if entry and (include or exclude):
        raise UsageError("model.no_patterns", name=entry.name)
    found = None if entry else sources.find(name, include or (), exclude or ())
    if dry_run:
        _would_pull(found, entry)
        return
    with output.progress() as report:
        files = sources.pull(found, report) if found else store.pull(name, report)
    output.result({"name": files.name, "path": files.path}, lambda: files.path, names=[files.name])


def _would_pull(found: "Source | None", entry: "Entry | None") -> None:
    """What a pull would download, and whether there is room for it."""
    from kt_core.machine.folder import free_bytes
    from kt_core.models import store

    folder, sizes = "", {}
    if entry:
        folder, sizes = entry.name, {entry.file: entry.download}
    elif found:
        folder, sizes = found.folder, {file.name: file.size for file in found.files}
    target, total, free = store.models_dir() / folder, sum(sizes.values()), free_bytes(store.models_dir())
    files = [{"file": file, "bytes": size} for file, size in sizes.items()]
    data = {"name": folder, "folder": target, "files": files, "bytes": total, "free": free, "there": target.exists()}
    told = t("model.would_pull", count=len(files), size=output.size(total), folder=target, free=output.size(free))
    rows = [(file, output.size(size)) for file, size in sizes.items()]
    output.result(data, lambda: output.table(rows) + f"\n{output.folded(told, sys.stdout)}", names=list(sizes))


@app.command("verify", cls=Command, help="model.verify_help", epilog="model.verify_examples")
def verify(name: PulledName, repair: Annotated[bool, typer.Option("--repair", help="model.repair")] = False) -> None:
    from kt_core.models import repository, sources

    with output.progress() as report:
        found = repository.verify(name, report)
        broken = [check.file for check in found if check.state not in (repository.OK, repository.UNKNOWN)]
        if broken and repair:
            sources.repair(name, broken, report)
            found = repository.verify(name, report)
    left = [check.file for check in found if check.state not in (repository.OK, repository.UNKNOWN)]
    rows = [(check.file, output.size(check.bytes), t(STATES[check.state])) for check in found]
    data = {"name": name, "files": found, "broken": left, "repaired": broken if repair else []}
    output.result(data, lambda: output.table(rows), names=left)
    if left:
        output.status(t("model.broken", count=len(left), name=name))
        raise typer.Exit(BadData.exit_code)
    output.status(t("model.repaired" if broken else "model.whole", count=len(broken)))


@app.command("add", cls=Command, help="model.add_help", epilog="model.add_examples")
def add(
    name: Annotated[str, typer.Argument(help="model.new_name", metavar="NAME")],
    source: Annotated[str, typer.Argument(help="model.source", metavar="SOURCE")],
    like: Annotated[str | None, typer.Option("--like", help="model.like", metavar="NAME")] = None,
    alias: Annotated[list[str] | None, typer.Option("--alias", help="model.alias", metavar="WORD")] = None,
) -> None:
    from kt_core.models import catalogue, files

    found_models.new_name(name)
    more = {"like": like, "aliases": alias}
    if files.repository(source):
        place = {"repo": source}
    else:
        place = {"path": str(paths.expanded(source).absolute())}
        files.local_files(Path(place["path"]))  # raises for what is no model
    file = catalogue.add(name, {**place, **{key: value for key, value in more.items() if value}})
    output.result({"name": name, **place, "file": file}, lambda: "", names=[name])
    output.status(t("model.is_added", name=name, file=file))


@app.command("scan", cls=Command, help="model.scan_help", epilog="model.add_examples")
def scan(
    folder: Annotated[Path, typer.Argument(help="model.scan_folder", metavar="DIR")],
    add: Annotated[bool, typer.Option("--add", help="model.scan_add")] = False,
) -> None:
    from kt_core.models import catalogue

    if not folder.is_dir():
        raise NotFound("model.no_folder", folder=folder)
    found = found_models.scan(paths.expanded(folder).absolute())
    rows = [(one.name, output.size(one.bytes), one.format, one.problem or one.path) for one in found]
    output.result({"models": found}, lambda: output.table(rows) if rows else "", names=[one.name for one in found])
    if not found:
        output.status(t("model.none_found", folder=folder))
    known = {entry["name"].casefold() for entry in found_models.entries()}
    new = [one for one in found if not one.problem and one.name.casefold() not in known]
    for one in new if add else []:
        catalogue.add(found_models.new_name(one.name), {"path": one.path})
        output.status(t("model.is_added", name=one.name, file=paths.models_file()))


app.add_typer(model_path.app, name="path")


@app.command("show", cls=Command, help="model.show_help", epilog="model.show_examples")
def show(name: AnyName, hub: Annotated[bool, typer.Option("--hub", help="model.hub")] = False) -> None:
    from kt_cli import model_show

    data = model_show.found(name, hub)
    output.result(data, lambda: model_show.shown(data), names=[data["name"]])


@app.command("rm", cls=Command, help="model.rm_help", epilog="model.examples")
def rm(
    name: PulledName,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="model.rm_dry_run")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="model.yes")] = False,
) -> None:
    from kt_core.models import catalogue, store

    if dry_run:
        _would_remove(name)
        return
    if name in catalogue.own() and store.path(name) is None:
        file = catalogue.forget(name)
        output.result({"forgotten": name, "file": file}, lambda: "", names=())
        output.status(t("model.forgotten", name=name, file=file))
        return
    pulled = {entry.path: entry.bytes for entry in store.list_models()}
    folder = store.path(name)
    if folder is not None and (server := servers.using(folder)):
        raise KTError("model.in_use", name=folder.name, url=server.url, pid=server.pid)
    if folder is not None and not yes:
        _confirm(t("model.confirm", folder=folder, size=output.size(pulled.get(folder, 0))))
    removed = store.remove(name)
    output.result({"removed": removed}, lambda: "", names=())
    output.status(t("model.removed", folder=removed))


def _would_remove(name: str) -> None:
    """What rm would do: forget a name, or delete a folder or a link. Raises NotFound as rm does."""
    from kt_core.models import catalogue, store

    folder = store.path(name)
    if folder is None and name in catalogue.own():
        told = t("model.would_forget", name=name, file=paths.models_file())
        output.result({"forgotten": name, "file": paths.models_file()}, lambda: told, names=[name])
        return
    if folder is None:
        raise store.not_pulled(name)
    if folder.parent != store.models_dir():
        raise KTError("models.only_searched", folder=folder)
    size = 0 if folder.is_symlink() else {entry.path: entry.bytes for entry in store.list_models()}[folder]
    told = t("model.would_remove", folder=folder, size=output.size(size))
    output.result({"removed": folder, "bytes": size}, lambda: told, names=[str(folder)])


def _confirm(question: str) -> None:
    """Ask on the terminal; raises typer.Exit for a no, UsageError where there is nobody to ask."""
    if not choose.can_ask():
        raise UsageError("cli.confirm_needs_yes")
    if not choose.agree(question, default=False):
        output.status(t("model.kept"))
        raise typer.Exit(1)


def _row(entry: dict[str, Any]) -> tuple[str, str, str, str]:
    if entry["missing"]:
        return entry["name"], "-", entry["format"], entry["about"]
    size = output.size(entry["bytes"] if entry["pulled"] else entry["download_bytes"])
    shown = size if entry["pulled"] else t("model.not_pulled", size=size)
    return entry["name"], shown, entry["format"], entry["about"]
