"""Help text in the reader's language.

The command tree carries message keys where other programs carry text, so one tree serves every
language; this file turns a command into the page that a person reads.
"""

import sys
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from kt_cli import elsewhere, output
from kt_core.errors import UsageError
from kt_core.flags import MOST_DIGITS
from kt_core.messages import t

GLOBAL = ("json", "quiet", "color")  # options that every command takes
MAX_WIDTH = 100
LEFT = 30  # cells of the left column; a longer name gets its own line
BELOW = 6  # cells that text below its name is indented by


class Command(TyperCommand):
    """A command whose help strings are message keys."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(page(self, ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """As the parser does; an option without its value knows its command, and takes no other option for the value."""
        try:
            rest = super().parse_args(ctx, args)
        except Exception as failure:
            if getattr(failure, "ctx", ctx) is None:
                failure.ctx = ctx  # type: ignore[attr-defined]
            raise
        known = {name for param in options(self, ctx) for name in (*param.opts, *param.secondary_opts)}
        for param in options(self, ctx):
            value = ctx.params.get(param.name)
            given = value if isinstance(value, list | tuple) else [value]
            name, command = max(param.opts, key=len), " ".join(path_of(ctx))
            if not known.isdisjoint(map(str, given)):  # "-p --json" asks nobody about "--json"
                raise UsageError("cli.needs_value", name=name, command=command)
            if any(isinstance(number, int) and abs(number) >= 10**MOST_DIGITS for number in given):
                expected = t("cli.at_most", digits=MOST_DIGITS)
                raise UsageError("cli.bad_value", name=name, expected=expected, command=command)
        return rest


class Group(TyperGroup):
    """A group of commands whose help strings are message keys; a wrong name gets near ones."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(page(self, ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            from difflib import get_close_matches

            group, known = " ".join(path_of(ctx)), self.list_commands(ctx)
            here = elsewhere.COMMANDS.get(group, {}).get(name.casefold())
            if here:
                raise UnknownName("cli.called_here", name, group, [here])
            near = get_close_matches(name, known, n=2, cutoff=0.6)
            raise UnknownName("cli.unknown_command_near" if near else "cli.unknown_command", name, group, near or known)
        return super().resolve_command(ctx, args)


class UnknownName(Exception):
    """No such command in a group. `key` is the message that says so, with the commands that may be meant."""

    def __init__(self, key: str, name: str, group: str, options: list[str]) -> None:
        super().__init__(name)
        self.key, self.name, self.group, self.options = key, name, group, options


def new_app(help: str) -> typer.Typer:
    """A Typer application for one command file; `help` is a message key."""
    return typer.Typer(cls=Group, help=help, add_completion=False, rich_markup_mode=None, no_args_is_help=False)


def path_of(ctx: Any) -> list[str]:
    """The words that lead to a command: ["kt", "model", "pull"]."""
    words: list[str] = []
    while ctx is not None:
        words.insert(0, ctx.info_name or "")
        ctx = ctx.parent
    return words


def summary(key: str) -> str:
    """The first line of a help text."""
    return t(key).partition("\n")[0]


def page(command: Any, ctx: Any) -> str:
    """The help page of a command or group."""
    width = min(output.width(sys.stdout), MAX_WIDTH)
    parts = [f"{t('cli.usage')}{usage(command, ctx)}\n"]
    parts.append("\n".join(line for text in t(command.help).split("\n") for line in output.wrap(text, width)) + "\n")
    if command.epilog:
        lines = "\n".join(f"  {line}" for line in t(command.epilog).split("\n"))
        parts.append(f"{t('cli.examples')}\n{lines}\n")
    for title, rows in sections(command, ctx):
        if rows:
            parts.append(f"{t(title)}\n" + "\n".join(columns(rows, width)) + "\n")
    return "\n".join(parts).rstrip("\n")


def usage(command: Any, ctx: Any) -> str:
    """The one-line synopsis."""
    words = path_of(ctx)
    words += [argument_name(param) for param in arguments(command)]
    if isinstance(command, TyperGroup):
        words.append(t("cli.command_word"))
    return " ".join([*words, t("cli.options_word")])


def sections(command: Any, ctx: Any) -> list[tuple[str, list[tuple[str, str]]]]:
    """(title key, rows of name and text) for all that a help page lists."""
    subcommands = []
    if isinstance(command, TyperGroup):
        names = command.list_commands(ctx)
        found = [(name, help_key(command, ctx, name)) for name in names]
        subcommands = [(name, summary(key)) for name, key in found]
    own = [param for param in options(command, ctx) if param.name not in GLOBAL]
    shared = [param for param in options(command, ctx) if param.name in GLOBAL]
    return [
        ("cli.arguments", [(argument_name(param), t(param.help)) for param in arguments(command)]),
        ("cli.commands", subcommands),
        ("cli.options", [(option_name(param), option_help(param)) for param in own]),
        ("cli.global_options", [(option_name(param), option_help(param)) for param in shared]),
    ]


def help_key(group: Any, ctx: Any, name: str) -> str:
    """The message key of a subcommand's help; a lazy group knows it without loading the command."""
    keys: dict[str, str] = getattr(group, "help_keys", {})
    return keys[name] if name in keys else str(group.get_command(ctx, name).help)


def arguments(command: Any) -> list[Any]:
    return [param for param in command.params if param.param_type_name == "argument" and not param.hidden]


def options(command: Any, ctx: Any) -> list[Any]:
    """Visible options, --help included."""
    return [p for p in command.get_params(ctx) if p.param_type_name == "option" and not p.hidden]


def argument_name(param: Any) -> str:
    name = str(param.metavar or param.name.upper())
    return name if param.required else f"[{name}]"


def option_name(param: Any) -> str:
    """ "-p, --prompt TEXT"; short forms first."""
    names = ", ".join(sorted([*param.opts, *param.secondary_opts], key=lambda name: (name.startswith("--"), name)))
    return names if param.is_flag else f"{names} {param.metavar}"


def option_help(param: Any) -> str:
    return t("cli.help_option") if "--help" in param.opts else t(param.help)


def columns(rows: list[tuple[str, str]], width: int) -> Iterator[str]:
    """Name and wrapped text side by side, or the text below the name where the terminal is narrow."""
    left = min(max(output.cells(name) for name, _ in rows) + 4, LEFT)
    if width - left < output.LEAST_WIDTH:
        left = BELOW
    for name, text in rows:
        lines = output.wrap(text, width - left)
        if output.cells(name) + 4 > left:
            yield f"  {name}"
            yield " " * left + lines[0]
        else:
            yield f"  {name}" + " " * (left - 2 - output.cells(name)) + lines[0]
        yield from (" " * left + line for line in lines[1:])
