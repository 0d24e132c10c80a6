"""The JSON of every command that reads: which fields there are, and of what type."""

from pathlib import Path
from typing import Any

import pytest
from cli_runner import Run

from kt_cli import profiles, tree

TEXT, WHOLE, NUMBER, FLAG = str, int, (int, float), bool
MAYBE = type(None)
SETTING = {"key": TEXT, "value": (TEXT, WHOLE, float, FLAG), "origin": TEXT}
MODEL = {
    "name": TEXT, "pulled": FLAG, "missing": FLAG, "bytes": WHOLE, "download_bytes": WHOLE, "format": TEXT,
    "about": TEXT, "path": (TEXT, MAYBE),
}  # fmt: skip
DECISION = {"name": TEXT, "value": object, "reason": TEXT, "source": TEXT, ...: ...}
INSTALLED = {"shell": TEXT, "dry_run": FLAG, "files": [{"file": TEXT, "done": TEXT}]}
CHECK = {"name": TEXT, "status": TEXT, "value": TEXT, ...: ...}
DOCTOR = {"counts": dict, "checks": [CHECK], "machine": dict, ...: ...}
# command line -> its document; a list holds what its items are, and ... stands for more fields
SCHEMAS: dict[str, Any] = {
    "config list": {"settings": [SETTING]},
    "config get server.port": SETTING,
    "config show": {"settings": [{"key": TEXT, "value": SETTING["value"]}]},
    "config show --origin": {"settings": [SETTING]},
    "config path": {"path": TEXT, "exists": FLAG},
    "config profiles": {"profiles": [{"name": TEXT, "file": TEXT, "command": TEXT, "error": TEXT}]},
    "model list": {"models": [MODEL]},
    "model list --known": {
        "models": [
            {"name": TEXT, "parameters": WHOLE, "active_parameters": WHOLE, "bytes": WHOLE, "method": TEXT, "repository": TEXT}
        ]
    },
    "model path mine": {"name": TEXT, "path": TEXT, "files": [TEXT]},
    "model path of mine": {"name": TEXT, "path": TEXT, "files": [TEXT]},
    "model path list": {"folders": [{"path": TEXT, "models": WHOLE, "missing": FLAG, "downloads": FLAG}]},
    "model verify mine": {
        "name": TEXT, "files": [{"file": TEXT, "bytes": WHOLE, "state": TEXT}], "broken": [TEXT], "repaired": [TEXT],
    },
    "model scan DATA": {"models": [{"name": TEXT, "path": TEXT, "format": TEXT, "bytes": WHOLE, "problem": TEXT}]},
    "model pull smollm2 --dry-run": {
        "name": TEXT, "folder": TEXT, "files": [{"file": TEXT, "bytes": WHOLE}], "bytes": WHOLE, "free": WHOLE, "there": FLAG,
    },
    "model show r1": {"name": TEXT, "source": TEXT, "spec": dict, "bytes": WHOLE, "cache_bytes_per_token": WHOLE, ...: ...},
    "plan r1 --simulate cpu=9654:2,ram=2TiB,disk=9TiB": {
        "fits": FLAG, "decisions": [DECISION], "memory": dict, "predicted": dict, ...: ...,
    },
    "ps": {"servers": []},
    "completion bash": {"shell": TEXT, "script": TEXT},
    "completion zsh": {"shell": TEXT, "script": TEXT},
    "completion fish": {"shell": TEXT, "script": TEXT},
    "completion install fish --dry-run": INSTALLED,
    "completion uninstall zsh --dry-run": INSTALLED,
    "version": {"kt": TEXT, "python": TEXT, "torch": TEXT, ...: ...},
}  # fmt: skip
# These are tested where they have something to read, or read nothing.
ELSEWHERE = {
    "run", "chat", "stop", "logs", "doctor", "model rm", "model add", "model path add", "model path remove", "config set", "config unset",
    "config edit",
}  # fmt: skip


def fits(value: Any, schema: Any, where: str = "") -> None:
    if isinstance(schema, list):
        assert isinstance(value, list), where
        for number, item in enumerate(value):
            assert schema, f"{where} is not empty"
            fits(item, schema[0], f"{where}[{number}]")
    elif isinstance(schema, dict):
        named = {name for name in schema if name is not ...}
        assert named <= set(value) and (... in schema or set(value) <= named), f"{where}: {sorted(value)}"
        for name in named:
            fits(value[name], schema[name], f"{where}.{name}")
    else:
        kinds = schema if isinstance(schema, tuple) else (schema,)
        right = isinstance(value, kinds) and (not isinstance(value, bool) or not {bool, object}.isdisjoint(kinds))
        assert right, f"{where} is {value!r}"


@pytest.mark.parametrize("line", SCHEMAS)
def test_schema(line: str, here: Run, tmp_path: Path) -> None:
    model = tmp_path / "data" / "kt" / "models" / "mine" / "m.gguf"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"x")
    profiles.save("work", "mine", {"context": 8})
    words = [str(tmp_path / "data") if word == "DATA" else word for word in line.split()]
    done = here(*words, "--json")
    assert done.code == 0 and done.err == ""
    document = done.json
    assert document.pop("schema_version") == 1
    fits(document, SCHEMAS[line], line)


def test_check_sees_what_it_should() -> None:
    fits({"a": 1, "b": [True]}, {"a": int, "b": [bool]})
    for value, schema in (
        ({"a": True}, {"a": int}),
        ({}, {"a": int}),
        ({"a": 1, "b": 2}, {"a": int}),
        ([1], []),
        ([1], [str]),
    ):
        with pytest.raises(AssertionError):
            fits(value, schema)


def test_every_command_is_here() -> None:
    """A command that comes later has its document described too. Measurements, jobs and planning have tests of their own."""
    own = {"microbench", "bench", "tune", "quant", "sft"}
    words = {
        " ".join(node.words) for node in tree.walk() if node.words and not node.is_group and node.words[0] not in own
    }
    known = {" ".join(line.split()[:count]) for line in SCHEMAS for count in (1, 2, 3)}
    assert words - known == ELSEWHERE
