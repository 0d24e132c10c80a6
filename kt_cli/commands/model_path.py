"""`kt model path`: where a model is, and the folders that are searched for models."""

from pathlib import Path
from typing import Annotated, Any

import typer

from kt_cli import help, output
from kt_cli.help import Command
from kt_core import config, paths
from kt_core.errors import NotFound, UsageError
from kt_core.messages import t

FOLDERS = "paths.searched"  # the setting


class Paths(help.Group):
    """A word that is none of its commands is a model's name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = args[0].startswith("-") or self.get_command(ctx, args[0]) is not None
        return super().resolve_command(ctx, args if known else ["of", *args])


app = typer.Typer(
    cls=Paths, help="model.path_help", epilog="model.path_examples", add_completion=False, rich_markup_mode=None
)
Folder = Annotated[Path, typer.Argument(help="model.searched_folder", metavar="DIR")]


@app.command("of", cls=Command, help="model.path_of_help", epilog="model.path_examples")
def of(name: Annotated[str, typer.Argument(help="model.pulled_name", metavar="NAME")]) -> None:
    from kt_core import models

    files = models.resolve(name)
    output.result({"name": files.name, "path": files.path, "files": files.files}, lambda: files.path)


@app.command("list", cls=Command, help="model.path_list_help", epilog="model.path_examples")
def list_() -> None:
    """A folder that is not there now, as of a disk that is not mounted, is shown and not dropped."""
    from kt_core.models import store

    models = store.list_models()
    data: list[dict[str, Any]] = []
    for folder in (store.models_dir(), *store.searched()):
        count = sum(folder in model.path.parents for model in models)
        data.append({"path": folder, "models": count, "missing": not paths.exists(folder), "downloads": not data})
    rows = [(str(row["path"]), _told(row)) for row in data]
    output.result({"folders": data}, lambda: output.table(rows), names=[str(row["path"]) for row in data])


@app.command("add", cls=Command, help="model.path_add_help", epilog="model.path_examples")
def add(folder: Folder) -> None:
    place = _place(folder)
    if not place.is_dir():
        raise NotFound("model.no_folder", folder=folder)
    if "," in str(place):
        raise UsageError("model.path_comma", folder=place)
    before = _now()
    _change(before if str(place) in before else [*before, str(place)])


@app.command("remove", cls=Command, help="model.path_remove_help", epilog="model.path_examples")
def remove(folder: Folder) -> None:
    before, gone = _now(), {str(folder), str(_place(folder))}
    left = [place for place in before if place not in gone]
    if left == before:
        raise NotFound("model.path_unknown", folder=folder, folders=output.listed(before) or "-")
    _change(left)


def _place(folder: Path) -> Path:
    return paths.expanded(folder).absolute()


def _now() -> list[str]:
    return [word.strip() for word in config.get(FOLDERS).split(",") if word.strip()]


def _change(folders: list[str]) -> None:
    from kt_core.models import store

    if folders:
        config.set(FOLDERS, ",".join(folders))
    else:
        config.unset(FOLDERS)
    output.result({"searched": folders, "file": paths.config_file()}, lambda: "", names=())
    output.status(t("model.path_changed", folders=output.listed(map(str, (store.models_dir(), *folders)))))


def _told(row: dict[str, Any]) -> str:
    told = t("model.path_missing") if row["missing"] else t("model.path_there", count=row["models"])
    return t("model.path_downloads", told=told) if row["downloads"] else told
