"""The API keys that `kt run` gives its server, and the web pages that may use it."""

from pathlib import Path

import pytest

from kt_cli import keys
from kt_cli.commands.run import _origins
from kt_core.errors import BadData, NotFound, UsageError


@pytest.fixture(autouse=True)
def _no_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("KT_SERVER_API_KEY", "KT_SERVER_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)


def test_where_keys_come_from(tmp_path, monkeypatch):
    file = tmp_path / "keys"
    file.write_text("# for the lab\n\n one \ntwo\none\n")
    assert keys.api_keys() == () and keys.own() == ""
    assert keys.api_keys("flag") == ("flag",)
    assert keys.api_keys("two", file) == ("two", "one")
    monkeypatch.setenv("KT_SERVER_API_KEY", "environment")
    monkeypatch.setenv("KT_SERVER_API_KEY_FILE", str(file))
    assert keys.api_keys() == ("environment", "one", "two") and keys.own() == "environment"
    assert keys.api_keys("flag") == ("flag", "one", "two")


def test_a_file_that_does_not_do(tmp_path):
    """A server that was to have keys never starts without one."""
    with pytest.raises(NotFound):
        keys.api_keys(file=tmp_path / "none")
    empty = tmp_path / "empty"
    empty.write_text("# nothing yet\n")
    with pytest.raises(BadData):
        keys.api_keys(file=empty)
    empty.write_bytes(b"\xff\xfe")
    with pytest.raises(BadData):
        keys.api_keys(file=empty)
    with pytest.raises(BadData):
        keys.api_keys(file=tmp_path)


@pytest.mark.parametrize("key", ["hush\nhush", " hush", "hush\x00"])
def test_a_key_that_no_header_can_hold(key):
    with pytest.raises(UsageError) as error:
        keys.api_keys(key)
    assert "hush" not in str(error.value)


def test_origins():
    assert _origins("") == ()
    assert _origins("https://a.example, http://b:8080/,*") == ("https://a.example", "http://b:8080", "*")
    for bad in ("a.example", "https://a.example/path", "https://"):
        with pytest.raises(UsageError):
            _origins(bad)


def test_what_kt_run_says_of_bad_access(kt, tmp_path):
    """Before anything is started, in words, with the documented codes."""
    program = (str(Path(__file__).parent / "stand_in.py"),)
    file = tmp_path / "keys"
    for more, code, said in (
        (("--api-key-file", "none"), 4, "none"),
        (("--api-key", "hush\nhush"), 2, "key"),
        (("--cors", "a.example"), 2, "a.example"),
    ):
        done = kt("run", "tiny", "--dry-run", *more, program=program)
        assert done.code == code and said in done.err and "hush" not in done.err, done.err
    file.write_text("one\n")
    given = ("--api-key-file", str(file), "--cors", "https://a.example", "--log-prompts")
    done = kt("run", "tiny", "--dry-run", "--json", *given, program=program)
    assert done.code == 0 and "one" not in done.out.split()
