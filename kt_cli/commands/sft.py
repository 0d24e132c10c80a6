"""`kt sft`: fine-tuning, and what becomes of its adapters."""

import hashlib
import json
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kt_cli import answer, client, launch, output, sft_wizard, terminal
from kt_cli.commands.chat import converse
from kt_cli.help import Command, new_app
from kt_core import config, paths
from kt_core.errors import KTError, UsageError
from kt_core.messages import t
from kt_core.train import described, launcher, settings
from kt_core.train.settings import Settings

app = new_app("sft.help")
TRAIN = [sys.executable, "-m", "kt_core.train"]
YAML = (".yaml", ".yml")
INTERRUPTED = 130

Adapter = Annotated[Path, typer.Argument(help="sft.adapter", metavar="ADAPTER")]
Base = Annotated[str | None, typer.Option("--base", help="sft.base", metavar="MODEL")]


@app.command("train", cls=Command, help="sft.train_help", epilog="sft.examples")
def train(
    file: Annotated[Path | None, typer.Argument(help="sft.file", metavar="FILE")] = None,
    words: Annotated[list[str] | None, typer.Argument(help="sft.words", metavar="[KEY=VALUE]...")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="sft.dry_run")] = False,
    accelerate: Annotated[Path | None, typer.Option("--accelerate", help="sft.accelerate", metavar="FILE")] = None,
) -> None:
    s = settings.read(sft_wizard.asked() if file is None else paths.expanded(file), words or [])
    several = None if accelerate is None else _launcher(paths.expanded(accelerate))
    if several and several.kt_config:
        output.warn(t("sft.kt_config_moved", file=accelerate))
        s = settings.settings(asdict(s) | {"kt_config": several.kt_config | s.kt_config})
    s = settings.check(s)
    told: dict[str, Any] = {
        "output_dir": s.output_dir,
        "report": None,
        "plan": None,
        "coverage": None,
        "steps": [],
        "evaluated": None,
    }
    try:
        if dry_run:
            processes = ["--processes", str(several.processes)] if several else []
            _process(s, ["--plan", *processes, *(["--gpu"] if several and several.gpu else [])], told)
        else:
            _process(s, [], told, several)
    except KeyboardInterrupt:
        output.status(t("sft.stopped"))
        raise typer.Exit(INTERRUPTED) from None
    except terminal.Terminated:
        output.status(t("sft.stopped"))
        raise
    if dry_run:
        output.result(told, lambda: "", names=())
        return
    whole = "" if s.finetuning_type == "lora" else "_whole"
    output.result(told, lambda: t(f"sft.done{whole}", folder=s.output_dir), names=[s.output_dir])
    output.muted(t(f"sft.next{whole}", folder=shlex.quote(str(s.output_dir))))


@app.command("init", cls=Command, help="sft.init_help", epilog="sft.examples")
def init(
    model: Annotated[str, typer.Argument(help="sft.model", metavar="MODEL")],
    file: Annotated[Path | None, typer.Option("--output", "-o", help="sft.output", metavar="FILE")] = None,
) -> None:
    name = Path(model).name.removesuffix(".gguf") or model
    text = t("sft.init", model=json.dumps(model, ensure_ascii=False), output=f"saves/{name}")
    if file is None:
        output.result({"text": text}, lambda: text, names=())
        return
    path = paths.expanded(file)
    if path.exists():
        raise UsageError("sft.exists", path=path)
    config.replace_file(path, text)
    output.result({"path": str(path)}, lambda: t("sft.written", path=path), names=[str(path)])


@app.command("merge", cls=Command, help="sft.merge_help", epilog="sft.examples")
def merge(
    folder: Adapter,
    to: Annotated[Path, typer.Argument(help="sft.to", metavar="FOLDER")],
    base: Base = None,
) -> None:
    target = paths.expanded(to).absolute()
    _merge(_of_adapter(folder, base), target)
    output.result({"path": str(target)}, lambda: t("sft.written", path=target), names=[str(target)])
    output.muted(t("sft.merged", folder=shlex.quote(str(target))))


@app.command("export", cls=Command, help="sft.export_help", epilog="sft.examples")
def export(
    folder: Adapter,
    to: Annotated[Path, typer.Argument(help="sft.to", metavar="FOLDER")],
    form: Annotated[str, typer.Option("--as", help="sft.export_as", metavar="FORM")] = "pair",
    part: Annotated[str, typer.Option("--part", help="sft.export_part", metavar="PART")] = "all",
) -> None:
    for name, value, known in (("--as", form, settings.EXPORTS), ("--part", part, settings.PARTS)):
        if value not in known:
            raise UsageError("train.choice", setting=name, value=value, known=", ".join(known))
    target = paths.expanded(to).absolute()
    s = Settings(model_name_or_path="-", adapter_name_or_path=str(paths.expanded(folder).absolute()))
    _job(s, ["--export", str(target), "--form", form, "--part", part])
    output.result({"path": str(target)}, lambda: t("sft.written", path=target), names=[str(target)])


@app.command("eval", cls=Command, help="sft.eval_help", epilog="sft.examples")
def evaluate(
    source: Annotated[str, typer.Argument(help="sft.eval_source", metavar="ADAPTER")],
    data: Annotated[str, typer.Argument(help="sft.eval_data", metavar="DATA")],
    base: Base = None,
    kind: Annotated[str, typer.Option("--kind", help="sft.eval_kind", metavar="KIND")] = "loss",
    words: Annotated[list[str] | None, typer.Option("--set", help="sft.words", metavar="KEY=VALUE")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="sft.eval_tokens", metavar="COUNT", min=1)] = 128,
) -> None:
    if kind not in settings.MEASURES:
        raise UsageError("train.choice", setting="--kind", value=kind, known=", ".join(settings.MEASURES))
    folder = paths.expanded(Path(source))
    adapted = base is not None or (folder / described.CONFIG).is_file()
    of = _of_adapter(folder, base) if adapted else Settings(model_name_or_path=source)
    s = settings.settings({**asdict(of), "dataset": data, "bf16": True} | settings.on_top(words or []))
    told: dict[str, Any] = {"measured": None}
    _process(settings.check(s, training=False), ["--measure", kind, "--most", str(max_tokens)], told)
    results = told["measured"]["results"]
    output.result(told["measured"], lambda: _table(results), names=())


def _table(results: dict[str, dict[str, float]]) -> str:
    lines = []
    for name, numbers in results.items():
        listed = ", ".join(f"{key} {value:.4g}" for key, value in numbers.items())
        lines.append(t("sft.measured", name=name, numbers=listed))
    return "\n".join(lines)


@app.command("chat", cls=Command, help="sft.chat_help", epilog="sft.examples")
def chat(
    source: Annotated[Path, typer.Argument(help="sft.adapter_or_file", metavar="ADAPTER")],
    base: Base = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="chat.system", metavar="TEXT")] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", "-t", help="chat.temperature", metavar="NUMBER", min=0, max=2)
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="chat.max_tokens", metavar="COUNT", min=1)
    ] = None,
) -> None:
    if source.suffix in YAML:
        s = settings.check(settings.read(paths.expanded(source)), training=False)
        s = _of_adapter(Path(s.adapter_name_or_path or s.output_dir), base or s.model_name_or_path)
    else:
        s = _of_adapter(source, base)
    folder = paths.cache_dir() / "merged" / _name(s)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _merge(s, folder)
    plan = launch.make_plan(launch.files_of(str(folder)), {})
    plan = replace(plan, model=replace(plan.model, name=Path(s.adapter_name_or_path or "").name))
    plan = launch.with_server(plan, None, None)
    with launch.serving(plan) as child:
        url = launch.wait_ready(child, launch.events(child))
        api = client.Api(url, next(iter(plan.server.api_keys), ""))
        options = answer.options(temperature, max_tokens)
        if sys.stdin.isatty():
            converse(api, plan.server.served_name, plan.value("context"), options, system=system)
        else:
            answer.once(api, plan.server.served_name, answer.question_from_stdin(), system, options)


def _of_adapter(folder: Path, base: str | None) -> Settings:
    """Settings that name an adapter and its base. Raises NotFound and BadData for what is no adapter."""
    path = paths.expanded(folder).absolute()
    model = described.base_of(path) if base is None else base
    if not model:
        raise UsageError("train.needs_key", setting="--base")
    return Settings(model_name_or_path=str(model), adapter_name_or_path=str(path))


def _name(s: Settings) -> str:
    """Of the merged model in the cache: it changes with the adapter's bytes and with the base."""
    digest = hashlib.sha256(s.model_name_or_path.encode())
    path = Path(s.adapter_name_or_path or "")
    for file in (
        [path] if path.is_file() else sorted(f for f in path.glob("*") if f.suffix in (".safetensors", ".gguf"))
    ):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:32]


def _merge(s: Settings, to: Path) -> None:
    output.status(t("sft.merging", adapter=s.adapter_name_or_path, base=s.model_name_or_path))
    _job(s, ["--merge", str(to)])


def _job(s: Settings, words: list[str]) -> None:
    """A process that tells nothing but how far it is."""
    try:
        _process(s, words, {})
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _launcher(file: Path) -> launcher.Launcher:
    from kt_core.machine import probe

    return launcher.read(file, probe())


def _process(s: Settings, words: list[str], told: dict[str, Any], several: launcher.Launcher | None = None) -> None:
    """Run kt_core.train with the settings, showing what it tells. Raises the error that it reports."""
    with tempfile.TemporaryDirectory(prefix="kt-sft-") as folder:
        file = Path(folder) / "settings.json"
        file.write_text(json.dumps(asdict(s)))
        command = several.words(Path(folder)) if several else TRAIN
        with launch.running([*command, "--settings", str(file), *words], "sft") as child:
            _follow(child, told)
            code = child.process.wait()
            if code:
                reason = t("run.perhaps_memory") if code == -signal.SIGKILL else launch.last_line(child.log)
                key = "sft.killed" if code < 0 else "sft.ended"
                raise KTError(key, code=abs(code), reason=reason, log=child.log)


def _follow(child: launch.Child, told: dict[str, Any]) -> None:
    with output.progress() as report:
        report(t("sft.start"), 0, 0, "")
        for event in launch.events(child):
            kind = event.get("event")
            if kind == "progress":
                report(str(event["stage"]), int(event["done"]), int(event["total"]), str(event["unit"]))
            elif kind == "warning":
                output.warn(str(event["what"]))
            elif kind in ("report", "plan", "coverage"):
                told[kind] = {name: value for name, value in event.items() if name not in ("event", "time", "text")}
                output.status(str(event["text"]))
            elif kind == "placed":
                output.status(str(event["text"]))
            elif kind == "measured":
                told["measured"] = {name: value for name, value in event.items() if name not in ("event", "time")}
            elif kind == "evaluated":
                told["evaluated"] = {"step": event["step"], "loss": event["loss"]}
                output.status(str(event["text"]))
            elif kind == "step":
                told["steps"].append({name: value for name, value in event.items() if name not in ("event", "time")})
                _show_step(event, report)
            elif kind == "error":
                raise launch.failure(child, event)


def _show_step(event: dict[str, Any], report: Callable[[str, int, int, str], None]) -> None:
    report(t("sft.training"), int(event["current_steps"]), int(event["total_steps"]), t("sft.steps"))
    seconds = int(event["remaining_seconds"])
    output.status(
        t(
            "sft.step",
            step=event["current_steps"],
            total=event["total_steps"],
            loss=event["loss"],
            lr=event["lr"] or 0.0,
            norm=event["grad_norm"] or 0.0,
            rate=event["tokens_per_second"],
            experts=100 * event["experts_share"],
            data=100 * event["data_share"],
            memory=event["peak_bytes"] / 2**30,
            left=f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}",
        )
    )
