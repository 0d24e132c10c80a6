"""Closed, full and foreign-language streams; missing parts; odd values of flags, settings and addresses."""

import io
import os
import sys
from pathlib import Path

import pytest
import tinymodel
from live import Running

from kt_cli import checks, client, main
from kt_core import config, paths
from kt_core.engine.engine import Engine
from kt_core.errors import BadData, EnvironmentProblem, KTError, UsageError
from kt_core.server.state import State

FAULT = "in a way that it should not"


def clean(done):
    """A failure told in kt's own words, not as a fault of its own."""
    return FAULT not in done.stderr and "Traceback" not in done.stderr


def test_a_full_standard_output(kt):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = kt("version", stdout=full)
    assert done.returncode == 1 and clean(done), done.stderr


@pytest.mark.parametrize("arguments", [["version"], ["version", "--json"], ["model", "list", "-q"]])
def test_a_closed_standard_output(kt, arguments):
    done = kt(*arguments, stdout=None, preexec_fn=lambda: os.close(1))
    assert clean(done), done.stderr[-300:]


def test_a_closed_standard_error_does_not_stop_an_answer(kt, stand_in):
    done = kt("run", "tiny", "-p", "x", program=stand_in, stderr=None, preexec_fn=lambda: os.close(2))
    assert done.returncode == 0 and done.stdout


def test_a_prompt_from_a_closed_standard_input(kt, stand_in):
    done = kt("run", "tiny", "-p", "-", program=stand_in, stdin=None, preexec_fn=lambda: os.close(0))
    assert done.returncode == 2 and clean(done), done.stderr


def test_chinese_on_a_terminal_that_knows_ascii_only(kt):
    done = kt("model", "list", more={"PYTHONIOENCODING": "ascii", "KT_LANG": "zh"})
    assert done.returncode == 0 and clean(done) and "demo" in done.stdout, done.stderr


def test_a_chinese_json_error_on_an_ascii_pipe(kt):
    done = kt("model", "path", "nosuch", "--json", more={"PYTHONIOENCODING": "ascii", "KT_LANG": "zh"})
    assert done.returncode == 4 and clean(done), done.stderr[-300:]


def test_a_prompt_that_is_not_text_is_refused_before_a_model_loads(kt, stand_in):
    """Told by the command line as a wrong prompt, not by the server as broken JSON."""
    done = kt("run", "tiny", "-p", "-", program=stand_in, input=b"a\xff", text=None, stdin=None, errors=None)
    assert done.returncode == 2 and b"Loading" not in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["torch", "transformers", "uvicorn"])
def test_a_missing_package_is_an_environment_problem(kt, tiny, tmp_path, env, name):
    folder = tmp_path / "stub"
    folder.mkdir()
    (folder / f"{name}.py").write_text(f'raise ModuleNotFoundError("No module named {name}", name="{name}")\n')
    done = kt("run", str(tiny), "-p", "x", more={"PYTHONPATH": f"{folder}:{env['PYTHONPATH']}"})
    assert done.returncode == EnvironmentProblem.exit_code and "kt doctor" in done.stderr, done.stderr


@pytest.mark.parametrize("count", ["99999", "99999999999999999999"])
def test_more_threads_than_the_setting_allows(kt, tiny, count):
    """inference.threads ends at 4096; the flag must not go where the setting cannot."""
    assert kt("run", str(tiny), "--threads", count, "--dry-run").returncode == 2


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "\udcff"], ids=["empty label", "long label", "not text"])
def test_a_host_that_cannot_be_a_name(kt, tiny, host):
    done = kt("run", str(tiny), "--host", host, "--dry-run")
    assert done.returncode == 2 and clean(done), done.stderr


@pytest.mark.parametrize("url", ["http://[::1", "http://a..b:80", f"http://{'a' * 80}:80"])
def test_a_url_that_cannot_be_one(url):
    with pytest.raises(UsageError):
        client.models(client.Api(url))


@pytest.mark.parametrize("key", ["é", "密钥"])
def test_an_api_key_beyond_ascii_opens_ones_own_server(key):
    server = Running(State("tiny", (key,), Engine(tinymodel.runner(), tinymodel.tokenizer())))
    try:
        assert list(client.models(client.Api(server.url, key))) == ["tiny"]
    finally:
        server.close()


def test_an_api_key_with_a_line_break_is_refused_in_words(kt, stand_in):
    done = kt("run", "tiny", "-p", "x", program=stand_in, more={"KT_SERVER_API_KEY": "a\nb"})
    assert done.returncode != 0 and clean(done), done.stderr


def test_a_settings_path_that_is_too_long(here, monkeypatch):
    monkeypatch.setenv("KT_CONFIG_FILE", "/tmp/" + "a" * 300)
    with pytest.raises(BadData):
        config.load()


def test_a_settings_file_without_end(kt, tmp_path):
    """A device or a pipe is no settings file; reading /dev/zero ends only when the memory does."""
    import resource

    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))  # noqa: E731
    done = kt("config", "list", more={"KT_CONFIG_FILE": "/dev/zero"}, preexec_fn=limit)
    assert done.returncode == BadData.exit_code and clean(done), done.stderr[-300:]


def test_a_whole_number_too_big_for_a_float(here, monkeypatch, tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(f"[chat]\ntemperature = 1{'0' * 400}\n")
    monkeypatch.setenv("KT_CONFIG_FILE", str(file))
    with pytest.raises(BadData):
        config.load()


def test_a_setting_that_is_not_text_leaves_no_file_behind(here, monkeypatch, tmp_path):
    file = tmp_path / "settings" / "config.toml"
    monkeypatch.setenv("KT_CONFIG_FILE", str(file))
    with pytest.raises(KTError):
        config.set("chat.system", "a\udcffb")
    assert not file.parent.exists() or list(file.parent.iterdir()) == []


def test_a_models_folder_of_an_unknown_user(here, monkeypatch):
    from kt_core.models import store

    monkeypatch.setenv("KT_PATHS_MODELS", "~nosuchuser/models")
    with pytest.raises(KTError):
        store.models_dir()


def test_no_home_folder_at_all(kt, env, monkeypatch):
    """A container's user without an entry in passwd, and no HOME."""
    code = "import os\nos.getuid = lambda: 4242424\nfrom kt_cli.main import main\nmain(['model', 'list'])\n"
    bare = {k: v for k, v in env.items() if k != "HOME" and not k.startswith("XDG_")}
    done = kt(program=("-c", code), env=bare)
    assert clean(done) and done.returncode in (0, EnvironmentProblem.exit_code), done.stderr[-300:]
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 4_242_424)
    with pytest.raises(KTError):
        paths.state_dir()


NO_HOME = "import os\nos.getuid = lambda: 4242424\nfrom kt_cli.main import main\nmain({!r})\n"


@pytest.mark.parametrize("args", [["config", "list"], ["version"], ["chat"], ["run", "/no/model"]], ids=" ".join)
def test_without_any_home_only_what_needs_a_folder_fails(kt, env, args):
    """Settings and running servers that cannot be there are absent."""
    bare = {k: v for k, v in env.items() if k != "HOME" and not k.startswith("XDG_")}
    done = kt(program=("-c", NO_HOME.format(args)), env=bare)
    assert clean(done) and "HOME" not in done.stderr, done.stderr[-300:]


def test_doctor_without_any_home(here, monkeypatch):
    for name in [name for name in os.environ if name == "HOME" or name.startswith("XDG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("os.getuid", lambda: 4_242_424)
    found = [*checks.settings(), *checks.folders(), *checks.running_servers()]
    assert [(check.name, check.status) for check in found] == [
        ("settings", "warn"), ("models", "error"), ("state", "error"), ("servers", "ok"), ("port", "ok"),
    ]  # fmt: skip
    assert all("no home folder" in check.value and "HOME" in check.suggestion for check in found[:3])


@pytest.mark.parametrize(
    ("variable", "faulty"), [("XDG_DATA_HOME", "models"), ("KT_PATHS_MODELS", "models"), ("XDG_STATE_HOME", "state")]
)
def test_doctor_sees_a_file_where_a_folder_should_be(here, tmp_path, monkeypatch, variable, faulty):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(variable, str(tmp_path / "file"))
    found = {check.name: check for check in checks.folders()}
    assert [name for name, check in found.items() if check.status == "error"] == [faulty]
    assert f"{tmp_path / 'file'} is a file" in found[faulty].suggestion


@pytest.mark.parametrize(
    ("variable", "command", "code"),
    [
        ("XDG_CONFIG_HOME", "config set server.port 31000", 1),
        ("XDG_CONFIG_HOME", "model list", 0),
        ("XDG_STATE_HOME", "run tiny -p Hi", 1),
        ("XDG_STATE_HOME", "chat", 4),
        ("XDG_DATA_HOME", "model pull demo", 1),
        ("KT_PATHS_MODELS", "model list", 0),
        ("KT_PATHS_MODELS", "model pull demo", 1),
        ("KT_PATHS_MODELS", "model rm demo --yes", 4),
        ("HOME", "config set server.port 31000", 1),
        ("HOME", "model pull demo", 1),
    ],
)
def test_a_file_where_a_folder_should_be(kt, env, tmp_path, stand_in, variable, command, code):
    """Each command works without that folder, or names it and what is wrong."""
    file = tmp_path / "file"
    file.write_text("")
    bare = {k: v for k, v in env.items() if not k.startswith("XDG_")} if variable == "HOME" else env
    program = stand_in if command.startswith("run") else ("-m", "kt_cli")
    done = kt(*command.split(), program=program, env={**bare, variable: str(file)})
    assert clean(done) and done.returncode == code, done.stderr
    assert code != 1 or str(file) in done.stderr


def test_a_server_that_cannot_note_itself_says_so(kt, env, tmp_path, tiny):
    state = tmp_path / "state" / "kt"
    state.mkdir(parents=True)
    (state / "servers").write_text("")
    done = kt("run", str(tiny), "-p", "Hi", "--max-tokens", "1")
    assert done.returncode == 1 and f"nothing can be written to {state / 'servers'}" in done.stderr


def test_settings_with_a_byte_order_mark(kt, env):
    file = Path(env["XDG_CONFIG_HOME"]) / "kt" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\xef\xbb\xbf[inference]\r\nthreads = 3\r\n")
    assert kt("config", "get", "inference.threads").stdout == "3\n"
    assert kt("config", "set", "server.host", "localhost").returncode == 0
    assert kt("config", "get", "inference.threads").stdout == "3\n"


@pytest.mark.parametrize("number", main.SCARCE)
def test_a_limit_of_the_system_is_told_as_such(here, number, monkeypatch, capsys):
    def scarce():
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(main, "command_tree", scarce)
    assert main.run(["model", "list"]) == 1
    told = capsys.readouterr().err
    assert os.strerror(number) in told and "ulimit" in told and FAULT not in told


@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_files_without_end_are_refused_before_they_fill_the_memory(kind, monkeypatch, tmp_path):
    from kt_cli import answer, keys
    from kt_cli.chat import saved
    from kt_core.quality import job
    from kt_core.train import data, launcher, settings

    monkeypatch.setattr(paths, "MOST_BYTES", 1 << 12)
    file = Path("/dev/zero")
    if kind == "pipe":
        read, write = os.pipe()
        os.write(write, b"x" * (1 << 13))
        file = Path(f"/dev/fd/{read}")
    readers = [answer.attachment, saved.read, keys._lines, job.read_text, settings.read]
    readers.append(lambda path: launcher.read(path, None))
    if kind == "pipe":  # which can be read once
        readers = readers[:1]
    else:
        readers.append(data._json)
    for reader in readers:
        with pytest.raises(KTError, match="large"):
            reader(file)
    monkeypatch.setattr(sys, "stdin", io.StringIO("x" * (1 << 13)))
    with pytest.raises(KTError, match="large"):
        answer.question_from_stdin()


def test_a_large_file_is_no_file_without_end(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "MOST_BYTES", 4)
    (tmp_path / "a").write_bytes(b"one\r\ntwo\rthree")
    assert paths.text(tmp_path / "a") == "one\ntwo\nthree"
