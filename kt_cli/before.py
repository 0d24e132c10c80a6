"""What a server would refuse, asked before it is started: so a dry run ends as the run would."""

import json
import os
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from kt_core.errors import KTError, RemoteError, Unsupported
from kt_core.formats.problems import shown
from kt_core.messages import language, t
from kt_core.types import Plan

_CHECK_RULES = [sys.executable, "-m", "kt_core.inject"]
_SECONDS = 120  # torch from a cold disk takes most of a minute on small machines


def check(plan: Plan) -> None:
    """Raises UsageError for a parser that there is not, Unsupported for a family that transformers does not know."""
    from kt_core.server.parsers import choose

    choose("", plan.server.tool_parser, plan.server.reasoning_parser)
    if plan.spec.family and not _is_known(plan.spec.family):
        version = metadata.version("transformers")
        raise Unsupported("inject.unknown_family", family=shown(plan.spec.family), version=version, reason="model_type")


def check_rules(file: str) -> None:
    """Read a rule file as the server would, in a process of its own: it takes torch. Raises what the server would."""
    environment = {**os.environ, "KT_LANG": language()}
    try:
        done = subprocess.run(
            [*_CHECK_RULES, file],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise KTError("run.rules_unread", file=file, reason=t("doctor.timed_out", seconds=_SECONDS)) from None
    if done.returncode == 0:
        return
    try:
        event = json.loads(done.stdout.splitlines()[-1])
        raise RemoteError(event["what"], event["why"], event["next"], event["exit_code"], event.get("kind", ""))
    except (ValueError, IndexError, KeyError):
        reason = (done.stderr.strip().splitlines() or ["?"])[-1]
        raise KTError("run.rules_unread", file=file, reason=reason) from None


def _is_known(family: str) -> bool:
    """Whether the installed transformers has this model type, by its tables as text, since its import takes seconds; True
    where it is not installed or keeps them elsewhere: then the server tells."""
    try:
        found = find_spec("transformers")
        folders = list(found.submodule_search_locations or ()) if found else []
        files = [Path(folder, "models", "auto", name) for folder in folders for name in _TABLES]
        text = "".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
    except (ImportError, ValueError, OSError):
        return True
    return not text or f'"{family}"' in text


_TABLES = ("auto_mappings.py", "configuration_auto.py")
