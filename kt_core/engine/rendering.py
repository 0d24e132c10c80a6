"""The process that renders chat templates, for templates.py: a line of JSON in, a line of JSON out, until there is no more.

It is started by its path and imports nothing of kt's, so it is there in 0.6 s with 56 MB; torch would take three times both.
A rendering that takes too long ends the process by a signal of the system's, which no template can hold up.
"""

import contextlib
import json
import os
import resource
import signal
import sys
from typing import Any

MEMORY = 2 << 30  # bytes of address space, of which Python and what it has imported take 0.3 GiB
CHARACTERS = 1 << 26  # of a rendered chat, as many as a request's body has at most


def main(cpu_seconds: float) -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what a library prints is no reply
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: whoever started this decides
    sys.modules["torch"] = None  # type: ignore[assignment]  # transformers then believes that there is none
    from transformers.utils.chat_template_utils import render_jinja_template

    with contextlib.suppress(ValueError, OSError):  # not every system has this limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin:
        reply = _reply(render_jinja_template, json.loads(line), cpu_seconds)
        replies.write(f"{reply}\n")
        replies.flush()


def _reply(render: Any, arguments: dict[str, Any], cpu_seconds: float) -> str:
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        text = render(**arguments)[0][0]
        if len(text) > CHARACTERS:
            return json.dumps({"error": f"more than {CHARACTERS} characters"})
        return json.dumps({"text": text})
    except Exception as e:  # a template is a program of the model's: it may fail in any way
        return json.dumps({"error": str(e) or type(e).__name__})
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main(float(sys.argv[1]))
