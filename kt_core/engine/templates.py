"""Chat templates, rendered by transformers in a process of their own.

A template is a program that comes with the model. `{{ 'x' * 10**10 }}` is one operation of Python's: in the server it would
let no other thread run, the one that is to stop the server included, and fill the memory. The process has bounds for both
(rendering.py); where it ends, the request is refused and the next one gets a new process.
"""

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from kt_core.engine import rendering
from kt_core.errors import UsageError
from kt_core.messages import t

CPU_SECONDS = 5.0  # of one rendering; 100,000 messages take half a second

_lock = threading.Lock()  # one rendering at a time; most take less than a millisecond
_process: "subprocess.Popen[str] | None" = None


def render(**arguments: Any) -> str:
    """What transformers' render_jinja_template makes of one conversation, given its arguments, as JSON has them.

    Raises UsageError, with the template's words where it has any.
    """
    line = json.dumps(arguments)
    with _lock:
        answer = _asked(line)
    if answer is None:
        bounds = t("engine.template_bounds", seconds=CPU_SECONDS, gib=rendering.MEMORY >> 30)
        raise UsageError("engine.template", reason=bounds)
    reply = json.loads(answer)
    if "error" in reply:
        raise UsageError("engine.template", reason=_printable(reply["error"]))
    text: str = reply["text"]
    return text


def start() -> None:
    """Have the process started, so that the first chat need not wait for it."""
    with _lock:
        _running()


@atexit.register
def stop() -> None:
    """End the process, in the middle of a template too; the next rendering starts another."""
    if process := _process:
        process.kill()  # a rendering then finds that it has ended
        process.wait()


def _running() -> "subprocess.Popen[str]":
    global _process
    if _process is None or _process.poll() is not None:
        _process = subprocess.Popen(
            [sys.executable, "-I", str(Path(rendering.__file__)), str(CPU_SECONDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="ascii",
            env={**os.environ, "TRANSFORMERS_VERBOSITY": "error", "OPENBLAS_NUM_THREADS": "1"},
        )
    return _process


def _asked(line: str) -> str | None:
    """The reply's line; None where the process ended over it."""
    process = _running()
    assert process.stdin and process.stdout
    try:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    except OSError:
        answer = ""
    if answer.endswith("\n"):
        return answer
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # what was not written yet
            pipe.close()
    return None


def _printable(text: str) -> str:
    """On one line, and without halves of characters, which no answer could be sent with."""
    return " ".join(text.encode(errors="backslashreplace").decode().split())
