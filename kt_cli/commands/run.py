"""`kt run`: start a model and serve it, or answer one question."""

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from kt_cli import adapters, answer, before, choose, client, flags, keys, launch, output, planned, servers, terminal
from kt_cli.commands.chat import converse
from kt_cli.help import new_app
from kt_cli.wizard import RunCommand
from kt_core import config, paths
from kt_core.errors import NotFound, UsageError
from kt_core.messages import t
from kt_core.types import Plan

app = new_app("run.help")
# They choose how the engine computes, so a server that runs already may not be what is asked for.
ENGINE_VARIABLES = (
    "KT_KERNEL_CPU_VARIANT",
    *(f"KT_INFERENCE_{name}" for name in ("THREADS", "CONTEXT", "MAX_RUNNING", "KV_DTYPE", "PREFIX_DISK")),
)
Temperature = Annotated[
    float | None, typer.Option("--temperature", "-t", help="run.temperature", metavar="NUMBER", min=0, max=2)
]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", help="run.max_tokens", metavar="COUNT", min=1)]
MaxRunning = Annotated[int | None, typer.Option("--max-running", help="run.max_running", metavar="COUNT", min=1)]
ReasoningParser = Annotated[str | None, typer.Option("--reasoning-parser", help="run.reasoning_parser", metavar="NAME")]
ApiKeyFile = Annotated[Path | None, typer.Option("--api-key-file", help="run.api_key_file", metavar="FILE")]
Lora = Annotated[list[str] | None, typer.Option("--lora", help="run.lora", metavar="NAME=DIR")]
LoraFolder = Annotated[Path | None, typer.Option("--lora-folder", help="run.lora_folder", metavar="DIR")]


@app.command(cls=RunCommand, help="run.help", epilog="run.examples")
def run(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="run.name", metavar="NAME")],
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="run.prompt", metavar="TEXT")] = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="run.system", metavar="TEXT")] = None,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    host: Annotated[str | None, typer.Option("--host", help="run.host", metavar="ADDRESS")] = None,
    port: Annotated[int | None, typer.Option("--port", help="run.port", metavar="PORT", min=1, max=65535)] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="run.threads", metavar="COUNT", min=1)] = None,
    context: Annotated[int | None, typer.Option("--context", help="run.context", metavar="TOKENS", min=1)] = None,
    max_running: MaxRunning = None,
    kv_dtype: Annotated[str | None, typer.Option("--kv-dtype", help="run.kv_dtype", metavar="TYPE")] = None,
    prefix_host: Annotated[str | None, typer.Option("--prefix-host", help="run.prefix_host", metavar="SIZE")] = None,
    prefix_disk: Annotated[str | None, typer.Option("--prefix-disk", help="run.prefix_disk", metavar="SIZE")] = None,
    rules: Annotated[Path | None, typer.Option("--rules", help="run.rules", metavar="FILE")] = None,
    tool_parser: Annotated[str | None, typer.Option("--tool-parser", help="run.tool_parser", metavar="NAME")] = None,
    reasoning_parser: ReasoningParser = None,
    api_key: Annotated[str | None, typer.Option("--api-key", help="run.api_key", metavar="SECRET")] = None,
    api_key_file: ApiKeyFile = None,
    cors: Annotated[str | None, typer.Option("--cors", help="run.cors", metavar="ORIGINS")] = None,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="run.log_prompts")] = False,
    lora: Lora = None,
    lora_folder: LoraFolder = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="run.detach")] = False,
    chat: Annotated[bool, typer.Option("--chat", help="run.chat")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="run.dry_run")] = False,
    force: Annotated[bool, typer.Option("--force", help="run.force")] = False,
) -> None:
    overrides: dict[str, Any] = {"threads": threads, "context": context, "rules": _rules(rules), "force": force or None}
    overrides |= {"max_running": max_running, "kv_dtype": kv_dtype, **flags.wishes(ctx)}
    overrides |= {"prefix_host": prefix_host, "prefix_disk": prefix_disk}
    _reject_without_prompt(prompt, {"--system": system, "--temperature": temperature, "--max-tokens": max_tokens})
    serve = _way(prompt, detach, chat)
    question = None if prompt is None else _question(prompt)
    options = answer.options(temperature, max_tokens)
    beside = adapters.parsed(lora or [])
    files = launch.files_of(name, may_pull=not dry_run, force=force)
    server = (host, port, tool_parser, reasoning_parser, api_key, api_key_file, cors, log_prompts)
    own = any((*server, beside, lora_folder, *overrides.values(), *map(os.environ.get, ENGINE_VARIABLES)))
    serving = servers.of(files.path) if question is not None and not own and not dry_run else None
    if serving and question is not None:
        _answer_by(serving, question, system, options)
        return
    access = {**_access(api_key, api_key_file, cors, log_prompts), "served_name": overrides.pop("served_name", None)}
    access |= {"lora": beside, "lora_folder": _folder(lora_folder)}
    overrides["adapters"] = adapters.nbytes(beside) or None
    plan = launch.make_plan(files, overrides)
    flags.warn_of_idle(plan, overrides)
    plan = launch.with_server(plan, host, port, tool_parser, reasoning_parser, **access)
    before.check(plan)
    if dry_run:
        _show(plan, overrides["rules"])
    elif question is None:
        serve(plan)
    else:
        _answer_once(plan, question, system, options)


def _folder(path: Path | None) -> str:
    """The absolute path of a folder that must be there; "" for none."""
    if path is None:
        return ""
    folder = paths.expanded(path).absolute()
    if not folder.is_dir():
        raise NotFound("run.no_folder", folder=folder)
    return str(folder)


def _way(prompt: str | None, detach: bool, chat: bool) -> Callable[[Plan], None]:
    """How to serve. Raises UsageError for options that go against each other."""
    if prompt is not None and (detach or chat):
        raise UsageError("run.serve_with_prompt", option="--detach" if detach else "--chat")
    if chat and (detach or not choose.can_ask()):
        raise UsageError("run.chat_detached" if detach else "run.chat_where")
    return _detach if detach else _talk if chat else _serve


def _show(plan: Plan, rules: str | None) -> None:
    """The plan, where the server would take its rules."""
    if rules is not None:
        before.check_rules(rules)
    names = [planned.value(d.value) for d in plan.decisions]
    output.result(_plan_data(plan), lambda: _plan_text(plan), names=names)


def _question(prompt: str) -> str:
    return answer.question_from_stdin() if prompt == "-" else answer.check_question(prompt)


def _reject_without_prompt(prompt: str | None, given: dict[str, Any]) -> None:
    for option, value in given.items():
        if prompt is None and value is not None:
            raise UsageError("run.only_with_prompt", option=option)


def _rules(file: Path | None) -> str | None:
    """The absolute path of a rule file, which must be there."""
    if file is None:
        return None
    path = paths.expanded(file).absolute()
    if not paths.is_file(path):
        raise NotFound("run.no_rules", file=file)
    return str(path)


def _access(key: str | None, key_file: Path | None, cors: str | None, log_prompts: bool) -> dict[str, Any]:
    """Who may use the server, and what it writes down of it, as ServerSettings has it."""
    return {
        "api_keys": keys.api_keys(key, key_file),
        "cors": _origins(config.get("server.cors") if cors is None else cors),
        "log_prompts": log_prompts or config.get("server.log_prompts"),
        "media_hosts": tuple(config.get("server.media_hosts").lower().replace(",", " ").split()),
    }


def _origins(text: str) -> tuple[str, ...]:
    """Origins as browsers send them. Raises UsageError."""
    origins = tuple(dict.fromkeys(part.strip().rstrip("/") for part in text.split(",") if part.strip()))
    for origin in origins:
        parts = urlsplit(origin)
        if origin != "*" and (not parts.scheme or not parts.netloc or parts.path or parts.query or parts.fragment):
            raise UsageError("run.bad_origin", origin=origin)
    return origins


def _serve(plan: Plan) -> None:
    """Serve in the foreground until the server ends or is told to."""
    ready = False
    try:
        with launch.serving(plan) as child:
            stream = launch.events(child)
            url = launch.wait_ready(child, stream)
            ready = True
            try:
                _announce(plan, url, child, t("run.ready_next", log=child.log))
                launch.watch(child, stream)
            finally:
                output.status(t("run.stopping"))
    except terminal.Terminated as ended:
        raise typer.Exit(0 if ready else ended.exit_code) from None


def _detach(plan: Plan) -> None:
    """Leave a server in the background."""
    url, child = launch.detached(plan)
    _announce(plan, url, child, t("run.detached_next", pid=child.process.pid))


def _talk(plan: Plan) -> None:
    """A server for one conversation."""
    with launch.beside(plan) as url:
        api = client.Api(url, next(iter(plan.server.api_keys), ""))
        converse(api, plan.server.served_name, plan.value("context"), answer.options(None, None))
        output.status(t("run.stopping"))


def _announce(plan: Plan, url: str, child: launch.Child, next_steps: str) -> None:
    data = {"url": url, "model": plan.server.served_name, "pid": child.process.pid, "log": child.log}
    if output.is_json():
        output.document(data)
        return
    if output.is_quiet():
        output.text(f"{url}\n")
        return
    output.status(t("run.ready", model=plan.server.served_name, url=url))
    output.muted(next_steps)


def _answer_by(server: servers.Server, question: str, system: str | None, options: client.Options) -> None:
    """One answer of a server that runs already."""
    with answer.advice("run.too_long"):
        answer.once(client.Api(server.url, keys.own()), server.model, question, system, options)


def _answer_once(plan: Plan, question: str, system: str | None, options: client.Options) -> None:
    """Start a server for one answer."""
    longest = plan.value("context") >= plan.spec.context
    with launch.serving(plan) as child:
        url = launch.wait_ready(child, launch.events(child))
        with answer.advice("run.too_long_model" if longest else "run.too_long"):
            api = client.Api(url, next(iter(plan.server.api_keys), ""))
            answer.once(api, adapters.answering(plan.server.served_name, plan.server.lora), question, system, options)


def _command() -> list[str]:
    """The server's command line; PLAN stands for the file that the plan would be in."""
    return [*launch.SERVER, "--plan", "PLAN"]


def _plan_data(plan: Plan) -> dict[str, Any]:
    server = {"host": plan.server.host, "port": plan.server.port}
    return {
        "model": plan.model,
        "spec": plan.spec,
        "decisions": planned.document(plan),
        "device_bytes": plan.device_bytes,
        "memory_parts": plan.memory_parts,
        "gpu_parts": plan.gpu_parts,
        "predicted": plan.predicted,
        "server": server,
        "command": _command(),
    }


def _plan_text(plan: Plan) -> str:
    address = output.folded(t("run.would_listen", host=plan.server.host, port=plan.server.port), sys.stdout)
    start = output.folded(t("run.would_start", command=shlex.join(_command())), sys.stdout)
    title = output.folded(t("run.plan_title", name=plan.model.name, path=Path(plan.model.path)), sys.stdout)
    return "\n".join([title, "", planned.decisions(plan), "", planned.figures(plan), address, start])
