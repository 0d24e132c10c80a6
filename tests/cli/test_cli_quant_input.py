"""What `kt quant` says of models, texts and places that it cannot work with: before any work, in a dry run too."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import checkpoint
import pytest
from cli_runner import Run

UP = "model.layers.0.mlp.up_proj.weight"
NORM = "model.norm.weight"


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize(
    ("name", "dtype", "told"),
    [(UP, "float8_e5m2", "F8_E5M2"), (UP, "complex64", "C64"), (UP, "int32", "I32"), (NORM, "int64", "I64")],
)
def test_types_that_are_no_weights(kt: Run, tmp_path: Path, name: str, dtype: str, told: str, dry: bool) -> None:
    source = checkpoint.save(tmp_path / "source", {name: dtype})
    done = kt("quant", str(source), "-m", "int4", "--out", "out", *(["--dry-run"] if dry else []))
    assert done.code == 7 and name in done.err and told in done.err and done.out == "", done.err
    assert "Writing" not in done.err and not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize("dry", [True, False])
def test_a_family_that_kt_has_no_model_of(kt: Run, tmp_path: Path, dry: bool) -> None:
    source = checkpoint.save(tmp_path / "source", model_type="nosuch")
    done = kt("quant", str(source), "-m", "int4", "--out", "out", *(["--dry-run"] if dry else []))
    assert done.code == 0 and "kt has no model for source" in done.err and "nosuch" in done.err
    assert dry or done.err.index("no model") < done.err.index("Writing")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{nope", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"{}", "model_type is missing"),
        (b'{"model_type": "llama"}', "num_hidden_layers is missing"),
        (b'{"model_type": "llama", "num_hidden_layers": "one", "hidden_size": 64}', "num_hidden_layers is one"),
        (b'{"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "text_config": [1]}', "text_config is"),
        (b'{"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 0}', "heads is 0"),
    ],
)
def test_a_bad_configuration(kt: Run, tmp_path: Path, content: bytes, words: str) -> None:
    source = checkpoint.save(tmp_path / "source")
    (source / "config.json").write_bytes(content)
    done = kt("quant", str(source), "-m", "int4", "--dry-run")
    assert done.code == 5 and words in done.err and str(source / "config.json") in done.err, done.err


@pytest.mark.parametrize("option", ["--gptq", "--importance"])
@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (None, 4, "There is no file"),
        (b"", 5, "It is empty"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9, 5, "is not UTF-8"),
        (b"a\0b" * 900, 5, "The byte at 1 is 0"),
        (b"x", 5, "It has 1 letters; at least"),
        (b"ha " * 900, 5, "It has 2 different letters"),
    ],
)
def test_what_is_no_text_to_learn_from(
    kt: Run, tmp_path: Path, option: str, content: bytes | None, code: int, words: str
) -> None:
    source = checkpoint.save(tmp_path / "source")
    if content is not None:
        (tmp_path / "text").write_bytes(content)
    for more in (["--dry-run"], []):
        done = kt("quant", str(source), "-m", "int4", option, "text", *more)
        assert done.code == code and words in done.err and "Starting" not in done.err, done.err


def test_an_error_keeps_the_kind_that_it_had_in_its_process(kt: Run, tmp_path: Path) -> None:
    ints = checkpoint.save(tmp_path / "ints", {UP: "int32"})
    assert kt("quant", str(ints), "-m", "int4", "--json").json["error"]["kind"] == "Unsupported"
    source = checkpoint.save(tmp_path / "source")
    done = kt("quant", str(source), "-m", "int4", "--override", "nosuch=int8", "--json")
    assert done.json["error"]["kind"] == "UsageError"
    (source / "config.json").write_text("[]")
    assert kt("quant", str(source), "-m", "int4", "--json").json["error"]["kind"] == "BadData"


@pytest.mark.parametrize("rule", ["q_proj=int4:", "q_proj=int8:", "q_proj=keep:"])
def test_an_empty_group_of_a_rule(kt: Run, tmp_path: Path, rule: str) -> None:
    done = kt("quant", str(checkpoint.save(tmp_path / "source")), "-m", "int4", "--override", rule, "--dry-run")
    assert done.code == 2 and "PATTERN=int4:GROUP" in done.err


@pytest.mark.parametrize("out", ["file/x", "n" * 250, "/proc/x", "new/deep/" + "n" * 250])
def test_a_dry_run_refuses_the_places_that_the_run_does(kt: Run, tmp_path: Path, out: str) -> None:
    source = checkpoint.save(tmp_path / "source")
    (tmp_path / "file").touch()
    before = sorted(path.name for path in tmp_path.iterdir())
    command = ("quant", str(source), "-m", "int4", "--out", out)
    asked, done = kt(*command, "--dry-run"), kt(*command)
    assert asked.code == done.code == 1 and "cannot be made" in asked.err and asked.out == "", asked.err
    assert asked.err.splitlines()[:2] == done.err.splitlines()[:2]
    assert {path.name for path in tmp_path.iterdir()} <= {*before, "state", "cache"}


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_dry_run_without_permission(kt: Run, tmp_path: Path) -> None:
    source = checkpoint.save(tmp_path / "source")
    (tmp_path / "closed").mkdir(mode=0o500)
    done = kt("quant", str(source), "-m", "int4", "--out", "closed/x", "--dry-run")
    assert done.code == 1 and "Permission denied" in done.err


SLOW = (
    "import sys, time\nfrom kt_core.quantise import write\n"
    "def record(*a):\n    print('one layer', file=sys.stderr, flush=True)\n    time.sleep(60)\n"
    "write._record = record\nfrom kt_core.quantise.__main__ import main\nmain()\n"
)


@pytest.mark.parametrize(("language", "words"), [("en", ("Stopped", "begins anew")), ("zh", ("终止", "重新开始"))])
def test_a_signal_says_what_the_same_command_would_do(
    env: dict[str, str], tmp_path: Path, language: str, words: tuple[str, str]
) -> None:
    source = checkpoint.save(tmp_path / "source")
    program = f"import sys\nfrom kt_cli.commands import quant\nquant.QUANTISE = [sys.executable, '-c', {SLOW!r}]\n"
    program += "from kt_cli.main import main\nmain()\n"
    command = [sys.executable, "-c", program, "quant", str(source), "-m", "int4", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, env=env | {"KT_LANG": language}, stderr=subprocess.PIPE, text=True)
    while not any("one layer" in log.read_text() for log in (tmp_path / "state" / "kt" / "logs").glob("*.log")):
        assert process.poll() is None, process.stderr
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1 and all(word in err for word in words), err


def test_a_plan_is_json_beside_what_is_told(kt: Run, tmp_path: Path) -> None:
    source = checkpoint.save(tmp_path / "source", model_type="nosuch")
    done = kt("quant", str(source), "-m", "int4", "--dry-run", "--json")
    assert json.loads(done.out)["rows"] and "no model" in done.err
