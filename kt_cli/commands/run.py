"""`kt run`: start a model and serve it, or answer one question."""

import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kt_cli import answer, client, launch, output, servers
from kt_cli.help import Command, new_app
from kt_core import config
from kt_core.errors import UsageError
from kt_core.messages import t
from kt_core.types import Plan

app = new_app("run.help")


@app.command(cls=Command, help="run.help", epilog="run.examples")
def run(
    name: Annotated[str, typer.Argument(help="run.name", metavar="NAME")],
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="run.prompt", metavar="TEXT")] = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="run.system", metavar="TEXT")] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", "-t", help="run.temperature", metavar="NUMBER", min=0, max=2)
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="run.max_tokens", metavar="COUNT", min=1)
    ] = None,
    host: Annotated[str | None, typer.Option("--host", help="run.host", metavar="ADDRESS")] = None,
    port: Annotated[int | None, typer.Option("--port", help="run.port", metavar="PORT", min=1, max=65535)] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="run.threads", metavar="COUNT", min=1)] = None,
    context: Annotated[int | None, typer.Option("--context", help="run.context", metavar="TOKENS", min=1)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="run.dry_run")] = False,
    force: Annotated[bool, typer.Option("--force", help="run.force")] = False,
) -> None:
    overrides: dict[str, Any] = {"threads": threads, "context": context, "force": force or None}
    if prompt is None:
        _reject_without_prompt({"--system": system, "--temperature": temperature, "--max-tokens": max_tokens})
    question = None if prompt is None else answer.check_question(sys.stdin.read() if prompt == "-" else prompt)
    options = answer.options(temperature, max_tokens)
    files = launch.files_of(name, may_pull=not dry_run, force=force)
    reusable = host is None and port is None and not any(overrides.values())
    serving = servers.find(files.name) if question is not None and reusable and not dry_run else None
    if serving and question is not None:
        api = client.Api(serving.url, config.get("server.api_key"))
        answer.once(api, files.name, question, system, options)
        return
    plan = launch.with_server(launch.make_plan(files, overrides), host, port)
    if dry_run:
        output.result(_plan_data(plan), lambda: _plan_text(plan))
    elif question is None:
        _serve(plan)
    else:
        _answer_once(plan, question, system, options)


def _reject_without_prompt(given: dict[str, Any]) -> None:
    for option, value in given.items():
        if value is not None:
            raise UsageError("run.only_with_prompt", option=option)


def _serve(plan: Plan) -> None:
    """Serve in the foreground until the server ends or is told to."""
    ready = False
    _catch_signals()
    child = launch.start(plan)
    try:
        stream = launch.events(child)
        url = launch.wait_ready(child, stream)
        ready = True
        _announce(plan, url, child)
        launch.watch(child, stream)
    except _Terminated:
        raise typer.Exit(0 if ready else 1) from None
    finally:
        if ready:
            output.status(t("run.stopping"))
        launch.stop(child)


class _Terminated(BaseException):
    """SIGTERM, the regular way to end a service, or SIGHUP, the terminal's end."""


def _catch_signals() -> None:
    def end(number: int, frame: object) -> None:
        raise _Terminated

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def _announce(plan: Plan, url: str, child: launch.Child) -> None:
    data = {"url": url, "model": plan.model.name, "pid": child.process.pid, "log": child.log}
    if output.is_json():
        output.document(data)
        return
    if output.is_quiet():
        output.text(f"{url}\n")
        return
    output.status(t("run.ready", model=plan.model.name, url=url))
    output.muted(t("run.ready_next", log=child.log))


def _answer_once(plan: Plan, question: str, system: str | None, options: client.Options) -> None:
    """Start a server for one answer."""
    _catch_signals()
    child = launch.start(plan)
    try:
        url = launch.wait_ready(child, launch.events(child))
        answer.once(client.Api(url, plan.server.api_key), plan.model.name, question, system, options)
    except _Terminated:
        raise typer.Exit(1) from None
    finally:
        launch.stop(child)


def _plan_data(plan: Plan) -> dict[str, Any]:
    server = {"host": plan.server.host, "port": plan.server.port}
    return {
        "model": plan.model,
        "spec": plan.spec,
        "decisions": plan.decisions,
        "device_bytes": plan.device_bytes,
        "server": server,
    }


def _plan_text(plan: Plan) -> str:
    rows = [(d.name, _value(d.value), d.reason) for d in plan.decisions]
    header = (t("run.column_decision"), t("run.column_value"), t("run.column_reason"))
    memory = [(device, f"~{output.size(count)}") for device, count in plan.device_bytes.items()]
    address = t("run.would_listen", host=plan.server.host, port=plan.server.port)
    title = t("run.plan_title", name=plan.model.name, path=Path(plan.model.path))
    return "\n".join([title, "", output.table(rows, header), "", output.table(memory), address])


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return "-" if value is None else str(value)
