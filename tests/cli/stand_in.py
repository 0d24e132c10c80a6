"""`kt` with a stand-in for the engine: the same pipe protocol and HTTP, no model.

    python stand_in.py ARGS...          the command line, whose server is this file
    python stand_in.py --plan FILE ...  the server
KT_TEST_SERVER chooses what the server does: serve, error, crash, killed, slow, loading, deaf,
talkative, refuse.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
TOO_LONG = (
    400,
    {
        "error": {
            "message": "The prompt has 40 tokens. One must be left. Start another server.",
            "what": "The prompt has 40 tokens.",
            "why": "One must be left.",
            "next": "Start another server.",
            "code": "context_length_exceeded",
        }
    },
)
NAME = "kt_core.server-stand-in"  # servers.alive looks for kt_core.server in the command line


def serve() -> None:
    from fake_openai import FakeServer

    from kt_core.events import born, wait_for_parents_end

    events = os.fdopen(int(sys.argv[sys.argv.index("--events-fd") + 1]), "w", buffering=1)

    def event(**data: object) -> None:
        events.write(json.dumps({"time": time.time(), **data}) + "\n")

    plan = json.loads(Path(sys.argv[sys.argv.index("--plan") + 1]).read_text())
    kind = os.environ.get("KT_TEST_SERVER", "serve")
    sys.stderr.write("starting\nlast words of the log\n")
    sys.stderr.flush()
    event(event="progress", stage="weights", done=1, total=4, unit="modules")
    if kind == "error":
        event(event="error", what="The file is damaged.", why="Layer 3 is cut.", next="Pull it again.", exit_code=5)
        sys.exit(5)
    if kind == "crash":
        sys.exit(9)
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "slow":
        time.sleep(60)
    event(event="warning", what="A warning of the server.")
    with FakeServer() as running:
        running.models = [plan["server"]["served_name"]]
        if kind == "talkative":
            running.answer, running.delay = "word " * 400, 0.02
        if kind == "refuse":
            running.error = TOO_LONG
        if kind == "loading":
            running.health = {"status": "loading", "stage": "weights", "done": 1, "total": 4}
        state = Path(os.environ["XDG_STATE_HOME"]) / "kt" / "servers" / f"{os.getpid()}.json"
        state.parent.mkdir(parents=True, exist_ok=True)
        data = {"pid": os.getpid(), "url": running.url, "model": plan["server"]["served_name"], "started": time.time()}
        data["ready"] = kind != "loading"
        data |= {
            "born": born(os.getpid()),
            "plan": sys.argv[sys.argv.index("--plan") + 1],
            "log": str(Path("/proc/self/fd/2").readlink()),
        }
        data["path"] = plan["model"]["path"]
        state.write_text(json.dumps(data))
        ended = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: None if kind == "deaf" else ended.set())
        threading.Thread(target=lambda: wait_for_parents_end() and ended.set(), daemon=True).start()
        if kind == "loading":
            ended.wait(60)
        event(event="ready", url=running.url, model=plan["model"]["name"])
        while not ended.wait(0.05):
            pass
        state.unlink()


def command_line() -> None:
    from kt_cli import launch
    from kt_cli.main import main
    from kt_core.types import Decision, ModelFiles, ModelSpec, Plan, ServerSettings

    files = ModelFiles("tiny", "/models/tiny.gguf", "gguf", ("/models/tiny.gguf",))
    spec = ModelSpec("glm4_moe", 2, 8, 32, 64, 4, 2, 1000, {"experts": 1, "other": 1}, 16, {"F32": 2})
    launch.SERVER[1:] = [__file__, NAME]
    launch.files_of = lambda name, **_: files  # type: ignore[assignment]

    def make_plan(files: ModelFiles, overrides: dict[str, object]) -> Plan:
        decisions = [Decision(k, v, f"because of {k}", "user") for k, v in overrides.items() if v is not None]
        return Plan(
            files,
            spec,
            (*decisions, Decision("context", 32, "fits", "model"), Decision("tier", None, "best here", "machine")),
            {"cpu": 2**30},
            ServerSettings(),
        )

    launch.make_plan = make_plan
    main()


if __name__ == "__main__":
    serve() if "--events-fd" in sys.argv else command_line()
