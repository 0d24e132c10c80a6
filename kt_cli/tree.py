"""The command tree as data, for completion scripts and the generated documentation."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from typer.core import TyperGroup

from kt_cli import help
from kt_cli.main import command_tree
from kt_core import config
from kt_core.bench import job


@dataclass(frozen=True)
class Node:
    """One command: its words after `kt`, Typer's object, and the context that its help needs."""

    words: tuple[str, ...]
    command: Any
    ctx: Any

    @property
    def is_group(self) -> bool:
        return isinstance(self.command, TyperGroup)

    @property
    def children(self) -> list[str]:
        return self.command.list_commands(self.ctx) if self.is_group else []

    @property
    def options(self) -> list[Any]:
        return help.options(self.command, self.ctx)

    @property
    def arguments(self) -> list[Any]:
        return help.arguments(self.command)


def walk() -> Iterator[Node]:
    """Every command, parents before children, in the order of the help pages."""
    root = command_tree()
    yield from _walk((), root, root.context_class(root, info_name="kt", **root.context_settings))


def _walk(words: tuple[str, ...], command: Any, ctx: Any) -> Iterator[Node]:
    node = Node(words, command, ctx)
    yield node
    for name in node.children:
        child = command.get_command(ctx, name)
        below = child.context_class(child, info_name=name, parent=ctx, **child.context_settings)
        yield from _walk((*words, name), child, below)


def choices(param: Any) -> list[str]:
    """The words that a value may be: settings for a KEY, names of parsers and types for the options that take one, else
    those that its metavar lists: "auto|always|never"."""
    if param.name in ("tool_parser", "reasoning_parser"):
        from kt_core.server import parsers

        styles: Any = parsers.STYLES if param.name == "tool_parser" else parsers.THINKERS
        return [parsers.AUTO, parsers.NONE, *sorted(style.name for style in styles)]
    if param.name == "kv_dtype":
        return [word for word in config.setting("inference.kv_dtype").choices if word != "auto"]
    if param.name == "vs":
        return list(job.OPPONENTS)
    if param.metavar == "KEY":
        return [setting.key for setting in config.SETTINGS]
    return str(param.metavar).split("|") if param.metavar and "|" in param.metavar else []
