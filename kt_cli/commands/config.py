"""`kt config`: read and change the settings."""

import os
import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from kt_cli import choose, editor, output, profiles
from kt_cli.help import Command, new_app
from kt_core import config, paths
from kt_core.errors import BadData, KTError
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
    removed = config.unset(key)
    entry = config.setting(key)
    value, file = _masked(entry, config.get(key)), paths.config_file()
    output.result({"key": key, "value": value, "file": file, "removed": removed}, lambda: "", names=())
    said = "cli.config_unset" if removed else "cli.config_not_set"
    output.status(t(said, name=key, value=_quoted(value), file=file, origin=t(ORIGINS[config.origin(key)])))


@app.command("edit", cls=Command, help="cli.config_edit_help", epilog="cli.config_examples")
def edit() -> None:
    """A draft is edited, and taken over only when it is right."""
    file = paths.config_file()
    before = _text(file)
    text = before
    with TemporaryDirectory(prefix="kt-") as folder:  # of mode 0700: the settings may hold the API key
        draft = Path(folder) / file.name
        while True:
            text = editor.compose(text, draft)
            if text.strip() == before.strip():
                output.status(t("cli.config_unchanged", file=file))
                return
            try:
                config.replace(draft)
            except BadData as failure:
                if not choose.can_ask():
                    raise
                output.error(failure)
                if not choose.agree(t("cli.config_again")):
                    raise typer.Exit(failure.exit_code) from None
            else:
                output.status(t("cli.config_edited", file=file))
                return


def _text(file: Path) -> str:
    """What there is to edit: the file, also a broken one, or a template. Raises BadData for one that cannot be read."""
    try:
        return file.read_text(encoding="utf-8-sig", errors="replace") if paths.exists(file) else _template()
    except OSError as error:
        raise BadData("config.unreadable", file=file, reason=error.strerror or error) from error


def _template() -> str:
    """Every setting as a comment, with its default and meaning."""
    lines: list[str] = []
    for entry in config.SETTINGS:
        section, name = entry.key.split(".")
        if f"[{section}]" not in lines:
            lines += ["", f"[{section}]"]
        value = f'"{entry.default}"' if isinstance(entry.default, str) else shown(entry.default)
        lines += [f"# {t(entry.help)}", f"# {name} = {value}"]
    return "\n".join(lines).lstrip() + "\n"


@app.command("show", cls=Command, help="cli.config_show_help", epilog="cli.config_examples")
def show(origin: Annotated[bool, typer.Option("--origin", help="cli.config_origin")] = False) -> None:
    """What is in force, as the settings file would say it."""
    settings = config.load()
    found = {
        entry.key: (_masked(entry, settings.get(entry.key)), settings.origin(entry.key)) for entry in config.SETTINGS
    }
    data = [
        {"key": key, "value": value, **({"origin": where} if origin else {})} for key, (value, where) in found.items()
    ]
    rows = [
        (f"{key} = {_quoted(value)}", *((t(ORIGINS[where]),) if origin else ()))
        for key, (value, where) in found.items()
    ]
    output.result({"settings": data}, lambda: output.table(rows), names=list(found))


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


@app.command("profiles", cls=Command, help="cli.config_profiles_help", epilog="cli.config_examples")
def profiles_() -> None:
    """The profiles of kt run; one that is not right is listed with the reason."""
    names = profiles.names()
    data = [{"name": f"{profiles.MARK}{name}", "file": str(profiles.file(name)), **_line(name)} for name in names]
    rows = [(row["name"], row["command"] or row["error"]) for row in data]
    output.result({"profiles": data}, lambda: output.table(rows) if rows else "", names=[row["name"] for row in data])
    if not data:
        output.status(t("cli.no_profiles"))


def _line(name: str) -> dict[str, str]:
    try:
        return {"command": shlex.join(["kt", "run", *profiles.words(name)]), "error": ""}
    except KTError as failure:
        return {"command": "", "error": str(failure)}


@app.command("path", cls=Command, help="cli.config_path_help", epilog="cli.config_examples")
def path() -> None:
    file = paths.config_file()
    output.result({"path": file, "exists": paths.exists(file)}, lambda: str(file))


def shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(value: Any) -> str:
    """A value within other text, where an empty one would not be seen."""
    return shown(value) or '""'


def _masked(entry: config.Setting, value: Any) -> Any:
    """A secret is shown by `kt config get` only."""
    return t("cli.hidden_value") if entry.secret and value else value
