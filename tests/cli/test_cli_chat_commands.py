"""What begins with a slash in `kt chat`, files and kept conversations; and which server is talked to."""

import base64
import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Run
from fake_openai import FakeServer
from hypothesis import given
from hypothesis import strategies as st
from test_cli_servers import detached, ended  # noqa: F401  no server outlives a test
from test_cli_terminal import Screen

from kt_cli import answer, client, editor
from kt_cli.chat import commands, prompt, saved, session
from kt_core.errors import BadData, EnvironmentProblem, NotFound, UsageError


@pytest.fixture
def chat(server: FakeServer) -> session.Chat:
    api = client.Api(server.url)
    return session.Chat(api, "fake-model", answer.options(None, None), "", context=4096, file=saved.new_file())


@pytest.fixture
def said(chat: session.Chat, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command, and return what a person reads."""

    def run(line: str) -> str:
        assert commands.is_command(line)
        capsys.readouterr()
        commands.run(chat, line)
        return "".join(capsys.readouterr())

    return run


def test_what_is_a_command() -> None:
    for line in ("/help", "/set x", "/?", "/system two\nlines"):
        assert commands.is_command(line)
    for line in ("/usr/bin/env", "hello /help", "", "/", "//x", "/usr/lib\n/help"):
        assert not commands.is_command(line)


def test_copy(chat: session.Chat, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no answer yet" in said("/copy")
    chat.messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "# \u4f60\u597d"}]
    assert "no terminal" in said("/copy")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("TMUX", raising=False)
    packed = base64.b64encode("# \u4f60\u597d".encode()).decode()
    assert said("/copy").startswith(f"\033]52;c;{packed}\a")
    monkeypatch.setenv("TMUX", "x")
    assert said("/copy").startswith("\033Ptmux;\033\033]52;c;")


def test_parameters(chat: session.Chat, said: Any, server: FakeServer) -> None:
    assert "temperature  0.7" in said("/set") and "the server's" in said("/set")
    said("/set top_k 5")
    said("/set seed 7")
    said("/set temperature 0")
    said("/set top_p none")
    session.ask(chat, "x")
    body = server.requests[0]
    assert (body["top_k"], body["seed"], body["temperature"]) == (5, 7, 0.0) and "top_p" not in body
    before = chat.options
    for wrong in ("temperature 3", "temperature hot", "temperature nan", "top_k -1", "seed 1.5", "seed", "speed 4"):
        assert "Error" in said(f"/set {wrong}")
    assert chat.options == before


def test_thinking(chat: session.Chat, said: Any, server: FakeServer) -> None:
    assert "hidden" in said("/think") and not chat.thinking
    assert "shown" in said("/think show") and chat.thinking
    said("/think off")
    session.ask(chat, "x")
    assert server.requests[0]["enable_thinking"] is False
    assert "show, hide, on, off" in said("/think maybe")


def test_undo_and_retry(chat: session.Chat, said: Any, server: FakeServer) -> None:
    for question in ("one", "two"):
        session.ask(chat, question)
    assert "1 are left" in said("/undo")
    assert [m["content"] for m in chat.messages] == ["one", server.answer]
    kept = saved.newest(1)[0]
    assert [m["content"] for m in kept.messages] == ["one", server.answer]
    said("/retry")
    assert server.requests[2]["messages"] == server.requests[0]["messages"]
    said("/undo")
    assert "0 are left" in said("/undo") and chat.messages == []
    assert "no question" in said("/retry")


def test_files_go_along_once(chat: session.Chat, said: Any, server: FakeServer, tmp_path: Path) -> None:
    file = tmp_path / "notes.md"
    file.write_text("a\n```\nb\n```\n")
    assert "goes along" in said(f"/file {file}")
    session.ask(chat, "What is it?")
    session.ask(chat, "And?")
    first, second = (body["messages"][-1]["content"] for body in server.requests)
    assert first == "What is it?\n\nnotes.md:\n````\na\n```\nb\n```\n````" and second == "And?"
    assert "no file" in said("/file nosuch.md")
    file.write_bytes(b"\xff\xfe")
    assert "as text" in said(f"/file {file}") and not chat.attached


def test_file_is_kept_for_a_question_that_failed(chat: session.Chat, server: FakeServer, tmp_path: Path) -> None:
    chat.attached.append("text")
    server.error = (429, {"error": {"message": "The queue is full."}})
    session.ask(chat, "x")
    assert chat.attached == ["text"] and chat.messages == []


def test_conversations_are_kept_and_taken_up(chat: session.Chat, said: Any, server: FakeServer, tmp_path: Path) -> None:
    chat.system = "Be kind."
    session.ask(chat, "Where is Paris?")
    first = chat.file
    assert first and stat.S_IMODE(first.stat().st_mode) == 0o600
    said("/clear")
    assert chat.file != first and chat.messages == []
    session.ask(chat, "A longer question " + "word " * 30)
    listed = said("/load").splitlines()
    assert listed[0].startswith("1  fake-model  A longer question") and listed[0].endswith("…")
    assert listed[1].endswith("Where is Paris?")
    chat.system = ""
    assert "Where is Paris? (1 questions)" in said("/load 2")
    assert chat.system == "Be kind." and [m["role"] for m in chat.messages] == ["user", "assistant"]
    session.ask(chat, "And Rome?")
    assert chat.file == first and len(saved.read(first).messages) == 5  # goes on in its own file
    copy = tmp_path / "copy.json"
    said(f"/save {copy}")
    assert saved.read(copy).messages == saved.read(first).messages and "exists already" in said(f"/save {copy}")
    said(f"/load {copy}")
    assert chat.file not in (copy, first)  # a file of the user's is not written to
    for wrong in ("/load 9", "/load nosuch.json", f"/load {tmp_path}"):
        assert "Error" in said(wrong)


@given(
    st.binary(max_size=60)
    | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(lambda x: json.dumps(x).encode())
)
def test_any_file_is_a_conversation_or_an_error(content: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        with pytest.raises(BadData):
            saved.read(Path(file.name))


def test_folder_that_cannot_be_written_is_said_once(chat: session.Chat, capsys: pytest.CaptureFixture[str]) -> None:
    saved.folder().parent.mkdir(parents=True, exist_ok=True)
    saved.folder().write_text("a file")
    for _ in range(2):
        session.ask(chat, "x")
    assert capsys.readouterr().err.count("cannot be written") == 1 and len(chat.messages) == 4


def test_figures_and_models(chat: session.Chat, said: Any, server: FakeServer) -> None:
    session.ask(chat, "x")
    session.ask(chat, "y")
    rows = {tuple(line.rsplit("  ", 1)) for line in said("/stats").splitlines()}
    assert {("answers        ", "2"), ("tokens in      ", "22"), ("context used   ", "18 of 4096")} <= rows
    server.models = ["fake-model", "other"]
    assert said("/model").splitlines() == ["* fake-model", "  other"]
    assert "Now with other" in said("/model other") and chat.model == "other" and len(chat.messages) == 4
    assert "fake-model, other" in said("/model third")


def test_editor(
    chat: session.Chat, said: Any, server: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "ed"
    program.write_text('#!/bin/sh\nprintf "%s\\nmore\\n" "$(cat "$1")" > "$1.new" && mv "$1.new" "$1"\n')
    program.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(program))
    said("/edit begun")
    assert server.requests[0]["messages"] == [{"role": "user", "content": "begun\nmore"}]
    monkeypatch.setenv("EDITOR", "false")
    assert "code 1" in said("/edit") and len(server.requests) == 1
    monkeypatch.setenv("EDITOR", "no-such-editor 'x")
    with pytest.raises(EnvironmentProblem):
        editor.command()


# ---- once


def test_prompt_and_files(server: FakeServer, kt: Run, tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("What?\n")
    assert kt("chat", "--url", server.url, "-f", "q.txt").code == 0
    assert kt("chat", "--url", server.url, "-p", "Explain:", "-f", "q.txt", "-f", "-", input="from stdin").code == 0
    contents = [body["messages"][0]["content"] for body in server.requests]
    assert contents == ["What?\n", "Explain:\n\nq.txt:\n```\nWhat?\n```\n\n```\nfrom stdin\n```"]
    assert kt("chat", "--url", server.url, "-p", "x", "-f", "nosuch").code == 4
    assert kt("chat", "--url", server.url, "-p", "-", "-f", "-", input="x").code == 2
    assert len(server.requests) == 2 and not saved.newest(1)


def test_address_with_a_path(server: FakeServer, kt: Run) -> None:
    done = kt("chat", "--url", f"{server.url}/x", input="x")
    assert done.code == 4 and done.err.splitlines()[-1] == f"  Try: kt chat --url {server.url}"


def test_assembled_questions() -> None:
    assert answer.assembled("x", []) == "x"
    for wrong in ("", "  \n"):
        with pytest.raises(UsageError):
            answer.assembled(wrong, [])
    with pytest.raises(NotFound):
        answer.assembled(None, [Path("/nowhere")])


# ---- on a terminal


@pytest.fixture
def shown(server: FakeServer, env: dict[str, str]) -> Iterator[Screen]:
    screen = Screen(f"{sys.executable} -m kt_cli chat --url {server.url}", env)
    screen.expect(">>>")
    yield screen
    screen.child.close(force=True)


def test_lines_that_belong_together(shown: Screen, server: FakeServer) -> None:
    """A paste is one question, also of lines that begin with a slash; so are lines after Alt-Enter and Ctrl-J."""
    pasted = "\x1b[200~def f():\r    return 1\r\r/exit\x1b[201~"
    shown.say(pasted + "\r", "context 18 of 4096")
    shown.expect(">>>")
    shown.say("one\x1b\rtwo\nthree\r", "context 18 of 4096")
    shown.expect(">>>")
    shown.child.sendeof()
    shown.end()
    asked = [body["messages"][-1]["content"] for body in server.requests]
    assert asked == ["def f():\n    return 1\n\n/exit", "one\ntwo\nthree"]


def test_hidden_thinking_leaves_nothing(shown: Screen, server: FakeServer) -> None:
    server.reasoning = "France. Its capital?"
    shown.say("/think hide\r", "hidden")
    shown.expect(">>>")
    shown.say("Capital?\r", "tok/s")
    shown.expect(">>>")
    shown.child.sendeof()
    drawn = shown.end()
    assert "Its capital" not in drawn and "Thinking" not in drawn and "Paris is the capital" in drawn


def test_going_on_with_the_newest(server: FakeServer, env: dict[str, str], chat: session.Chat, kt: Run) -> None:
    command = f"{sys.executable} -m kt_cli chat --url {server.url}"
    none = Screen(f"{command} -c", env)
    assert "kept yet" in none.end() and none.screen
    session.ask(chat, "Where is Paris?")
    shown = Screen(f"{command} -c", env)
    shown.expect("Going on with: Where is Paris")
    shown.expect(">>>")
    shown.say("And Rome?\r", "tok/s")
    shown.expect(">>>")
    shown.child.sendeof()
    shown.end()
    assert [m["content"] for m in server.requests[-1]["messages"]] == ["Where is Paris?", server.answer, "And Rome?"]
    assert len(saved.newest(5)) == 1


@pytest.mark.full
def test_which_of_several_servers(env: dict[str, str], kt: Run) -> None:
    first, second = detached(kt), detached(kt)
    shown = Screen(f"{sys.executable} -m kt_cli chat", env)
    shown.expect(f"Which server.*{second['pid']}.*{first['pid']}")
    shown.say("\x1b[B\r", f"tiny at {first['url']}")
    shown.expect(">>>")
    shown.child.sendeof()
    shown.end()


def test_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(['"""a', "", 'b"""', '"""one line"""', '"""', "x", '"""'])
    monkeypatch.setattr(prompt, "_plain", lambda mark: next(lines))
    read = prompt.Reader({})
    assert [read.question() for _ in range(3)] == ["a\n\nb", "one line", "x"]


def test_nothing_is_kept_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch, server: FakeServer) -> None:
    from kt_cli.chat import loop
    from kt_cli.commands.chat import converse

    began: list[session.Chat] = []
    monkeypatch.setattr(loop, "talk", began.append)
    api, options = client.Api(server.url), answer.options(None, None)
    converse(api, "m", 0, options)
    converse(api, "m", 0, options, save=False)
    monkeypatch.setenv("KT_CHAT_SAVE", "no")
    converse(api, "m", 0, options)
    assert [chat.file is None for chat in began] == [False, True, True]
