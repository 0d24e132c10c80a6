"""The shape of the code base: imports point one way, low rooms stay light, files stay small."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Low to high. A room may import its own level's rooms only where both are named together here.
LEVELS = [
    {"messages", "types", "errors", "paths", "events", "child"},
    {"config", "flags"},
    {"formats"},
    {"models", "machine", "plan", "media"},
    {"weights", "kernels", "device", "lora"},
    {"inject", "operators"},
    {"programs"},
    {"engine"},
    {"server", "train", "bench", "quantise", "quality"},
    {"kt_cli"},
]
# Within a level: importer -> rooms of the same level it may use.
BESIDE = {
    "errors": {"messages"},
    "paths": {"errors"},
    "events": {"errors"},
    "child": {"errors", "events"},
    "plan": {"machine", "models"},
    "operators": {"inject"},
    "kernels": {"weights"},
    "lora": {"weights"},
}
LIGHT = (
    "messages",
    "types",
    "errors",
    "paths",
    "events",
    "child",
    "config",
    "flags",
    "formats",
    "models",
    "machine",
    "plan",
)
# file -> why it may be longer than the budget
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}

PYTHON = sorted(p for folder in ("kt_cli", "kt_core", "tests") for p in (ROOT / folder).rglob("*.py"))
NATIVE = sorted(p for p in (ROOT / "native").rglob("*") if p.suffix in (".cpp", ".h"))


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return "kt_cli" if parts[0] == "kt_cli" else parts[1]


def imported_rooms(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "kt_core":
                names = [f"kt_core.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "kt_cli":
                found.add("kt_cli")
            elif parts[0] == "kt_core" and len(parts) > 1:
                found.add(parts[1])
    return found


def level(room: str) -> int:
    return next(i for i, rooms in enumerate(LEVELS) if room in rooms)


@pytest.mark.parametrize("path", [p for p in PYTHON if "tests" not in p.parts], ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return
    for other in imported_rooms(ast.parse(path.read_text())) - {room, "_native"}:
        allowed = level(other) < level(room) or other in BESIDE.get(room, set())
        assert allowed, f"{path.relative_to(ROOT)} imports {other}, which is not below {room}"


def test_only_kernels_imports_the_extension() -> None:
    for path in PYTHON:
        if room_of(path) in ("kernels", "tests") or "tests" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            module = getattr(node, "module", "") or ""
            assert "_native" not in module and "_native" not in " ".join(names), path


@pytest.mark.parametrize("room", [*(f"kt_core.{r}" for r in LIGHT), "kt_cli.main"])
def test_light_rooms_need_neither_torch_nor_the_extension(room: str) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'kt_core._native'): sys.modules[name] = None\n"
        f"import {room}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", PYTHON, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_size_budget(path: Path) -> None:
    text = path.read_text()
    name = str(path.relative_to(ROOT))
    assert len(text.splitlines()) <= 500 or name in LONG_FILES, f"{name} is over 500 lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 60 or f"{name}:{node.name}" in LONG_FUNCTIONS, f"{name}: {node.name} has {length} lines"


@pytest.mark.parametrize("path", NATIVE, ids=lambda p: str(p.relative_to(ROOT)))
def test_native_size_budget(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 800, path
    start = 0
    for number, line in enumerate(lines, 1):
        # clang-format puts the brace that closes a function (or namespace, struct) in column 0.
        if (
            line
            and not line[0].isspace()
            and line.rstrip().endswith("{")
            and not line.startswith(("namespace", "struct", "class", "extern", "enum"))
        ):
            start = number
        if line.startswith("}") and start:
            assert number - start < 120, f"{path.relative_to(ROOT)}:{start} has {number - start + 1} lines"
            start = 0


def test_no_two_test_files_have_one_name():
    """pytest imports them by name: of two, only the first one's tests would be there."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
