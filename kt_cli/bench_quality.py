"""`kt bench quality`: how good each precision of a model is, beside its size and speed."""

import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kt_cli import launch, output
from kt_core import paths
from kt_core.errors import DoesNotFit, KTError, UsageError
from kt_core.formats.texts import read_text
from kt_core.messages import t
from kt_core.quality import job as jobs
from kt_core.quality.job import Job, Subject

JUDGE = [sys.executable, "-m", "kt_core.quality"]
INTERRUPTED = 130


def quality(
    names: Annotated[list[str], typer.Argument(help="bench_quality.names", metavar="NAME...")],
    text: Annotated[Path | None, typer.Option("--text", help="bench_quality.text", metavar="FILE")] = None,
    vs: Annotated[str | None, typer.Option("--vs", help="bench_quality.vs", metavar="NAME")] = None,
    questions: Annotated[
        Path | None, typer.Option("--questions", help="bench_quality.questions", metavar="FILE")
    ] = None,
    tokens: Annotated[
        int, typer.Option("--tokens", help="bench_quality.tokens", metavar="COUNT", min=1)
    ] = jobs.DEFAULT_TOKENS,
    window: Annotated[
        int, typer.Option("--window", help="bench_quality.window", metavar="TOKENS", min=jobs.LEAST_WINDOW)
    ] = jobs.DEFAULT_WINDOW,
    threads: Annotated[int | None, typer.Option("--threads", help="run.threads", metavar="COUNT", min=1)] = None,
) -> None:
    if text is None and questions is None:
        raise UsageError("bench_quality.nothing")
    if text is None and vs is not None:
        raise UsageError("bench_quality.vs_text")
    if text and window > tokens:
        raise UsageError("bench_quality.window_long", window=window, tokens=tokens)
    files = [path and paths.expanded(path).absolute() for path in (text, questions)]
    if files[0]:
        read_text(files[0])
    if files[1]:
        jobs.read_questions(files[1])
    chosen = list(dict.fromkeys([*([vs] if vs else []), *names]))
    subjects = tuple(_subject(name, window, threads) for name in chosen)
    job = Job(subjects, vs is not None, str(files[0] or ""), str(files[1] or ""), tokens, window)
    rows, interrupted = _run(job)
    output.result(
        {"text": job.text, "questions": job.questions, "rows": rows, "interrupted": interrupted}, lambda: _table(rows)
    )
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _subject(name: str, window: int, threads: int | None) -> Subject:
    """A model and how it is computed. Raises DoesNotFit, for a window beyond what the model was made for too."""
    try:
        return Subject.of(launch.make_plan(launch.files_of(name), {"context": window, "threads": threads}))
    except DoesNotFit as error:
        if error.key != "plan.context_untrained":
            raise
        trained = error.args_["trained"]
        raise DoesNotFit("bench_quality.window_untrained", name=name, window=window, trained=trained) from None


def _run(job: Job) -> tuple[list[dict[str, Any]], bool]:
    """The rows, and whether Ctrl-C ended it before all were there."""
    rows: list[dict[str, Any]] = []
    try:
        with launch.running([*JUDGE, "--job", job.dumped()], "quality") as child, output.progress() as report:
            report("start", 0, 0, "")
            for event in launch.events(child):
                kind = event.get("event")
                if kind == "progress":
                    report(str(event["stage"]), int(event["done"]), int(event["total"]), str(event["unit"]))
                elif kind == "row":
                    rows.append(event["row"])
                elif kind == "error":
                    raise launch.failure(child, event)
            code = child.process.wait()
            if code:
                key = "bench_quality.killed" if code < 0 else "bench_quality.ended"
                reason = t("run.perhaps_memory") if code == -signal.SIGKILL else launch.last_line(child.log)
                raise KTError(key, code=code, signal=-code, reason=reason, log=child.log)
    except KeyboardInterrupt:
        output.status(t("bench_quality.interrupted"))
        return rows, True
    return rows, False


# Column -> its title, and how a figure is shown; columns that no row has are left out.
COLUMNS = {
    "name": ("bench_quality.column_name", str),
    "bytes": ("bench_quality.column_size", output.size),
    "perplexity": ("bench_quality.column_perplexity", "{:.3f}".format),
    "kl_divergence": ("bench_quality.column_kl", "{:.5f}".format),
    "kl_p99": ("bench_quality.column_p99", "{:.4f}".format),
    "top1": ("bench_quality.column_top1", "{:.1%}".format),
    "layer_error": ("bench_quality.column_layers", lambda error: f"{error['mean']:.4f}, {error['worst']:.4f}"),
    "accuracy": ("bench_quality.column_accuracy", "{:.1%}".format),
    "prefill": ("bench_quality.column_prefill", "{:.0f}".format),
    "decode": ("bench_quality.column_decode", "{:.1f}".format),
}


def _table(rows: list[dict[str, Any]]) -> str:
    columns = [column for column in COLUMNS if any(column in row for row in rows)]
    header = [t(COLUMNS[column][0]) for column in columns]
    cells = [[COLUMNS[c][1](row[c]) if c in row else "-" for c in columns] for row in rows]  # type: ignore[operator]
    return output.table(cells, header)
