"""`kt chat`: pipes, terminal manners, and markdown that appears while it is written."""

import io
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from cli_runner import Run
from fake_openai import FakeServer
from rich.console import Console

from kt_cli import markdown
from kt_cli.chat import commands

PROMPT = ">>>"


def test_question_from_a_pipe(server: FakeServer, kt: Run) -> None:
    done = kt("chat", "--url", server.url, input="Where?\nAnd why?\n")
    assert done.code == 0 and done.out == server.answer + "\n"  # text as it is, no markdown, no escapes
    assert "tok/s" in done.err and "\x1b" not in done.out + done.err
    assert server.requests[0]["messages"] == [{"role": "user", "content": "Where?\nAnd why?\n"}]
    assert server.requests[0]["model"] == "fake-model"


def test_reasoning_is_left_out_of_a_pipe(server: FakeServer, kt: Run) -> None:
    server.reasoning = "France. Its capital?"
    done = kt("chat", "--url", server.url, input="Capital?\n")
    assert "Its capital" not in done.out and "Paris" in done.out


def test_json(server: FakeServer, kt: Run) -> None:
    found = kt("chat", "--url", server.url + "/v1/", "--json", input="Where?").json
    assert found["answer"] == server.answer and found["finish_reason"] == "stop"


def test_no_server(kt: Run) -> None:
    done = kt("chat", input="x")
    assert done.code == 4 and "kt run demo" in done.err
    done = kt("chat", "--url", "http://127.0.0.1:9", input="x")
    assert done.code == 4 and "http://127.0.0.1:9" in done.err
    assert kt("chat", "--url", "ftp://x", input="x").code == 2
    assert kt("chat", "--url", "http://a b", input="x").code == 2
    assert kt("chat", "--url", "localhost:30000", input="x").code == 2


def test_wrong_model(server: FakeServer, kt: Run) -> None:
    done = kt("chat", "--url", server.url, "--model", "other", input="x")
    assert done.code == 4 and "fake-model" in done.err


def test_refusals_in_the_servers_words(server: FakeServer, kt: Run) -> None:
    server.error = (400, {"error": {"message": "The context holds 64 tokens."}})
    done = kt("chat", "--url", server.url, input="x")
    assert done.code == 1 and "The context holds 64 tokens." in done.err
    parts = {"message": "All.", "what": "It is too much.", "why": "40 tokens of 30.", "next": "Ask less."}
    server.error = (400, {"error": {**parts, "code": "other"}})
    done = kt("chat", "--url", server.url, input="x")
    assert done.err.splitlines() == ["Error: It is too much.", "  40 tokens of 30.", "  Ask less."]
    server.error = (400, {"error": {**parts, "code": "context_length_exceeded"}})
    done = kt("chat", "--url", server.url, input="x")
    assert done.err.splitlines()[1:] == [
        "  40 tokens of 30.",
        "  Shorten the question, or start the server anew with a larger --context.",
    ]
    server.error = (500, ["not an object"])
    assert "500" in kt("chat", "--url", server.url, input="x").err
    server.key = "right"
    done = kt("chat", "--url", server.url, input="x", more={"KT_SERVER_API_KEY": "wrong"})
    assert done.code == 1 and "API key" in done.err


def test_stream_that_breaks_off(server: FakeServer, kt: Run) -> None:
    server.cut = True
    done = kt("chat", "--url", server.url, input="x")
    assert done.code == 1 and done.out.startswith("Paris") and "broke off" in done.err


@pytest.fixture
def child(server: FakeServer, env: dict[str, str]) -> Iterator[Any]:
    """`kt chat` on a terminal, at its first prompt."""
    command = ["-m", "kt_cli", "chat", "--url", server.url]
    more = {**env, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
    process = pexpect.spawn(sys.executable, command, env=more, encoding="utf-8", timeout=20, dimensions=(24, 80))
    process.expect("fake-model at")
    process.expect(PROMPT)
    yield process
    process.close(force=True)


def ask(child: Any, text: str) -> None:
    time.sleep(0.1)  # the prompt is drawn just before it reads
    child.send(text + "\r")


def test_markdown_and_stats(server: FakeServer, child: Any) -> None:
    ask(child, "Where?")
    child.expect("7.5 tok/s")
    assert re.search(r"\x1b\[1m[^\x1b]*capital", child.before) and "**capital**" not in child.before.split("Paris")[-1]
    child.expect(PROMPT)
    ask(child, "And then?")
    child.expect("7.5 tok/s")
    roles = [m["role"] for m in server.requests[1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert server.requests[1]["messages"][1]["content"] == server.answer


def test_reasoning_is_dim_and_not_part_of_the_conversation(server: FakeServer, child: Any) -> None:
    server.reasoning = "France. Its capital?"
    ask(child, "Capital of France?")
    child.expect(r"\x1b\[2mFrance. Its capital\?\x1b\[0m")
    child.expect("tok/s")
    child.expect(PROMPT)
    ask(child, "And of Spain?")
    child.expect("tok/s")
    assert [m["content"] for m in server.requests[1]["messages"]] == [
        "Capital of France?",
        server.answer,
        "And of Spain?",
    ]


def test_commands(server: FakeServer, child: Any, tmp_path: Path) -> None:
    ask(child, "/help")
    for name in (*commands.COMMANDS, "Alt-Enter", "Ctrl-C"):
        child.expect_exact(name)
    child.expect(PROMPT)
    ask(child, "/clera")
    child.expect("did you mean /clear")
    child.expect(PROMPT)
    ask(child, "/system Be brief.")
    child.expect(PROMPT)
    ask(child, "One")
    child.expect("7.5 tok/s")
    child.expect(PROMPT)
    ask(child, "/retry")
    child.expect("7.5 tok/s")
    child.expect(PROMPT)
    assert server.requests[0] == server.requests[1]
    file = tmp_path / "chat.json"
    ask(child, f"/save {file}")
    child.expect("Saved in")
    saved = json.loads(file.read_text())["messages"]
    assert [m["role"] for m in saved] == ["system", "user", "assistant"]
    child.expect(PROMPT)
    ask(child, "/clear")
    child.expect("anew")
    child.expect(PROMPT)
    ask(child, "Two")
    child.expect("7.5 tok/s")
    assert [m["content"] for m in server.requests[2]["messages"]] == ["Be brief.", "Two"]
    child.expect(PROMPT)
    ask(child, "/quit")  # as other programs call /exit
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_several_lines(server: FakeServer, child: Any) -> None:
    ask(child, '"""first')
    child.expect(r"\.\.\.")
    ask(child, 'second"""')
    child.expect("7.5 tok/s")
    assert server.requests[0]["messages"][0]["content"] == "first\nsecond"


def test_interrupt_stops_only_the_answer(server: FakeServer, child: Any) -> None:
    server.answer, server.delay = "word " * 400, 0.05
    ask(child, "Talk")
    child.expect("word word word")
    child.sendintr()
    child.expect("Stopped")
    assert server.broken.wait(5), "the stream was not closed"
    child.expect(PROMPT)
    server.answer, server.delay = "Fine.", 0.0
    ask(child, "Again")
    child.expect("7.5 tok/s")
    assert [m["role"] for m in server.requests[1]["messages"]] == ["user", "assistant", "user"]


def test_interrupt_at_the_prompt(child: Any) -> None:
    time.sleep(0.1)
    child.send("half a line")
    time.sleep(0.2)
    child.sendintr()  # throws the text away
    child.expect(PROMPT)
    time.sleep(0.2)
    child.sendintr()
    child.expect("again to leave")
    child.expect(PROMPT)
    time.sleep(0.2)
    child.sendintr()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130


def test_end_of_input_leaves(child: Any) -> None:
    time.sleep(0.1)
    child.sendeof()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_error_keeps_the_conversation(server: FakeServer, child: Any) -> None:
    server.error = (429, {"error": {"message": "The queue is full."}})
    ask(child, "x")
    child.expect("The queue is full.")
    child.expect(PROMPT)
    server.error = None
    ask(child, "y")
    child.expect("7.5 tok/s")
    assert [m["content"] for m in server.requests[1]["messages"]] == ["y"]


def test_advice_for_a_conversation_that_is_too_long(server: FakeServer, child: Any) -> None:
    server.error = (400, {"error": {"message": "Too long.", "code": "context_length_exceeded"}})
    ask(child, "x")
    child.expect_exact("Too long.")
    child.expect_exact("forget the conversation so far with /clear.")


def test_history_is_kept_privately(child: Any, tmp_path: Path) -> None:
    ask(child, "remember me")
    child.expect("7.5 tok/s")
    file = tmp_path / "state" / "kt" / "chat_history"
    assert "remember me" in file.read_text() and file.stat().st_mode & 0o077 == 0


def test_control_characters_do_not_reach_the_terminal(server: FakeServer, child: Any) -> None:
    server.answer = "a\x1b]0;owned\x07b"
    ask(child, "x")
    child.expect("7.5 tok/s")
    assert "\x1b]0;owned" not in child.before and "owned" in child.before


def test_output_to_a_file_is_plain(server: FakeServer, env: dict[str, str], tmp_path: Path) -> None:
    """Questions from a terminal, answers into a file: no markdown and no escapes there."""
    out = tmp_path / "out.txt"
    command = f"{sys.executable} -m kt_cli chat --url {server.url} > {out}"
    child = pexpect.spawn("bash", ["-c", command], env=env, encoding="utf-8", timeout=20)
    child.expect(PROMPT)
    child.sendline("Where?")
    child.expect("7.5 tok/s")
    child.sendeof()
    child.expect(pexpect.EOF)
    assert out.read_text() == server.answer + "\n"


# ---- markdown

TEXT = """# Title

A paragraph with **bold**
over two lines.

- one

  more of one
- two

```python
def f():

    return 1
```
After.

1. first

2. second

Last
"""


def test_blocks_do_not_depend_on_the_cutting() -> None:
    """However the stream is cut, the finished blocks are the same, and together they are the text."""

    def blocks(step: int) -> list[str]:
        pending, found = "", []
        for start in range(0, len(TEXT), step):
            for char in TEXT[start : start + step]:  # a writer looks after every piece; a piece may end anywhere
                pending += char
            while length := markdown.finished(pending):
                found.append(pending[:length])
                pending = pending[length:]
        return [*found, pending]

    whole = blocks(len(TEXT))
    for step in (1, 2, 3, 7, 50):
        assert "".join(blocks(step)) == TEXT
    assert "".join(whole) == TEXT
    fenced = [block for block in blocks(1) if "```" in block]
    assert len(fenced) == 1 and fenced[0].count("```") == 2


def test_finished() -> None:
    assert markdown.finished("text\n") == 0
    assert markdown.finished("text\n\n") == 6
    assert markdown.finished("```\na\n\nb\n") == 0
    assert markdown.finished("```\na\n```\n") == 10
    assert markdown.finished("````\n```\n") == 0
    assert markdown.finished("- a\n\n") == 0
    assert markdown.finished("- a\n\n- b\n") == 0
    assert markdown.finished("- a\n\nText\n") == 5
    assert markdown.finished("half a line") == 0


def rendered(pieces: list[str], height: int = 10) -> tuple[str, int]:
    sink = io.StringIO()
    console = Console(file=sink, force_terminal=True, width=60, height=height, color_system=None)
    writer = markdown.Writer(console)
    for piece in pieces:
        writer.feed(piece)
    writer.close()
    return sink.getvalue(), len(sink.getvalue())


def test_every_line_appears_once_in_the_end() -> None:
    """What stays on the screen: the control sequences that erase the live part are obeyed here."""
    pyte_free = screen(rendered([TEXT[i : i + 3] for i in range(0, len(TEXT), 3)])[0])
    joined = "\n".join(pyte_free)
    for words in ("Title", "over two lines.", "more of one", "return 1", "After.", "second", "Last"):
        assert joined.count(words) == 1, (words, joined)


def screen(output: str) -> list[str]:
    """A terminal with no lower edge: carriage return, line feed, cursor up, erase line."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|.|\n", output, re.DOTALL):
        if token == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif token == "\r":
            column = 0
        elif token.startswith("\x1b"):
            count = int(re.sub(r"\D", "", token) or 1)
            if token.endswith("A"):
                row = max(row - count, 0)
            elif token.endswith("K"):
                lines[row] = ""
        else:
            lines[row] = lines[row][:column].ljust(column) + token + lines[row][column + 1 :]
            column += 1
    return lines


def test_long_code_block_stays_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """800 lines in one block: the live part never exceeds the screen, and the work grows with the text only."""
    monkeypatch.setattr(markdown, "REFRESH_SECONDS", 0.0)
    drawn: list[int] = []
    original = markdown.render
    monkeypatch.setattr(markdown, "render", lambda text: drawn.append(text.count("\n")) or original(text))
    rendered(["```text\n", *(f"line {i}\n" for i in range(800)), "```\n"])
    assert len(drawn) > 700 and sorted(drawn)[-2] <= 10  # all but the final print are a screen at most


def test_interrupt_in_a_pipe_ends_with_130(server: FakeServer, env: dict[str, str]) -> None:
    import signal

    server.answer, server.delay = "word " * 400, 0.05
    command = [sys.executable, "-m", "kt_cli", "chat", "--url", server.url]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=env, text=True, **pipes)  # type: ignore[call-overload]
    process.stdin.write("x")
    process.stdin.close()
    assert process.stdout.read(10) == "word word "
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130 and process.stderr.read() == ""


def test_interrupt_before_the_first_word(server: FakeServer, child: Any) -> None:
    """Ctrl-C while the prompt is computed closes the connection and comes back to the prompt."""
    server.wait = 3.0
    server.answer = "word " * 4000  # more than the socket's buffer takes when nobody reads
    ask(child, "x")
    time.sleep(1.0)
    child.sendintr()
    child.expect("Stopped")
    child.expect(PROMPT)
    assert server.broken.wait(10)
