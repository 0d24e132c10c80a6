"""What a terminal shows in the end, and the state it is left in, played through a terminal emulator."""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pyte
import pytest
from fake_openai import FakeServer

STAND_IN = str(Path(__file__).parent / "stand_in.py")
WORDS = " ".join(f"word{number:03}" for number in range(400))


class Screen:
    """A command in bash on a terminal of 24 lines; what it writes is drawn by the emulator."""

    def __init__(self, command: str, env: dict[str, str], columns: int = 80) -> None:
        more = {**env, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "PS1": "$ "}
        script = f"{command}; echo code $?; stty -a | grep -wo -e -echo -e echo"
        size = (24, columns)
        self.child: Any = pexpect.spawn("bash", ["-c", script], env=more, encoding="utf-8", timeout=20, dimensions=size)
        self.screen = pyte.HistoryScreen(columns, 24, history=1000)
        self.stream = pyte.Stream(self.screen)

    def expect(self, pattern: str) -> None:
        self.child.expect(pattern)
        self.stream.feed(self.child.before + self.child.after)

    def say(self, keys: str, pattern: str) -> None:
        """Type, and wait for what it brings."""
        self.child.send(keys)
        self.expect(pattern)

    def end(self) -> str:
        """The rest, up to the end of the shell; all that was drawn, from the first line on."""
        self.expect(r"(?<![a-z])-?echo\r")
        columns = range(self.screen.columns)
        above = ["".join(line[column].data for column in columns) for line in self.screen.history.top]
        return "\n".join(line.rstrip() for line in [*above, *self.screen.display])


@pytest.fixture
def chat(server: FakeServer, env: dict[str, str]) -> Iterator[Screen]:
    """`kt chat` at its first prompt, with a server that answers slowly."""
    server.answer, server.delay = WORDS, 0.02
    shown = Screen(f"{sys.executable} -m kt_cli chat --url {server.url}", env)
    shown.expect(">>>")
    time.sleep(0.2)
    yield shown
    shown.child.close(force=True)


def test_interrupt_leaves_the_partial_answer_once(chat: Screen) -> None:
    chat.child.send("Talk\r")
    chat.expect("word030")
    chat.child.sendintr()
    chat.expect("Stopped")
    chat.expect(">>>")
    chat.child.sendeof()
    drawn = chat.end()
    assert "^C" not in drawn and drawn.count("Stopped") == 1
    words = re.findall(r"word\d\d\d", drawn)
    assert len(words) > 30 and words == WORDS.split()[: len(words)], drawn


def test_typing_meanwhile_is_not_shown_and_thrown_away(server: FakeServer, chat: Screen) -> None:
    server.answer = " ".join(WORDS.split()[:60])
    chat.child.send("Talk\r")
    chat.expect("word010")
    chat.child.send("typed ahead\rmore of it")
    chat.expect("tok/s")
    chat.expect(">>>")
    time.sleep(0.3)
    chat.child.sendeof()
    drawn = chat.end()
    assert "typed" not in drawn and "more of it" not in drawn
    assert re.findall(r"word\d\d\d", drawn) == server.answer.split()
    assert len(server.requests) == 1 and "code 0" in drawn


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("answering", [True, False])
def test_signals_leave_the_terminal_as_it_was(number: signal.Signals, answering: bool, chat: Screen) -> None:
    if answering:
        chat.child.send("Talk\r")
        chat.expect("word030")
    children = Path(f"/proc/{chat.child.pid}/task/{chat.child.pid}/children").read_text().split()

    os.kill(int(children[0]), number)
    drawn = chat.end()
    assert "code 1" in drawn and drawn.rstrip().endswith("\necho") and "Traceback" not in drawn


def test_failure_in_the_middle_leaves_the_terminal_as_it_was(server: FakeServer, chat: Screen) -> None:
    server.cut = True
    chat.child.send("Talk\r")
    chat.expect("broke off")
    chat.expect(">>>")
    chat.child.sendeof()
    assert chat.end().rstrip().endswith("\necho")


def test_answer_of_run(env: dict[str, str]) -> None:
    shown = Screen(f"{sys.executable} {STAND_IN} run tiny -p Where", {**env, "KT_TEST_SERVER": "slow"})
    shown.expect("Loading weights")
    shown.child.send("typed ahead")
    time.sleep(0.3)
    shown.child.sendintr()
    drawn = shown.end()
    assert "typed" not in drawn and "^C" not in drawn and "code 130" in drawn and drawn.rstrip().endswith("\necho")


def test_warning_stands_above_the_bars(env: dict[str, str]) -> None:
    drawn = Screen(f"{sys.executable} {STAND_IN} run tiny -p Where", env).end()
    assert "Warning: A warning of the server." in drawn.splitlines() and "Loading" not in drawn


def test_background_job_goes_on(env: dict[str, str]) -> None:
    """A command that may not set the terminal does not try to, which would stop it."""
    shown = Screen(f"set -m; {sys.executable} {STAND_IN} run tiny -p Where & wait $!", env)
    assert "Paris is the capital of France." in shown.end()  # formatted, as by kt chat


def test_one_bar_at_a_time_in_one_line(env: dict[str, str]) -> None:
    """A long stage is cut where the terminal ends, and the amount beside it is whole; a stage that is over is gone."""
    code = """
from kt_cli import output
with output.progress() as report:
    report("First stage", 1, 4, "bytes")
    report("Downloading from a place with a long name and a longer path", 2**20, 2**30, "bytes")
    import time; time.sleep(1)
"""
    shown = Screen(f"{sys.executable} -c '{code}'", env)
    shown.expect("Downloading.* of 1.00 GiB")
    (line,) = [line for line in shown.screen.display if line.strip()]
    assert "…" in line and line.rstrip().endswith("1.00 MiB of 1.00 GiB")
    shown.end()


def test_names_do_not_command_the_terminal(env: dict[str, str], tmp_path: Path) -> None:
    """Of files, models and servers, in errors and in lists."""
    folder = tmp_path / "data" / "kt" / "models" / "\x1b]0;owned\x07"
    folder.mkdir(parents=True)
    (folder / "a.gguf").touch()
    kt = f"{sys.executable} -m kt_cli"
    shown = Screen(f"{kt} model path $'\\e[2Jgone'; {kt} model list", env)
    shown.expect("echo\r")
    written = shown.child.before
    assert "[2Jgone" in written and "]0;owned" in written
    assert not re.findall(r"\x1b(?!\[[0-9;]*m)|\x07", written), written
