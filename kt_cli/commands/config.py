"""`kt config`: read and change the settings."""

import os
from typing import Annotated, Any

import typer

from kt_cli import output
from kt_cli.help import Command, new_app
from kt_core import config, paths
from kt_core.messages import t

app = new_app("cli.config_help")
ORIGINS = {
    "default": "cli.origin_default",
    "file": "cli.origin_file",
    "environment": "cli.origin_environment",
}

Key = Annotated[str, typer.Argument(help="cli.config_key", metavar="KEY")]


@app.command("get", cls=Command, help="cli.config_get_help", epilog="cli.config_examples")
def get(key: Key) -> None:
    settings = config.load()
    value = settings.get(key)
    output.result({"key": key, "value": value, "origin": settings.origin(key)}, lambda: shown(value))


@app.command("set", cls=Command, help="cli.config_set_help", epilog="cli.config_examples")
def set_(key: Key, value: Annotated[str, typer.Argument(help="cli.config_value", metavar="VALUE")]) -> None:
    stored = config.set(key, value)
    entry = config.setting(key)
    output.result({"key": key, "value": stored, "file": paths.config_file()}, lambda: "", names=())
    output.status(t("cli.config_stored", name=key, value=_quoted(_masked(entry, stored)), file=paths.config_file()))
    if os.environ.get(entry.env):
        output.warn(t("cli.config_shadowed", env=entry.env))


@app.command("unset", cls=Command, help="cli.config_unset_help", epilog="cli.config_examples")
def unset(key: Key) -> None:
    config.unset(key)
    entry = config.setting(key)
    value = config.get(key)
    output.result({"key": key, "value": _masked(entry, value), "file": paths.config_file()}, lambda: "", names=())
    output.status(t("cli.config_unset", name=key, value=_quoted(_masked(entry, value)), file=paths.config_file()))


@app.command("list", cls=Command, help="cli.config_list_help", epilog="cli.config_examples")
def list_() -> None:
    settings = config.load()
    data = [
        {"key": entry.key, "value": _masked(entry, settings.get(entry.key)), "origin": settings.origin(entry.key)}
        for entry in config.SETTINGS
    ]
    header = tuple(map(t, ("cli.column_setting", "cli.column_value", "cli.column_origin", "cli.column_meaning")))
    meaning = {entry.key: t(entry.help) for entry in config.SETTINGS}
    rows = [(d["key"], _quoted(d["value"]), t(ORIGINS[d["origin"]]), meaning[d["key"]]) for d in data]
    output.result(
        {"settings": data},
        lambda: output.table(rows, header),
        names=[entry.key for entry in config.SETTINGS],
    )


@app.command("path", cls=Command, help="cli.config_path_help", epilog="cli.config_examples")
def path() -> None:
    file = paths.config_file()
    output.result({"path": file, "exists": file.exists()}, lambda: str(file))


def shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(value: Any) -> str:
    """A value within other text, where an empty one would not be seen."""
    return shown(value) or '""'


def _masked(entry: config.Setting, value: Any) -> Any:
    """A secret is shown by `kt config get` only."""
    return t("cli.hidden_value") if entry.secret and value else value
