"""The server process with the tiny model in place of the loader: serve_tiny.py PLAN EVENTS_FD MODE."""

import logging
import os
import sys
import time
from pathlib import Path

from kt_core.errors import DoesNotFit
from kt_core.events import Events
from kt_core.server.serve import serve

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))


def start(plan, progress):
    mode = sys.argv[3]
    progress("weights", 0, 4, "layers")
    if mode == "slow":
        time.sleep(60)
    if mode == "refused":
        raise DoesNotFit("core.remote", what="too big", why="by far", next="buy memory")
    if mode == "warns":
        logging.getLogger("kt_core.engine.loader").warning("a rule matches nothing")
    if mode == "crash":
        raise RuntimeError("secret detail of the crash")
    time.sleep(0.3)
    progress("weights", 4, 4, "layers")
    import tinymodel

    from kt_core.engine.engine import Engine

    if mode == "endless":
        return Engine(tinymodel.Scripted(tinymodel.byte_tokens("ab"), delay=0.02, loop=True), tinymodel.tokenizer())
    tokenizer = tinymodel.tokenizer()
    if mode == "template":
        tokenizer.chat_template = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    return Engine(tinymodel.runner(), tokenizer)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    code = serve(Path(sys.argv[1]), Events(int(sys.argv[2])), start)
    sys.stderr.flush()
    os._exit(code)
