"""Flags of other programs on kt's command line, and the page that lists them."""

from collections.abc import Sequence
from typing import Any

from kt_cli import output
from kt_cli.help import Command
from kt_core import flags
from kt_core.errors import UsageError
from kt_core.flags import Flag
from kt_core.messages import t
from kt_core.types import Plan

_KEY = "kt.flags"
_PASTED = "--from"


class Launching(Command):
    """A command that starts or plans a server: it takes the flags of SGLang and KTransformers beside its own options."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        names = [name for param in self.get_params(ctx) for name in (*param.opts, *param.secondary_opts)]
        if "--json" in args:  # before the parser can see it, a flag may be refused
            output.configure(json=True)
        done = flags.translate(_unpacked(args, names), names)
        ctx.meta[_KEY] = done
        return super().parse_args(ctx, done.words)


def _unpacked(args: Sequence[str], names: Sequence[str]) -> list[str]:
    """The words with a pasted command's own in place of it, for the commands that take one."""
    if _PASTED not in names:
        return list(args)
    found: list[str] = []
    left = list(args)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if name != _PASTED or not (equals or left):
            found.append(word)
        else:
            found += flags.command_line(value if equals else left.pop(0))
    return found


def wishes(ctx: Any) -> dict[str, Any]:
    """What the flags wish of the plan, by the names of its decisions; notes on flags without effect are told."""
    done: flags.Translated = ctx.meta[_KEY]
    for note in done.notes:
        output.warn(note)
    return dict(done.wishes)


def warn_of_idle(plan: Plan, wishes: dict[str, Any]) -> None:
    """Say which flags about GPUs do nothing in a plan for the CPU alone."""
    from kt_core.plan import devices  # not on the way to a help page

    idle = [flags.OF_DECISION[name] for name in devices.WISHES if wishes.get(name) is not None]
    chosen = {decision.name: decision.value for decision in plan.decisions}
    if idle and not chosen.get("devices"):
        output.warn(t("flags.have_no_effect", names=output.listed(idle)))


def notes(ctx: Any) -> list[str]:
    """Those notes, for a document."""
    done: flags.Translated = ctx.meta[_KEY]
    return list(done.notes)


def page() -> str:
    """docs/flags.md."""
    parts = [f"# {t('flags.page_title')}", t("flags.page_intro")]
    for title, table in (
        ("flags.page_kt", flags.KT_FLAGS),
        ("flags.page_server", flags.SERVER_FLAGS),
        ("flags.page_own", flags.OWN_FLAGS),
    ):
        parts += [f"## {t(title)}", _table(table)]
    return "\n\n".join(parts) + "\n"


def _table(table: Sequence[Flag]) -> str:
    titles = [t(key) for key in ("flags.column_flag", "flags.column_use", "flags.column_becomes", "flags.column_why")]
    rows = [[_names(flag), t(_USES[flag.use]), _becomes(flag), t(flag.note)] for flag in table]
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


_USES = {flags.USED: "flags.used", flags.IGNORED: "flags.ignored", flags.REFUSED: "flags.refused_word"}


def _names(flag: Flag) -> str:
    first = f"{flag.name} {flag.takes}".rstrip()
    return ", ".join(f"`{name}`" for name in (first, *flag.also))


def _becomes(flag: Flag) -> str:
    if flag.kind == flags.OPTION:
        return f"`{flag.to}`"
    if flag.kind in (flags.MODEL, flags.WEIGHTS):
        return t("flags.the_model")
    return t("flags.decision", name=flag.to) if flag.kind == flags.WISH else ""


def unknown(name: str, options: Sequence[str], command: str) -> UsageError:
    """The error for an option that neither kt nor the table of flags has."""
    near = flags.near(name, options)
    key = "cli.unknown_option_near" if near else "cli.unknown_option"
    return UsageError(key, name=name, command=command, options=output.listed(near))
