"""`kt quant`: another precision of a model, as a folder or a GGUF file of its own."""

import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kt_cli import choose, launch, output, terminal
from kt_cli.help import Command, new_app
from kt_core import paths
from kt_core.errors import KTError, UsageError
from kt_core.machine import default_threads, probe
from kt_core.messages import t
from kt_core.quantise import job as jobs
from kt_core.quantise.job import Job

app = new_app("quant.help")
QUANTISE = [sys.executable, "-m", "kt_core.quantise"]
INTERRUPTED = 130
ABOUT = {
    "int4": "quant.about_int4",
    "int8": "quant.about_int8",
    "moe_int4": "quant.about_moe_int4",
    "moe_int8": "quant.about_moe_int8",
    "fp8": "quant.about_fp8",
    "mxfp4": "quant.about_mxfp4",
    "bf16": "quant.about_bf16",
    "Q4_K_M": "quant.about_q4_k_m",
    "Q5_K_M": "quant.about_q5_k_m",
    "IQ4_K": "quant.about_iq4_k",
    "Q4_1": "quant.about_q4_1",
    "Q6_K": "quant.about_q6_k",
    "Q8_0": "quant.about_q8_0",
    "GGUF_BF16": "quant.about_gguf_bf16",
}
COLUMNS = ("quant.column_from", "quant.column_to", "quant.column_weights", "quant.column_before", "quant.column_after")


@app.command(cls=Command, help="quant.help", epilog="quant.examples")
def quant(
    name: Annotated[str | None, typer.Argument(help="run.name", metavar="NAME")] = None,
    method: Annotated[str | None, typer.Option("--method", "-m", help="quant.method", metavar="METHOD")] = None,
    out: Annotated[str | None, typer.Option("--out", "-o", help="quant.out", metavar="FOLDER")] = None,
    group: Annotated[int | None, typer.Option("--group", help="quant.group", metavar="32|64|128")] = None,
    zero_point: Annotated[bool, typer.Option("--zero-point", help="quant.zero_point")] = False,
    only: Annotated[str | None, typer.Option("--only", help="quant.only", metavar="PART")] = None,
    override: Annotated[list[str] | None, typer.Option("--override", help="quant.override", metavar="RULE")] = None,
    importance: Annotated[Path | None, typer.Option("--importance", help="quant.importance", metavar="FILE")] = None,
    gptq: Annotated[Path | None, typer.Option("--gptq", help="quant.gptq", metavar="FILE")] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="quant.threads", metavar="COUNT", min=1)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="quant.dry_run")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="quant.yes")] = False,
) -> None:
    asked = name is None or method is None
    if asked and not choose.can_ask():
        raise UsageError("quant.needs", known=", ".join(jobs.METHODS))
    name = _ask_model() if name is None else name
    method = _ask_method() if method is None else method
    files = launch.files_of(name, may_pull=not dry_run)
    job = _job(files, method, _folder(out), group, zero_point, only, override, threads)
    job = replace(_with_text(job, importance, gptq, method), dry_run=dry_run)
    if not dry_run:
        jobs.check_new(job.out)
    if dry_run or (asked and not yes):
        plan = _planned(job)
        output.result({"name": job.name, "out": job.out, **plan}, lambda: _plan_text(job, plan), names=[job.out])
        if dry_run:
            _would_be_refused(job, plan)
            return
        _confirm()
    made = _made(job)
    listed = _listed(job)
    output.result({"name": job.name, "path": made, "listed": listed}, lambda: made)
    output.status(t("quant.next", name=shlex.quote(job.name if listed else made)))


def _job(
    files: Any,
    method: str,
    out: Path | None,
    group: int | None,
    zero_point: bool,
    only: str | None,
    override: list[str] | None,
    threads: int | None,
) -> Job:
    """What the options say, checked but for what is there already. Raises UsageError."""
    from kt_core.models import store

    chosen, part = jobs.method_of(method)
    if (group is not None or zero_point) and chosen != "int4":
        raise UsageError("quant.only_int4", option="--zero-point" if zero_point else "--group", method=method)
    if group not in (None, *jobs.GROUPS):
        raise UsageError("cli.bad_value", name="--group", expected=_one_of(jobs.GROUPS), command="kt quant")
    if only not in (None, *jobs.ONLY):
        raise UsageError("cli.bad_value", name="--only", expected=_one_of(jobs.ONLY), command="kt quant")
    name = out.name if out else f"{files.name}-{method.casefold()}"
    folder = out or store.models_dir() / name
    return Job(
        files,
        chosen,
        str(folder),
        name,
        group or 32,
        zero_point,
        only or part,
        jobs.overrides_of(override or (), chosen),
        threads or default_threads(probe())[0],
    )


def _folder(out: str | None) -> Path | None:
    """--out as a whole path, which no ".." leads through folders that are not there. Raises UsageError for an empty one."""
    if out is None:
        return None
    if not out.strip():
        raise UsageError("quant.no_out")
    place = paths.expanded(out)
    return place.resolve() if ".." in place.parts else place.absolute()


def _with_text(job: Job, importance: Path | None, gptq: Path | None, method: str) -> Job:
    """The job with the text that it reads first. Raises UsageError, and what reading the text raises."""
    if importance and gptq:
        raise UsageError("quant.one_text")
    if gptq and job.method not in jobs.COMPENSATED:
        raise UsageError("quant.no_gptq", method=method, known=", ".join(jobs.COMPENSATED))
    if text := importance or gptq:
        jobs.read_sample(paths.expanded(text))
    return replace(job, importance=_place(importance), gptq=_place(gptq))


def _place(path: Path | None) -> str:
    return str(paths.expanded(path).absolute()) if path else ""


def _one_of(choices: tuple[object, ...]) -> str:
    return t("cli.one_of", choices=output.listed(map(str, choices)))


# ---- the process that does it


def _events(job: Job) -> Iterator[dict[str, Any]]:
    """What the job's process tells but progress, which is shown. Raises what went wrong."""
    with launch.running([*QUANTISE, "--job", job.text()], "quant") as child, output.progress() as report:
        report("start", 0, 0, "")
        for event in launch.events(child):
            kind = event.get("event")
            if kind == "progress":
                report(str(event["stage"]), int(event["done"]), int(event["total"]), str(event["unit"]))
            elif kind == "warning":
                output.warn(*str(event["what"]).splitlines())
            elif kind == "error":
                raise launch.failure(child, event)
            else:
                yield event
        code = child.process.wait()
        if code:
            key = "quant.killed" if code < 0 else "quant.ended"
            reason = t("run.perhaps_memory") if code == -signal.SIGKILL else launch.last_line(child.log)
            raise KTError(key, code=code, signal=-code, reason=reason, again=_again(job), log=child.log)


def _planned(job: Job) -> dict[str, Any]:
    events = [event for event in _events(replace(job, dry_run=True)) if event.get("event") == "plan"]
    return {key: value for key, value in events[-1].items() if key not in ("event", "time")}


def _made(job: Job) -> str:
    """The output's folder. A signal ends the process; layers that are whole by then stay for the next time."""
    try:
        events = [event for event in _events(job) if event.get("event") == "done"]
    except KeyboardInterrupt:
        output.status(t("quant.interrupted", again=_again(job)))
        raise typer.Exit(INTERRUPTED) from None
    except terminal.Terminated:
        output.status(t("quant.terminated", again=_again(job)))
        raise
    return str(events[-1]["path"])


def _again(job: Job) -> str:
    """What the same command would do after an end in the middle."""
    return t("quant.goes_on" if jobs.begun(Path(job.out)) else "quant.begins_anew")


def _would_be_refused(job: Job, plan: dict[str, Any]) -> None:
    """After a dry run whose output is there: what the command itself would say, and its exit code."""
    if plan["exists"]:
        refused = UsageError("quantise.exists", out=job.out)
        output.warn(*refused.lines())
        raise typer.Exit(refused.exit_code)


def _listed(job: Job) -> bool:
    """Whether the output goes by its name from now on; another model's name is left to that one."""
    from kt_core.models import store

    listed = store.adopt(job.name, Path(job.out))
    if not listed:
        output.warn(*t("quant.name_taken", name=job.name).splitlines())
    return listed


# ---- what a person is asked and sees


def _ask_model() -> str:
    from kt_core.models import store

    rows: list[tuple[str, str | None]] = [(model.name, model.name) for model in store.list_models()]
    chosen = choose.select(t("quant.ask_model"), [*rows, (t("quant.other_model"), None)])
    return choose.path(t("quant.ask_path")) if chosen is None else chosen


def _ask_method() -> str:
    return choose.select(t("quant.ask_method"), [(f"{name:<10} {t(key)}", name) for name, key in ABOUT.items()])


def _confirm() -> None:
    if not choose.agree(t("quant.confirm")):
        raise typer.Exit(1)


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _plan_text(job: Job, plan: dict[str, Any]) -> str:
    rows = [
        (row["from"], row["to"], f"{row['weights'] / 1e6:.1f} M", output.size(row["before"]), output.size(row["after"]))
        for row in plan["rows"]
    ]
    sums = t(
        "quant.sums",
        before=output.size(plan["before"]),
        after=output.size(plan["after"]),
        out=job.out,
        time=_time(plan["seconds"]),
        memory=output.size(plan["memory"]),
        threads=plan["threads"],
    )
    lines = [output.table(rows, [t(key) for key in COLUMNS]), "", sums]
    if plan["finished"]:
        lines.append(t("quant.would_go_on", done=plan["finished"], total=plan["groups"]))
    return "\n".join(lines)
