"""docs/cli.md and docs/config.md, generated from the command tree and the table of settings.

`python -m kt_cli.docs --write` writes them; a test fails when they are out of date.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from kt_cli import flags, help, tree
from kt_core import config, errors
from kt_core.messages import set_language, t

FOLDER = Path(__file__).parent.parent / "docs"
EXIT_CODES = {
    0: "docs.code_done",
    errors.KTError.exit_code: "docs.code_failed",
    errors.UsageError.exit_code: "docs.code_usage",
    errors.DoesNotFit.exit_code: "docs.code_fit",
    errors.NotFound.exit_code: "docs.code_found",
    errors.BadData.exit_code: "docs.code_data",
    errors.EnvironmentProblem.exit_code: "docs.code_environment",
    errors.Unsupported.exit_code: "docs.code_unsupported",
    130: "docs.code_interrupted",
}


def cli_page() -> str:
    nodes = list(tree.walk())
    parts = [f"# {t('docs.cli_title')}", t("docs.cli_intro"), f"## {t('docs.global_options')}"]
    shared = [param for param in nodes[0].options if param.name in help.GLOBAL]
    parts.append(_table(("docs.option", "docs.meaning"), [(help.option_name(p), help.option_help(p)) for p in shared]))
    parts += [part for node in nodes[1:] for part in _command(node)]
    codes = [(str(code), t(key)) for code, key in EXIT_CODES.items()]
    parts += [f"## {t('docs.exit_codes')}", _table(("docs.code", "docs.meaning"), codes)]
    return "\n\n".join(parts) + "\n"


def config_page() -> str:
    rows = [(s.key, config.describe(s), _default(s), s.env, t(s.help)) for s in config.SETTINGS]
    header = ("docs.setting", "docs.takes", "docs.default", "docs.environment", "docs.meaning")
    parts = [f"# {t('docs.config_title')}", t("docs.config_intro"), _table(header, rows)]
    return "\n\n".join([*parts, f"```toml\n{t('docs.config_example')}\n```"]) + "\n"


PAGES = {"cli.md": cli_page, "config.md": config_page, "flags.md": flags.page}


def _command(node: tree.Node) -> Iterator[str]:
    yield f"{'#' * (1 + len(node.words))} kt {' '.join(node.words)}"
    yield t(node.command.help).replace("\n", "\n\n")
    yield f"```\n{help.usage(node.command, node.ctx)}\n```"
    rows = [(help.argument_name(param), t(param.help)) for param in node.arguments]
    own = [param for param in node.options if param.name not in (*help.GLOBAL, "help")]
    rows += [(help.option_name(param), help.option_help(param)) for param in own]
    if rows:
        yield _table(("docs.option", "docs.meaning"), rows)
    if node.command.epilog:
        yield f"```sh\n{t(node.command.epilog)}\n```"


def _default(setting: config.Setting) -> str:
    return t("docs.unset") if setting.default == "" else str(setting.default)


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A markdown table; the first column is code."""

    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    titles = tuple(t(key) for key in header)
    body = [line((f"`{row[0]}`", *row[1:])) for row in rows]
    return "\n".join([line(titles), "|" + " --- |" * len(titles), *body])


def write(folder: Path = FOLDER) -> None:
    """Write every page, in English, to `folder`."""
    set_language("en")
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(t("docs.usage"))
    write()
