"""Completion scripts in the shells that this machine has."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest
from cli_runner import Run

FOLDER = Path(__file__).parent.parent.parent / "completions"
SCRIPTS = {"bash": "kt.bash", "zsh": "_kt", "fish": "kt.fish"}


@pytest.mark.parametrize(("shell", "file"), SCRIPTS.items())
def test_syntax(shell: str, file: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n", str(FOLDER / file)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""


@pytest.fixture
def with_kt(env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH has a `kt`, with a pulled model, and a folder with two files."""
    model = tmp_path / "data" / "kt" / "models" / "mine" / "m.gguf"
    model.parent.mkdir(parents=True)
    for file in (model, tmp_path / "here.gguf", tmp_path / "demo.gguf"):
        file.write_bytes(b"")
    profile = tmp_path / "config" / "kt" / "profiles" / "work.toml"
    profile.parent.mkdir(parents=True)
    profile.write_text('model = "mine"\n')
    program = tmp_path / "bin" / "kt"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kt_cli "$@"\n')
    program.chmod(0o755)
    return {**env, "PATH": f"{program.parent}:{os.environ['PATH']}"}


CASES = [
    ("kt ", {"run", "chat", "doctor"}, {"list"}),
    ("kt mo", {"model"}, {"run"}),
    ("kt model ", {"list", "pull", "path", "rm"}, {"run"}),
    ("kt --color always model p", {"pull", "path"}, {"list"}),
    ("kt run --te", {"--temperature"}, {"--threads"}),
    ("kt run --color ", {"auto", "always", "never"}, {"run"}),
    ("kt run --kv-dtype ", {"bfloat16", "float32"}, {"auto", "demo"}),
    ("kt run --tool-parser her", {"hermes"}, {"harmony"}),
    ("kt microbench moe --vs ", {"torch"}, {"--json"}),
    ("kt run @", {"@work"}, {"demo"}),
    ("kt run ", {"demo", "smollm2", "mine", "@work"}, {"model", "here.gguf"}),
    ("kt run de", {"demo"}, {"demo.gguf"}),
    ("kt run he", {"here.gguf"}, {"demo"}),
    ("kt run here.", {"here.gguf"}, {"demo"}),
    ("kt run ./", {"./here.gguf", "./demo.gguf"}, {"demo"}),
    ("kt model pull ", {"demo", "smollm2"}, {"here.gguf"}),
    ("kt model pull he", set(), {"here.gguf"}),
    ("kt model rm ", {"mine"}, {"demo", "smollm2", "here.gguf"}),
    ("kt model path of ", {"mine"}, {"demo", "smollm2", "here.gguf"}),
    ("kt completion ", {"bash", "zsh", "fish", "install"}, {"run"}),
    ("kt model add --like ", {"demo", "mine"}, {"here.gguf"}),
    ("kt model scan he", {"here.gguf"}, {"demo"}),
    ("kt config set --j", {"--json"}, {"--yes"}),
]


@pytest.mark.parametrize(("line", "present", "absent"), CASES, ids=[line for line, _, _ in CASES])
def test_bash(line: str, present: set[str], absent: set[str], with_kt: dict[str, str], tmp_path: Path) -> None:
    words = line + ("''" if line.endswith(" ") else "")
    script = f'source "{FOLDER}/kt.bash"; COMP_WORDS=({words})'
    script += '; COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _kt; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", script], env=with_kt, capture_output=True, text=True, cwd=tmp_path)
    found = set(done.stdout.split())
    assert present <= found and not absent & found, (found, done.stderr)


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
@pytest.mark.parametrize(("line", "present", "absent"), CASES, ids=[line for line, _, _ in CASES])
def test_fish(line: str, present: set[str], absent: set[str], with_kt: dict[str, str], tmp_path: Path) -> None:
    script = f'source "{FOLDER}/kt.fish"; complete -C "{line}"'
    more = {**with_kt, "HOME": str(tmp_path)}
    done = subprocess.run(["fish", "-c", script], env=more, capture_output=True, text=True, cwd=tmp_path)
    found = {row.split("\t")[0] for row in done.stdout.splitlines()}
    assert present <= found and not absent & found, (found, done.stderr)


# Each completion's matches, as the script hands them to zsh, go into $FOUND, and a last line when all have come.
ZSH = """
autoload -Uz compinit && compinit -u -D
compadd() {
    if [[ " $* " != *" -"[OAD]" "* ]]; then  # those fill or thin out arrays and offer nothing
        local -a found prefix
        builtin compadd -A found "$@"
        zparseopts -E -a ignored p:=prefix -
        (( $#found )) && print -rl -- "${(@)found/#/$prefix[2]}" >> $FOUND
    fi
    builtin compadd "$@"
}
ended() { print -r -- "(end)" >> $FOUND }
comppostfuncs=(ended)
PROMPT="ready> "
"""


@pytest.fixture
def zsh(with_kt: dict[str, str], tmp_path: Path) -> Iterator[Callable[[str], set[str]]]:
    """What an interactive zsh offers for a line."""
    script, found = tmp_path / "setup.zsh", tmp_path / "found"
    script.write_text(ZSH)
    more = {**with_kt, "FOUND": str(found), "HOME": str(tmp_path), "TERM": "dumb"}
    shell = pexpect.spawn("zsh", ["-f", "-i"], env=more, cwd=str(tmp_path), timeout=20, encoding="utf-8")
    shell.sendline(f"fpath=({FOLDER} $fpath); source {script}; rm {script}")
    shell.expect("\rready> ")

    def offered(line: str) -> set[str]:
        shell.send(f"{line}\t")
        deadline = time.monotonic() + 20
        while not found.exists() or not found.read_text().endswith("(end)\n"):
            assert time.monotonic() < deadline, found.read_text() if found.exists() else "nothing came"
            time.sleep(0.02)
        return set(found.read_text().splitlines()) - {"(end)"}

    yield offered
    shell.close(force=True)


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
@pytest.mark.parametrize(("line", "present", "absent"), CASES, ids=[line for line, _, _ in CASES])
def test_zsh(line: str, present: set[str], absent: set[str], zsh: Callable[[str], set[str]]) -> None:
    found = zsh(line)
    assert present <= found and not absent & found, found


def test_command_prints_the_script(kt: Run) -> None:
    assert kt("completion", "bash").out == (FOLDER / "kt.bash").read_text()
    failed = kt("completion", "tcsh")
    assert failed.code == 2 and "bash, zsh, fish" in failed.err


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ZDOTDIR", "BASH_COMPLETION_USER_DIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


PLACES = {
    "bash": ".local/share/bash-completion/completions/kt",
    "zsh": ".local/share/zsh/site-functions/_kt",
    "fish": ".config/fish/completions/kt.fish",
}


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.mark.parametrize(("shell", "place"), PLACES.items())
def test_install_says_what_it_wrote_and_can_be_taken_back(shell: str, place: str, home: Path, here: Run) -> None:
    (home / ".zshrc").write_text("alias ll='ls -l'")
    (home / ".zshrc").chmod(0o640)
    before = _tree(home)
    tried = here("completion", "install", shell, "--dry-run")
    assert tried.code == 0 and str(home / place) in tried.out and _tree(home) == before
    done = here("completion", "install", shell)
    after = _tree(home)
    changed = {name for name in after if before.get(name) != after[name]}
    assert done.code == 0 and changed == {line.removeprefix("Wrote ") for line in done.out.splitlines()}
    assert (home / place).read_text() == (FOLDER / SCRIPTS[shell]).read_text()
    assert (home / ".zshrc").stat().st_mode & 0o777 == 0o640
    again = here("completion", "install", shell, "--json").json
    assert {entry["done"] for entry in again["files"]} == {"current"} and _tree(home) == after
    assert here("completion", "uninstall", shell).code == 0
    left = _tree(home)
    assert left.pop(str(home / ".zshrc")).rstrip(b"\n") == before.pop(str(home / ".zshrc")) and left == before
    assert {entry["done"] for entry in here("completion", "uninstall", shell, "--json").json["files"]} == {"absent"}


def test_a_script_of_somebody_elses_is_left_alone(home: Path, here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    file = home / PLACES["fish"]
    file.parent.mkdir(parents=True)
    file.write_text("complete -c kt -a mine\n")
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    for action in ("install", "uninstall"):
        failed = here("completion", action)
        assert failed.code == 5 and str(file) in failed.err and file.read_text() == "complete -c kt -a mine\n"
    monkeypatch.setenv("SHELL", "/bin/sh")
    assert here("completion", "install").code == 2


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
@pytest.mark.parametrize("before", ["", "autoload -Uz compinit && compinit -u\n"])
def test_zsh_loads_what_was_installed(before: str, home: Path, here: Run) -> None:
    (home / ".zshrc").write_text(before)
    assert here("completion", "install", "zsh").code == 0
    shell = pexpect.spawn(
        "zsh",
        ["-i", "-c", "print ${_comps[kt]}; whence -w _kt"],
        env={**os.environ, "TERM": "dumb"},
        timeout=20,
        encoding="utf-8",
    )
    assert shell.read().split() == ["_kt", "_kt:", "function"]
