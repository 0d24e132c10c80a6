"""`kt run` without arguments on a terminal, and profiles: from the first question to a served answer."""

import re
import sys
from pathlib import Path

import pytest
import small_hub
from cli_runner import Run
from test_cli_run import ANSWER, STAND_IN, wait_for
from test_cli_servers import ended  # noqa: F401  no server outlives a test
from test_cli_terminal import Screen

from kt_cli import profiles, servers, wizard
from kt_core.errors import BadData, NotFound, UsageError

DOWN, ENTER = "\x1b[B", "\r"
LAST = r" Cancel\x1b"  # the last row of a menu, after which keys may be typed


@pytest.fixture(autouse=True)
def pulled(tmp_path: Path) -> None:
    """A model in the store; the stand-in reads none of it."""
    folder = tmp_path / "data" / "kt" / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "m.gguf").touch()


def questions(env: dict[str, str], words: str = "run", columns: int = 80) -> Screen:
    return Screen(f"{sys.executable} {STAND_IN[0]} {words}", env, columns)


@pytest.mark.parametrize("words", ["run", "chat"])
def test_to_a_served_answer(words: str, env: dict[str, str]) -> None:
    """Enter alone leads from nothing to a conversation, whose server ends with it."""
    shown = questions(env, words)
    if words == "chat":
        shown.expect("Start one")
        shown.child.send("y")
    shown.expect("Which model.*mine.*" + LAST)
    shown.say(ENTER, "talk to it here.*" + LAST)
    shown.say(ENTER, "kt run mine --chat")
    shown.expect(">>>")
    assert len(servers.running()) == 1
    shown.say("Where?" + ENTER, "context 18 of 32")
    shown.expect(">>>")
    shown.child.sendeof()
    drawn = shown.end()
    assert ANSWER.replace("*", "") in drawn and "code 0" in drawn and not servers.running()


def test_ctrl_c_stops_answers_and_not_the_server(env: dict[str, str]) -> None:
    """Of a server that runs for one conversation: again and again."""
    shown = questions({**env, "KT_TEST_SERVER": "talkative"}, "run tiny --chat")
    shown.expect(">>>")
    (server,) = servers.running()
    for _ in range(2):
        shown.say("Talk" + ENTER, "word word word")
        shown.child.sendintr()
        shown.expect("Stopped")
        shown.expect(">>>")
    assert servers.running() == [server]
    shown.child.sendeof()
    assert "code 0" in shown.end() and not servers.running()


def test_changes_a_profile_and_the_background(env: dict[str, str], kt: Run, tmp_path: Path) -> None:
    shown = questions(env, columns=120)
    shown.expect(LAST)
    shown.say(ENTER, LAST)
    shown.say(DOWN * 3 + ENTER, "Planned: 32, because: fits.*planned one:")
    shown.say("64" + ENTER, LAST)
    shown.say(DOWN * 4 + ENTER, "this machine.*set server.api_key")
    shown.say(ENTER, "this machine only.*" + LAST)
    shown.say(DOWN * 6 + ENTER, "Name of the profile")
    shown.child.send("\x15")  # takes the suggested name away
    shown.say("work" + ENTER, "kt run @work does the same.*" + LAST)
    shown.say(DOWN + ENTER, "kt run mine --context 64 --host 127.0.0.1 --detach")
    assert "code 0" in shown.end()
    (server,) = servers.running()
    assert servers.plan_of(server).decisions[0].value == 64
    assert 'model = "mine"\ncontext = 64\n' in (tmp_path / "config" / "kt" / "profiles" / "work.toml").read_text()
    found = kt("run", "@work", "--dry-run", "--json", program=STAND_IN).json
    assert found["decisions"][0]["value"] == 64 and found["server"]["host"] == "127.0.0.1"
    other = kt("run", "@work", "--context", "8", "--dry-run", "--json", program=STAND_IN).json
    assert other["decisions"][0]["value"] == 8  # what is typed wins


def test_back_cancel_and_a_wrong_path(env: dict[str, str]) -> None:
    shown = questions(env)
    shown.expect(LAST)
    shown.say(ENTER, LAST)
    shown.say(DOWN * 7 + ENTER, "Which model.*" + LAST)  # back
    shown.say(DOWN * 5 + ENTER, "code 0")  # cancel
    assert not servers.running()


@pytest.mark.parametrize(("language", "columns"), [("zh", 80), ("en", 120)])
def test_screens(language: str, columns: int, env: dict[str, str]) -> None:
    """Every row of both menus in its own line, in both languages; no colour where none is wanted."""
    shown = questions({**env, "KT_LANG": language, "NO_COLOR": "1"}, columns=columns)
    written = ""
    for keys, last in (("", "(Cancel|取消)\x1b"), (ENTER, "(Back|返回).*(Cancel|取消)\x1b"), ("\x03", "code 130")):
        shown.child.send(keys)
        shown.expect(last)
        written += shown.child.before
    drawn = shown.screen.display
    assert not re.search(r"\x1b\[[0-9;]*\b3[0-9]m", written), "colour"
    rows = [line.rstrip() for line in drawn if line.strip()]
    assert all(len(row) <= columns for row in rows)
    assert any("\u4e00" <= char <= "\u9fff" for row in rows for char in row) == (language == "zh")


def test_long_reasons_stay_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = wizard._row("context", "8192", "the longest that fits: " + "many words " * 20)
    assert len(row) <= 78 and row.endswith(" …)")
    assert wizard._row("context", "8192", "fits") == "Change the context: 8192 (fits)"


def test_a_model_of_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    from kt_cli import choose

    asked: list[str] = []
    agreed = iter([False, True])
    monkeypatch.setattr(choose, "agree", lambda question: asked.append(question) or next(agreed))
    with small_hub.serving() as (_, address):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        assert wizard._files("me/tiny") is None
        files = wizard._files("me/tiny")
    assert files and files.name == "tiny" and asked[0] == asked[1] and "me/tiny (" in asked[0]
    assert wizard._files("me/tiny") == files  # asks no more
    with pytest.raises(NotFound, match="nowhere"):
        wizard._files("./nowhere.gguf")


def test_never_asks_with_arguments_or_without_a_terminal(env: dict[str, str], kt: Run) -> None:
    done = kt("run", program=STAND_IN)
    assert done.code == 2 and "kt run needs NAME" in done.err
    shown = questions(env, "run --threads 2")
    assert "kt run needs NAME" in shown.end()
    assert kt("run", "tiny", "--chat", program=STAND_IN).code == 2


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["@p"], ["m", "--context", "8"]),
        (["@p", "-d"], ["m", "--context", "8", "-d"]),
        (["-d", "@p"], ["m", "--context", "8", "-d"]),
        (["--threads", "2", "@p"], ["m", "--context", "8", "--threads", "2"]),
        (["m", "-p", "@p"], ["m", "-p", "@p"]),
        (["m"], ["m"]),
    ],
)
def test_words_of_a_profile(given: list[str], read: list[str]) -> None:
    profiles.save("p", "m", {"context": 8})
    assert profiles.expanded(given, {"-d"}) == read
    assert profiles.line("m", {"context": 8, "detach": True}) == ["m", "--context", "8", "--detach"]
    assert profiles.names() == ["p"]


def test_profiles_that_are_not_right(kt: Run) -> None:
    with pytest.raises(NotFound, match="@p"):
        profiles.words("p")
    file = profiles.save("p", "m", {})
    file.write_text('model = "tiny"\nlog-prompts = true\nforce = false\n')
    assert profiles.words("p") == ["tiny", "--log-prompts"]
    for text in ("model = [", "[part]\nx = 1\n", "\xff"):
        file.write_text(text, encoding="latin-1")
        with pytest.raises(BadData):
            profiles.words("p")
    file.write_text('model = "tiny"\nprot = 3\n')
    done = kt("run", "@p", program=STAND_IN)
    assert done.code == 2 and "no option --prot" in done.err
    for name in ("../p", "", ".p", "a/b"):
        with pytest.raises(UsageError):
            profiles.save(name, "m", {})
        with pytest.raises(NotFound):
            profiles.words(name)
    absent = kt("run", "@other", program=STAND_IN)
    assert absent.code == 4 and "@p" in absent.err
    wait_for(lambda: not servers.running())
