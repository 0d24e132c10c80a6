"""Settings: types, precedence, broken files, and that each one is read somewhere."""

import re
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Run

from kt_core import config, paths
from kt_core.errors import BadData, KTError, NotFound, UsageError

ROOT = Path(__file__).parent.parent.parent


def write(text: str) -> Path:
    file = paths.config_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def test_defaults_have_their_types() -> None:
    for entry in config.SETTINGS:
        assert type(entry.default) is entry.type
        assert config.get(entry.key) == entry.default and config.origin(entry.key) == "default"


@pytest.mark.parametrize("entry", config.SETTINGS, ids=lambda entry: entry.key)
def test_every_setting_is_read(entry: config.Setting) -> None:
    """No setting without effect: its key is named in code outside the table of settings."""
    code = [
        p.read_text()
        for folder in ("kt_cli", "kt_core")
        for p in (ROOT / folder).rglob("*.py")
        if p.name != "config.py"
    ]
    assert any(f'"{entry.key}"' in text for text in code)


def test_environment_beats_file_beats_default(monkeypatch: pytest.MonkeyPatch) -> None:
    write("[server]\nport = 1234\n")
    assert (config.get("server.port"), config.origin("server.port")) == (1234, "file")
    monkeypatch.setenv("KT_SERVER_PORT", "4321")
    assert (config.get("server.port"), config.origin("server.port")) == (4321, "environment")


def test_set_keeps_comments_and_other_values() -> None:
    file = write("# mine\n[server]\nport = 1234  # here\nhost = '0.0.0.0'\n")
    assert config.set("server.port", "8080") == 8080
    assert config.set("chat.temperature", "1") == 1.0
    text = file.read_text()
    assert "# mine" in text and "# here" in text and "8080" in text and "host = '0.0.0.0'" in text
    assert type(config.get("chat.temperature")) is float
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [p.name for p in file.parent.iterdir()] == ["config.toml"]


def test_set_follows_a_link(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text("")
    link = paths.config_file()
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    config.set("server.port", 99)
    assert link.is_symlink() and "99" in real.read_text()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("server.port", "abc"),
        ("server.port", "0"),
        ("server.port", "65536"),
        ("server.port", True),
        ("server.port", 1.5),
        ("chat.temperature", "nan"),
        ("chat.temperature", "2.1"),
        ("general.color", "maybe"),
        ("server.host", 3),
    ],
)
def test_wrong_values_are_refused(key: str, value: Any) -> None:
    file = write("# untouched\n")
    with pytest.raises(UsageError, match=key):
        config.set(key, value)
    assert file.read_text() == "# untouched\n"


@pytest.mark.parametrize(
    ("key", "near"), [("server.prot", "server.port"), ("port", "server.port"), ("chat.temprature", "chat.temperature")]
)
def test_unknown_key_names_near_ones(key: str, near: str) -> None:
    for call in (lambda: config.get(key), lambda: config.set(key, "1"), lambda: config.origin(key)):
        with pytest.raises(NotFound, match=near):
            call()


BROKEN = [
    ("[server\nport = 1\n", r"line 1, column [78]: \[server "),
    ("[server]\nport = \n", "line 2, column .*: port = "),
    ("[server]\nhost = 'a'\n\nport\n[chat]\n", "line 4, column .*: port "),
    ("[chat]\nsystem = [1,\n\n", r"line 2, column .*: system = \[1, "),
    ("[server]\nport = 1\nport = 2\n", "line 3.*: port = 2"),
    ("[server]\napi_key = 'hunter2\n", r"line 2.*: api_key = \.\.\."),
    ("[server]\nprot = 1\n", "server.prot.*server.port"),
    ("[serverr]\nport = 1\n", "serverr.port.*server.port"),
    ("port = 1\n", "port"),
    ("[server]\nport = '1'\n", "server.port.*whole number"),
    ("[server]\nport = true\n", "server.port.*whole number"),
    ("[general]\ncolor = 'red'\n", "general.color.*always"),
]


@pytest.mark.parametrize(("text", "said"), BROKEN, ids=[text.replace("\n", "|") for text, _ in BROKEN])
def test_broken_file_is_named_and_left_alone(text: str, said: str) -> None:
    file = write(text)
    with pytest.raises(BadData, match=said) as failure:
        config.load()
    assert str(file) in str(failure.value) and "hunter2" not in str(failure.value)
    with pytest.raises(KTError):
        config.set("server.host", "::1")
    assert file.read_text() == text


@pytest.mark.parametrize("text", [text for text, _ in BROKEN[:6]], ids=lambda text: text.replace("\n", "|"))
def test_broken_file_without_pythons_parser(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.10 has none: the library's own place is told, and a line of the file is shown all the same."""
    monkeypatch.setitem(sys.modules, "tomllib", None)
    write(text)
    with pytest.raises(BadData, match=r"line \d+, column \d+: \S"):
        config.load()


def test_file_that_is_not_text() -> None:
    write("").write_bytes(b"[server]\nhost = '\xff'\n")
    with pytest.raises(BadData, match="UTF-8"):
        config.load()


def test_unwritable_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KT_CONFIG_FILE", "/proc/nothing/config.toml")
    with pytest.raises(KTError, match="cannot be written"):
        config.set("server.port", 1)


@pytest.mark.parametrize("key", ["nope", "xyzzy.quux", ""])
def test_unknown_key_that_is_like_none(key: str, kt: Run) -> None:
    done = kt("config", "get", key)
    assert done.code == 4 and "nearest" not in done.err.lower() and "server." not in done.err
    assert done.err.splitlines()[-1] == "  Known settings: kt config list"
    write("zzz = 1\n")
    with pytest.raises(BadData) as failure:
        config.load()
    assert "earest" not in str(failure.value)


def test_unset_says_what_it_did(kt: Run) -> None:
    write("[server]\nport = 8080\n")
    assert "no longer set" in kt("config", "unset", "server.port").err
    again = kt("config", "unset", "server.port", "--json", more={"KT_SERVER_PORT": "5"}).json
    assert again["removed"] is False and again["value"] == 5
    assert "was not set" in (said := kt("config", "unset", "server.port").err) and "stays 30000 (default)" in said


def test_edit(kt: Run, tmp_path: Path) -> None:
    """What the editor leaves is in force only when it is right; the template is all comments."""
    editor = tmp_path / "editor"

    def edited(script: str) -> Any:
        editor.write_text(f'#!/bin/sh\ncp "$1" "{tmp_path}/seen"\n{script}\n')
        editor.chmod(0o755)
        return kt("config", "edit", more={"EDITOR": str(editor)})

    assert "Nothing was changed" in edited("true").err and not paths.config_file().exists()
    seen = (tmp_path / "seen").read_text()
    assert all(f"# {entry.key.split('.')[1]} = " in seen for entry in config.SETTINGS)
    assert edited("""printf '[server]\\nport = 81\\n' > "$1" """).code == 0 and config.get("server.port") == 81
    bad = edited("""printf '[server]\\nport = "x"\\n' > "$1" """)
    assert bad.code == 5 and "server.port" in bad.err and config.get("server.port") == 81
    assert (tmp_path / "seen").read_text() == "[server]\nport = 81\n"
    write("[server\n")  # a broken file can be mended
    assert edited("""printf '[server]\\nport = 82\\n' > "$1" """).code == 0 and config.get("server.port") == 82
    assert edited("exit 3").code == 1 and config.get("server.port") == 82
    assert kt("config", "edit", more={"EDITOR": "no-such-editor"}).code == 6
    nobody = kt(
        "config", "edit", more={"EDITOR": "", "VISUAL": ""}
    )  # an editor would wait for keys that nobody presses
    assert nobody.code == 6 and "no terminal" in nobody.err


def test_unset(kt: Run) -> None:
    file = write("# mine\n[server]\nport = 1234  # here\nhost = '0.0.0.0'\n")
    done = kt("config", "unset", "server.port")
    assert done.code == 0 and done.out == "" and "30000" in done.err
    assert file.read_text() == "# mine\n[server]\nhost = '0.0.0.0'\n"
    assert kt("config", "unset", "server.port").code == 0  # again
    assert kt("config", "unset", "server.prt").code == 4
    assert kt("config", "unset", "server.host", "--json").json["value"] == "127.0.0.1"
    assert "5" in kt("config", "unset", "server.port", more={"KT_SERVER_PORT": "5"}).err


def test_unset_without_a_file_makes_none(kt: Run) -> None:
    assert kt("config", "unset", "server.port").code == 0 and not paths.config_file().exists()


def test_empty_value_is_seen(kt: Run) -> None:
    assert 'chat.system is now "", in' in kt("config", "set", "chat.system", "").err
    assert re.search(r'^chat\.system +"" +file +System prompt of', kt("config", "list").out, re.MULTILINE)
    assert kt("config", "get", "chat.system").out == ""


def test_bad_environment_value(kt: Run) -> None:
    done = kt("config", "list", more={"KT_SERVER_PORT": "x"})
    assert done.code == 2 and "KT_SERVER_PORT" in done.err and "whole number from 1 to 65535" in done.err


def test_commands(kt: Run, tmp_path: Path) -> None:
    assert kt("config", "get", "server.port").out == "30000\n"
    done = kt("config", "set", "server.port", "8080")
    assert done.code == 0 and done.out == "" and "8080" in done.err
    assert kt("config", "get", "server.port", "--json").json == {
        "schema_version": 1,
        "key": "server.port",
        "value": 8080,
        "origin": "file",
    }
    assert kt("config", "set", "server.port", "x").code == 2
    assert kt("config", "get", "server.prt").code == 4
    assert kt("config", "path").out.strip() == str(tmp_path / "config" / "kt" / "config.toml")
    listed = {s["key"]: s for s in kt("config", "list", "--json").json["settings"]}
    assert set(listed) == {s.key for s in config.SETTINGS} and listed["server.port"]["origin"] == "file"
    assert kt("config", "list", "-q").out.split() == [s.key for s in config.SETTINGS]
    shadowed = kt("config", "set", "server.port", "7", more={"KT_SERVER_PORT": "5"})
    assert shadowed.code == 0 and "KT_SERVER_PORT" in shadowed.err


def test_secret_is_not_listed(kt: Run) -> None:
    assert "hunter2" not in kt("config", "set", "server.api_key", "hunter2").err
    assert "hunter2" not in kt("config", "list").out + kt("config", "list", "--json").out
    assert kt("config", "get", "server.api_key").out == "hunter2\n"


def test_broken_file_stops_only_what_needs_settings(kt: Run, tmp_path: Path) -> None:
    file = tmp_path / "config" / "kt" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[server\n")
    assert kt("--help").code == 0 and kt("version").code == 0 and kt("config", "path").code == 0
    done = kt("config", "list")
    assert done.code == 5 and str(file) in done.err and "line 1" in done.err
    assert kt("config", "set", "server.port", "1").code == 5 and file.read_text() == "[server\n"
    found = {check["name"]: check for check in kt("doctor", "--json").json["checks"]}
    assert found["settings"]["status"] == "error" and "line 1" in found["settings"]["value"]


def test_environment_names_follow_the_rule() -> None:
    for entry in config.SETTINGS:
        if entry.key != "general.language":
            assert entry.env == "KT_" + re.sub(r"\.", "_", entry.key).upper()


def test_a_key_that_cannot_be_one_is_not_shown(kt: Run, tmp_path: Path) -> None:
    done = kt("config", "list", more={"KT_SERVER_API_KEY": "hush\nhush"})
    assert done.code == 2 and "hush" not in done.err and "one line" in done.err
    done = kt("config", "set", "server.api_key", "hush\nhush")
    assert done.code == 2 and "hush" not in done.err


def test_changes_at_the_same_time_are_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"chat.temperature": 0.5, "chat.max_tokens": 7, "server.port": 31000, "inference.threads": 3}
    parse = config._parse_file
    monkeypatch.setattr(config, "_parse_file", lambda file: (parse(file), time.sleep(0.02))[0])  # others' turn
    with ThreadPoolExecutor(len(values)) as pool:
        list(pool.map(lambda item: config.set(*item), values.items()))
    assert {key: config.get(key) for key in values} == values
    assert [file.name for file in paths.config_file().parent.iterdir()] == ["config.toml"]
