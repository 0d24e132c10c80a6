"""`kt ps`: the servers that run here, and what each of them holds and does."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from kt_cli import client, output, servers
from kt_cli.help import Command, new_app
from kt_core.messages import t

app = new_app("servers.ps_help")
STATES = {"ready": "servers.state_ready", "loading": "servers.state_loading", "silent": "servers.state_silent"}
COLUMNS = (
    "servers.column_model",
    "servers.column_state",
    "servers.column_address",
    "servers.column_pid",
    "servers.column_memory",
    "servers.column_requests",
)
UNITS = ((86400, "servers.days"), (3600, "servers.hours"), (60, "servers.minutes"), (1, "servers.seconds"))


@app.command(cls=Command, help="servers.ps_help", epilog="servers.ps_examples")
def ps() -> None:
    found = servers.running()
    with ThreadPoolExecutor(max(1, len(found))) as pool:  # one that does not answer holds the others up no longer
        data = list(pool.map(_data, found))
    output.result({"servers": data}, lambda: _shown(data), names=[str(server.pid) for server in found])
    if not found:
        output.status(t("servers.none").replace("\n\n", "\n"))


def _data(server: servers.Server) -> dict[str, Any]:
    """All that is known of a server. Sizes are bytes; null where it does not say."""
    said = client.health(server.url)
    state = {"ok": "ready", "loading": "loading"}.get(str(said.get("status")), "silent")
    plan = servers.plan_of(server)
    threads = next((d.value for d in plan.decisions if d.name == "threads"), None) if plan else None
    return {
        "model": server.model,
        "state": state,
        "url": server.url,
        "pid": server.pid,
        "path": server.path,
        "log": server.log,
        "started": server.started,
        "uptime": round(max(0.0, time.time() - server.started), 1),
        "memory": _resident(server.pid),
        "progress": {name: said.get(name) for name in ("stage", "done", "total")} if state == "loading" else None,
        **{name: said.get(name) for name in ("context", "running", "waiting")},
        "threads": threads,
        "planned": plan.device_bytes if plan else {},
        "predicted": plan.predicted if plan else {},
    }


def _resident(pid: int) -> int | None:
    """Bytes that the process has in memory, pages of the model's files included."""
    import psutil

    with suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return None


def _shown(data: list[dict[str, Any]]) -> str:
    if not data:
        return ""
    notes = [output.folded(_note(server), sys.stdout) for server in data]
    return "\n".join([output.table([_row(server) for server in data], tuple(map(t, COLUMNS))), *notes])


def _row(server: dict[str, Any]) -> tuple[str, ...]:
    busy = t("servers.busy", running=server["running"], waiting=server["waiting"])
    return (
        server["model"],
        _state(server),
        server["url"],
        str(server["pid"]),
        "-" if server["memory"] is None else output.size(server["memory"]),
        busy if server["running"] or server["waiting"] else t("servers.idle") if server["state"] == "ready" else "-",
    )


def _state(server: dict[str, Any]) -> str:
    progress = server["progress"]
    if progress and progress["total"]:
        return t("servers.loading_part", percent=int(100 * progress["done"] / progress["total"]))
    return t(STATES[server["state"]])


def _note(server: dict[str, Any]) -> str:
    """Since when it runs, the context, where the plan puts the model, and how fast it should be."""
    parts = [t("servers.up", duration=_duration(server["uptime"]))]
    if server["context"]:
        parts.append(t("servers.context", tokens=server["context"]))
    parts += [t("servers.on", device=device, size=output.size(count)) for device, count in server["planned"].items()]
    if server["threads"]:
        parts.append(t("servers.threads", count=server["threads"]))
    if rate := server["predicted"].get("decode_tokens_per_second"):
        parts.append(t("servers.speed", rate=f"{rate:.3g}"))
    return f"{server['model']}: {output.listed(parts)}"


def _duration(seconds: float) -> str:
    step, unit = next(((step, unit) for step, unit in UNITS if seconds >= step), UNITS[-1])
    return t(unit, count=int(seconds / step))
