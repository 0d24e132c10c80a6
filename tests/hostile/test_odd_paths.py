"""Paths that a person may type and no file can have."""

import pytest

from kt_cli import client
from kt_cli.chat import commands, session

ODD = {"long": "x" * 5000, "nobody": "~nobody-at-all/x", "missing": "/nowhere/x"}


@pytest.mark.parametrize(
    "args",
    [("run", "MODEL", "--dry-run", "--rules", ODD["long"]), ("run", "MODEL", "--dry-run", "--rules", ODD["nobody"]),
     ("doctor", "--sysroot", ODD["long"])],
    ids=["long rules", "rules of nobody", "long root"],
)  # fmt: skip
def test_options_that_take_a_path(kt, tiny, args):
    done = kt(*(str(tiny) if word == "MODEL" else word for word in args))
    assert done.returncode == 4 and "should not" not in done.stderr, done.stderr


@pytest.mark.parametrize(("name", "args"), [("XDG_CACHE_HOME", ["doctor"]), ("KT_CONFIG_FILE", ["config", "path"])])
def test_folders_of_the_environment(kt, name, args):
    done = kt(*args, more={name: "/tmp/" + ODD["long"]})
    assert "should not" not in done.stderr, done.stderr


@pytest.mark.parametrize("name", [*ODD.values(), "a\0b"], ids=[*ODD, "zero"])
def test_saving_a_chat(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    api, messages = client.Api("http://127.0.0.1:1"), [{"role": "user", "content": "x"}]
    talk = session.Chat(api, "m", client.Options(), "", messages=messages)
    commands.run(talk, f"/save {name}")
    assert "cannot be written" in capsys.readouterr().err
    talk.messages[0]["content"] = "\udcff"
    commands.run(talk, "/save half.json")
    assert "cannot be written" in capsys.readouterr().err and not list(tmp_path.iterdir())
