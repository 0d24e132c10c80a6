"""The `kt` command: the command tree, and the one place where failures become words and exit codes."""

import errno
import io
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from kt_cli import elsewhere, help, output, terminal
from kt_core import paths
from kt_core.errors import KTError, UsageError
from kt_core.messages import set_language, t

# name -> message key of its help. A command is one file kt_cli/commands/<name>.py with an `app`.
COMMANDS: dict[str, str] = {
    "run": "run.help",
    "plan": "plan.help",
    "chat": "chat.help",
    "ps": "servers.ps_help",
    "stop": "servers.stop_help",
    "logs": "servers.logs_help",
    "model": "model.help",
    "config": "cli.config_help",
    "quant": "quant.help",
    "sft": "sft.help",
    "doctor": "doctor.help",
    "bench": "bench.help",
    "tune": "tune.help",
    "microbench": "microbench.help",
    "version": "cli.version_help",
    "completion": "completion.help",
}
COLORS = ("auto", "always", "never")
# A path that a person gave which cannot be used as it was: what the system says of it is the whole story.
UNUSABLE = (
    errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP,
)  # fmt: skip
# Limits of the system: files, processes, memory.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what a disk, a quota or a limit on files that takes no more says
SCARCE = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)


class Root(help.Group):
    """The top of the tree. A command's file is imported when the command is used."""

    help_keys = COMMANDS

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        command = get_command(import_module(f"kt_cli.commands.{cmd_name}").app)
        command.name = cmd_name
        self._share(command)
        return command

    def _share(self, command: Any) -> None:
        """Let `command` and what is below it take the global options too."""
        command.params.extend(param for param in self.params if param.name in help.GLOBAL)
        for below in getattr(command, "commands", {}).values():
            self._share(below)


def _set_json(value: bool) -> None:
    if value:
        output.configure(json=True)


def _set_quiet(value: bool) -> None:
    if value:
        output.configure(quiet=True)


def _set_color(value: str | None) -> None:
    if value is None:
        return
    if value not in COLORS:
        raise typer.BadParameter(t("cli.one_of", choices=output.listed(COLORS)))
    output.configure(color=value)


def _root(
    ctx: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="cli.json", callback=_set_json)] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="cli.quiet", callback=_set_quiet)] = False,
    color: Annotated[
        str | None, typer.Option("--color", help="cli.color", metavar="|".join(COLORS), callback=_set_color)
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="cli.version_option")] = False,
) -> None:
    if version:
        from kt_cli.commands.version import show

        show()
    elif ctx.invoked_subcommand is None:
        output.text(ctx.get_help() + "\n")


def command_tree() -> Any:
    """The root command. Help strings in it are message keys."""
    app = typer.Typer(
        cls=Root,
        help="cli.help",
        epilog="cli.help_examples",
        invoke_without_command=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    root = get_command(app)
    for param in root.params:
        if param.name in help.GLOBAL:
            param.expose_value = False  # their callbacks do all; subcommands share these objects
    return root


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    terminal.open_streams()
    terminal.catch_signals()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a character that the locale lacks is no failure
    sys.exit(run(sys.argv[1:] if args is None else list(args)))


def run(args: list[str]) -> int:
    """Run one command line; returns the exit code. Every failure is shown here and nowhere else."""
    unusable = None
    try:
        _check_text(args)
        unusable = _apply_settings()
        root = command_tree()
        with root.make_context("kt", args) as ctx:
            root.invoke(ctx)
        sys.stdout.flush()
        _warn_of(unusable)
        return 0
    except typer.Exit as done:
        _warn_of(None if done.exit_code else unusable)
        return done.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # the reader has had enough, as `| head` does
        terminal.silence(sys.stdout.fileno())
        return 0
    except OSError as failure:
        if failure.errno in SCARCE:
            output.error(KTError("cli.scarce", reason=failure.strerror))
            return 1
        if failure.errno in UNUSABLE and failure.filename is not None:
            _debug()
            output.error(KTError("cli.unusable", file=failure.filename, reason=failure.strerror))
            return 1
        if failure.errno not in FULL:
            return _other(failure, args)
        terminal.silence(sys.stdout.fileno())  # what is still buffered would fail again at the end
        output.error(KTError("output.full"))
        return 1
    except KTError as failure:
        _debug()
        output.error(failure)
        return failure.exit_code
    except Exception as failure:
        return _other(failure, args)


def _check_text(args: list[str]) -> None:
    """Raises UsageError for a word that is not UTF-8: neither a request nor a plan, both JSON, could hold it."""
    for word in args:
        try:
            word.encode()
        except UnicodeEncodeError:
            output.configure(json="--json" in args)
            raise UsageError("cli.not_text", word=word.encode(errors="replace").decode()) from None


def _apply_settings() -> KTError | None:
    """Language and colour from the settings. The reason when they cannot be read: some commands need none."""
    from kt_core import config

    try:
        settings = config.load()
    except KTError as failure:
        return failure
    if settings.origin("general.language") != "environment":
        language = settings.get("general.language")
        set_language(None if language == "auto" else language)
    output.configure(color=settings.get("general.color"))
    return None


def _warn_of(unusable: KTError | None) -> None:
    """Tell a person whose command went well without the settings that they are not in force."""
    if unusable:
        output.warn(*unusable.lines())


def _other(failure: Exception, args: list[str]) -> int:
    """The parser's words for a wrong command line; anything else is a fault of kt's own, told in one sentence."""
    wrong = usage_error(failure)
    if wrong:
        if "--json" in args:
            output.configure(json=True)
        output.error(wrong)
        return wrong.exit_code
    _debug()
    try:
        log = paths.state_dir() / "logs" / "crash.log"
    except KTError:  # no home folder
        log = Path(tempfile.mkdtemp(prefix="kt-")) / "crash.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(traceback.format_exc(), encoding="utf-8")
    except OSError:
        pass  # a full or read-only disk must not hide the failure itself
    output.error(KTError("cli.unexpected", reason=f"{type(failure).__name__}: {failure}", log=log))
    return 1


def _debug() -> None:
    if os.environ.get("KT_DEBUG") == "1":
        sys.stderr.write(traceback.format_exc())


def usage_error(failure: Exception) -> UsageError | None:
    """A parser's exception in kt's words, with near names; None when it is not one.

    The parser's exceptions are told apart by class name: Typer carries its own copy of Click, whose
    classes are private.
    """
    if isinstance(failure, help.UnknownName):
        return UsageError(failure.key, name=failure.name, group=failure.group, options=output.listed(failure.options))
    kinds = [kind.__name__ for kind in type(failure).__mro__]
    if "UsageError" not in kinds:
        return None
    ctx, message = getattr(failure, "ctx", None), str(getattr(failure, "message", failure))
    command = " ".join(help.path_of(ctx)) or "kt"
    if "NoSuchOption" in kinds:
        return _unknown_option(str(getattr(failure, "option_name", "")), ctx, command)
    if "MissingParameter" in kinds:
        about = t(failure.param.help)  # type: ignore[attr-defined]
        return UsageError(
            "cli.missing", name=_param_name(failure), about=about[:1].lower() + about[1:], command=command
        )
    if "BadParameter" in kinds:
        expected = _expected(failure) or message
        return UsageError("cli.bad_value", name=_param_name(failure), expected=expected, command=command)
    if "BadOptionUsage" in kinds:
        key = "cli.takes_no_value" if "does not take" in message else "cli.needs_value"
        return UsageError(key, name=getattr(failure, "option_name", ""), command=command)
    extra = re.search(r"unexpected extra argument.*?\(([^()]*)\)$", message)
    if extra:
        return UsageError("cli.extra_argument", words=extra.group(1), command=command)
    if ctx and "Missing command" in message:
        return UsageError("cli.missing_command", command=command, options=output.listed(ctx.command.list_commands(ctx)))
    return UsageError("cli.other_usage", message=message, command=command)


def _unknown_option(name: str, ctx: Any, command: str) -> UsageError:
    from difflib import get_close_matches

    here = elsewhere.OPTIONS.get(command, {}).get(name)
    if here:
        return UsageError("cli.option_here", name=name, command=command, here=here)
    known = (
        [opt for param in ctx.command.get_params(ctx) for opt in (*param.opts, *param.secondary_opts)] if ctx else []
    )
    if command in ("kt run", "kt plan"):
        from kt_cli import flags

        return flags.unknown(name, known, command)
    near = get_close_matches(name, known, n=2, cutoff=0.6)
    if near:
        return UsageError("cli.unknown_option_near", name=name, command=command, options=output.listed(near))
    return UsageError("cli.unknown_option", name=name, command=command)


def _param_name(failure: Any) -> str:
    param = getattr(failure, "param", None)
    if param is None:
        return str(getattr(failure, "param_hint", ""))
    return max(param.opts, key=len) if param.param_type_name == "option" else help.argument_name(param)


def _expected(failure: Any) -> str:
    """What a parameter takes, from its type and bounds; empty when only the parser's own words are known."""
    param: Any = getattr(failure, "param", None)
    names = {int: "cli.whole_number", float: "cli.number"}
    kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    if kind not in names:
        return ""
    text = t(names[kind])
    if param.min is not None and param.max is not None:
        return t("cli.between", kind=text, low=param.min, high=param.max)
    return t("cli.at_least", kind=text, low=param.min) if param.min is not None else text
