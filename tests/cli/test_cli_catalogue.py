"""The catalogue: both languages complete, every key used exists, every key there is used, options exist."""

import ast
import re
import string
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from kt_cli import completion, docs, elsewhere, help, tree
from kt_core import config, flags, messages

ROOT = Path(__file__).parent.parent.parent
ROOMS = sorted(p.stem for p in (ROOT / "kt_core" / "messages").glob("*.py") if p.stem != "__init__")
CATALOGUE = {key: texts for room in ROOMS for key, texts in import_module(f"kt_core.messages.{room}").MESSAGES.items()}
SOURCES = [p for folder in ("kt_cli", "kt_core") for p in (ROOT / folder).rglob("*.py") if p.parent.name != "messages"]
KEY = re.compile(rf"({'|'.join(ROOMS)})\.[a-z][a-z0-9_]*$")


def placeholders(text: str) -> list[str]:
    return sorted(field for _, field, _, _ in string.Formatter().parse(text) if field is not None)


@pytest.mark.parametrize("room", ROOMS)
def test_both_languages(room: str) -> None:
    for key, texts in import_module(f"kt_core.messages.{room}").MESSAGES.items():
        assert key.partition(".")[0] == room, f"{key} is in {room}.py"
        assert len(texts) == 2, key
        english, chinese = texts
        assert english.strip() and chinese.strip(), key
        assert set(placeholders(english)) == set(placeholders(chinese)), key
        assert english.count("\n") == chinese.count("\n"), f"{key}: another number of lines"


def strings(tree_: ast.AST) -> set[str]:
    return {n.value for n in ast.walk(tree_) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def patterns(tree_: ast.AST) -> list[str]:
    """f-strings that build a key, as regular expressions: f"config.type_{x}" -> config\\.type_.+"""
    found = []
    for node in ast.walk(tree_):
        if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            start = str(node.values[0].value)
            if re.match(rf"({'|'.join(ROOMS)})\.", start):
                parts = [re.escape(str(v.value)) if isinstance(v, ast.Constant) else ".+" for v in node.values]
                found.append("".join(parts))
    return found


def calls(tree_: ast.AST) -> set[str]:
    """First arguments of t(...) and of error classes, where they are plain strings with a dot."""
    found = set()
    for node in ast.walk(tree_):
        if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
            continue
        function = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        value = node.args[0].value
        if (function == "t" or function in ERRORS) and isinstance(value, str) and " " not in value:
            found.add(value)
    return found


def _error_names() -> set[str]:
    """KTError and every class that inherits from it, wherever it is defined."""
    names = {"KTError"}
    classes = [n for p in SOURCES for n in ast.walk(ast.parse(p.read_text())) if isinstance(n, ast.ClassDef)]
    for _ in range(4):
        names |= {c.name for c in classes if any(isinstance(b, ast.Name) and b.id in names for b in c.bases)}
    return names - {"RemoteError"}


ERRORS = _error_names()


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_key_used_exists(path: Path) -> None:
    parsed = ast.parse(path.read_text())
    assert calls(parsed) <= set(CATALOGUE), calls(parsed) - set(CATALOGUE)
    if "kt_cli" in path.parts:  # keys travel through tables and help= there; elsewhere names of tensors look alike
        looks_like_key = {
            s for s in strings(parsed) if KEY.match(s) and not s.endswith((".md", ".yaml", "_"))
        }  # names of files, beginnings of keys
        known = set(CATALOGUE) | {entry.key for entry in config.SETTINGS}
        assert looks_like_key <= known, looks_like_key - known


def test_every_key_is_used() -> None:
    parsed = [ast.parse(p.read_text()) for p in SOURCES]
    used = set().union(*map(strings, parsed))
    built = [re.compile(p) for tree_ in parsed for p in patterns(tree_)]
    built.append(re.compile("config\\.(" + "|".join(s.help.partition(".")[2] for s in config.SETTINGS) + ")"))
    unused = {k for k in CATALOGUE if k not in used and not any(p.fullmatch(k) for p in built)}
    assert not unused


def test_scan_sees_what_it_should() -> None:
    """The scanner itself: it finds a missing key and a built one."""
    code = 't("run.nothing", a=1)\nraise NotFound("run.nowhere")\nt(f"config.type_{x}")\nprint("run.loose")'
    assert calls(ast.parse(code)) == {"run.nothing", "run.nowhere"}
    assert patterns(ast.parse(code)) == ["config\\.type_.+"]


# ---- options that texts name (a log once told people to pass an option that did not exist)

FOREIGN = {  # options of other programs, in commands that texts quote
    "pip install": {"--force-reinstall", "--no-deps", "--no-build-isolation", "-e"},
    "llama-gguf-split": {"--merge"},
    "python -m kt_cli": {"--write"},
    "python -m kt_core.server": {"--plan", "--events-fd"},
    "python -m kt_core.bench": {"--job", "--events-fd", "--write"},
}


@cache
def nodes() -> list[tree.Node]:
    return list(tree.walk())


@cache
def known_options() -> set[str]:
    own = {name for node in nodes() for param in node.options for name in (*param.opts, *param.secondary_opts)}
    return own | set(flags.BY_NAME)


def foreign(text: str) -> set[str]:
    return {name for command, names in FOREIGN.items() if command in text for name in names}


def named_options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w/-])--[a-z][a-z0-9-]*", text))


@pytest.mark.parametrize("key", sorted(CATALOGUE))
def test_options_in_messages_exist(key: str) -> None:
    for text in CATALOGUE[key]:
        assert named_options(text) <= known_options() | foreign(text), key


def test_links_in_docs_lead_somewhere() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    links = [(page, link) for page in pages for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())]
    assert len(links) > 10
    assert [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()] == []


def test_options_and_commands_in_docs_exist() -> None:
    """Those of another program stand on the page for its users alone, and kt answers each with its own."""
    known = {node.words for node in nodes()}
    answered = set().union(*elsewhere.OPTIONS.values())
    for page in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        if not page.exists():
            continue
        for line in page.read_text().splitlines():
            match = re.search(r"(?:^|`|\$ )kt((?: [a-z]+)+)", line)
            if not match:
                continue
            words = tuple(match[1].split())
            theirs = answered if page.name.startswith("coming-from-") else set()
            assert words[:1] in known or (words[0] in elsewhere.COMMANDS["kt"] and theirs), f"{page.name}: {line}"
            assert named_options(line) <= known_options() | foreign(line) | theirs, f"{page.name}: {line}"


COMMAND = re.compile(r"(?:^|`|: )kt ([a-z]+)(?: ([a-z]+))?", re.MULTILINE)


# Names that such a program is likely to have: a text that tells of one that is not there misleads, wherever it stands.
LIKELY = "ps|stop|start|status|logs|plan|probe|serve|show|pull|list|rm|quant|convert|bench|sft|train|tune|init|update"


@pytest.mark.parametrize("key", sorted(CATALOGUE))
def test_no_message_tells_of_a_command_to_come(key: str) -> None:
    names = {node.words for node in nodes()}
    for text in CATALOGUE[key]:
        for name in re.findall(rf"(?<![\w/.-])kt ({LIKELY})(?![\w-])", text):
            assert (name,) in names, f"{key}: kt {name}"


# Groups where a word that is no command is an argument of the default one.
DEFAULTS = ("bench",)


@pytest.mark.parametrize("key", sorted(CATALOGUE))
def test_commands_in_messages_exist(key: str) -> None:
    names = {node.words for node in nodes()}
    prose = {
        "runs",
        "takes",
        "can",
        "is",
        "has",
        "needs",
        "does",
        "reads",
        "cannot",
        "knows",
        "failed",
        "server",
        "and",
        "to",
    }
    for first, second in COMMAND.findall(CATALOGUE[key][0]):
        if first in prose:
            continue
        assert (first,) in names, f"{key}: kt {first}"
        if any(len(words) == 2 and words[0] == first for words in names) and second:
            if (first, second) not in names and first in DEFAULTS:
                continue
            assert (first, second) in names, f"{key}: kt {first} {second}"


# ---- how an error is written

INTERNAL = (
    "engine",
    "media",
    "server",
    "weights",
)  # errors of the API, whose reader is a program: a next step is no must
STOP = re.compile(r"[.?。？]$|\}$")
COMMAND_AT_THE_END = re.compile(r"(^|[:：] ?)(kt|pip|kill|unset|iconv|/save|--|http|Authorization|\{)[^。]*[^.。]$")


def error_keys() -> set[str]:
    """Keys that errors are made of: first arguments of error classes, and every other text of three lines."""
    found = {key for key, (english, _) in CATALOGUE.items() if english.count("\n") == 2}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args:
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                found |= strings(node.args[0]) & set(CATALOGUE) if name in ERRORS else set()
    return {key for key in found if not key.endswith(("help", "examples")) and not key.startswith(("core.", "docs."))}


def faults_of(key: str, text: str) -> list[str]:
    what, why, next_step = [*text.split("\n", 2), "", ""][:3]
    found = [line for line in (what, why) if line and not STOP.search(line)]
    if next_step and not re.search(r"[.?。？]$", next_step) and not COMMAND_AT_THE_END.search(next_step):
        found.append(next_step)
    if not next_step and not key.startswith(INTERNAL):
        found.append("no next step")
    return found


@pytest.mark.parametrize("key", sorted(error_keys()))
def test_errors_end_their_sentences_and_name_a_next_step(key: str) -> None:
    for text in CATALOGUE[key]:
        assert not faults_of(key, text)


def test_check_of_errors_sees_what_it_should() -> None:
    for good in ("What.\nWhy.\nkt run demo", "What: {x}\n\nSee: kt --help", "什么。\n{why}\n请重试。"):
        assert not faults_of("run.x", good)
    for bad in ("What\nWhy.\nkt run demo", "What.\nWhy\nDo.", "What.\nWhy.\nDo it", "What.", "什么\n\n请重试。"):
        assert faults_of("run.x", bad), bad
    assert {"cli.missing", "run.port_ours", "client.not_text", "config.bad_value"} <= error_keys()


@pytest.mark.parametrize("key", sorted(CATALOGUE))
def test_chinese_is_set_as_chinese(key: str) -> None:
    """Its own punctuation, one word for one thing, and no quotes of Python's."""
    text = CATALOGUE[key][1]
    assert "： " not in text and "词元" not in text and "拉取" not in text
    assert "!r}" not in text
    assert not re.search(r"[\u4e00-\u9fff][,;!?]|[,;!?] ?[\u4e00-\u9fff]", text.replace("?", "")), "ASCII punctuation"


# ---- help


def test_every_option_and_argument_has_help_in_both_languages() -> None:
    for node in tree.walk():
        assert node.command.help in CATALOGUE, node.words
        assert not node.command.epilog or node.command.epilog in CATALOGUE
        for param in [*node.arguments, *node.options]:
            assert param.name == "help" or param.help in CATALOGUE, (node.words, param.name)
        for param in node.options:
            assert param.is_flag or param.metavar, f"{node.words} {param.name} has no metavar"
            if not param.is_flag and param.name not in help.GLOBAL:
                assert "default" in CATALOGUE[param.help][0] or param.name == "prompt", (
                    f"{param.name}: default not stated"
                )


def test_examples_parse() -> None:
    """Every example in help is a command line that the parser takes."""
    import shlex

    by_words = {node.words: node for node in nodes()}
    for node in by_words.values():
        for line in CATALOGUE[node.command.epilog][0].splitlines() if node.command.epilog else []:
            words = shlex.split(line[line.index("kt ") :])[1:]
            depth = max(n for n in range(3) if tuple(words[:n]) in by_words)
            if words[:depth] == ["bench"]:
                words.insert(1, "inference")
                depth = 2
            options: dict[str, Any] = {n: p for p in by_words[tuple(words[:depth])].options for n in p.opts}
            for word in words[depth:]:
                assert not word.startswith("-") or word == "-" or word in options, line


# ---- generated files


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_completion_file_is_current(shell: str) -> None:
    messages.set_language("en")
    file, script = completion.SHELLS[shell]
    assert (ROOT / "completions" / file).read_text() == script(), "run: python -m kt_cli.completion --write"


@pytest.mark.parametrize("page", docs.PAGES)
def test_docs_are_current(page: str) -> None:
    messages.set_language("en")
    assert (ROOT / "docs" / page).read_text() == docs.PAGES[page](), "run: python -m kt_cli.docs --write"
