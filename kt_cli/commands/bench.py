"""`kt bench`: a server's speed as its clients see it; the machine and the kernels by name; saved runs side by side."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from kt_cli import bench_quality, bench_report, keys, launch, measuring, output, servers
from kt_cli.commands import microbench
from kt_cli.help import Command, Group
from kt_core.bench import serving
from kt_core.bench.job import DEFAULT_REPEATS
from kt_core.bench.serving import MOST_TOKENS, Case, Figures, energy, plot, requests, saved
from kt_core.errors import NotFound, UsageError
from kt_core.flags import whole
from kt_core.formats.problems import shown
from kt_core.messages import t

DEFAULT = "inference"
MOST_CLIENTS = 4096  # each is a connection


class Bench(Group):
    """`kt bench demo --prompt 512` is `kt bench inference demo --prompt 512`."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        first = next((word for word in args if not word.startswith("-")), "")
        asks_help = any(word in ("-h", "--help") for word in args)
        if self.get_command(ctx, first) is None and not (asks_help and not first):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=Bench, help="bench.help", epilog="bench.examples", add_completion=False, rich_markup_mode=None)


@app.callback()
def _bench() -> None:
    """A group, whatever the number of its commands."""


@app.command(DEFAULT, cls=Command, help="bench.inference_help", epilog="bench.examples")
def inference(
    name: Annotated[str | None, typer.Argument(help="bench.name", metavar="NAME")] = None,
    url: Annotated[str | None, typer.Option("--url", help="bench.url", metavar="URL")] = None,
    prompt: Annotated[str, typer.Option("--prompt", help="bench.prompt", metavar="LENGTHS")] = "512",
    output_lengths: Annotated[str, typer.Option("--output", help="bench.output", metavar="LENGTHS")] = "128",
    concurrency: Annotated[str, typer.Option("--concurrency", "-c", help="bench.concurrency", metavar="LIST")] = "1",
    depth: Annotated[str, typer.Option("--depth", help="bench.depth", metavar="LIST")] = "0",
    repeats: Annotated[int, typer.Option("--repeats", help="bench.repeats", metavar="COUNT", min=1)] = 3,
    threads: Annotated[int | None, typer.Option("--threads", help="run.threads", metavar="COUNT", min=1)] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="bench.seed", metavar="NUMBER", min=0)] = None,
    api_key: Annotated[str | None, typer.Option("--api-key", help="bench.api_key", metavar="SECRET")] = None,
    timeout: Annotated[
        int, typer.Option("--timeout", help="bench.timeout", metavar="SECONDS", min=1, max=10**6)
    ] = requests.PATIENCE_SECONDS,
    save: Annotated[str | None, typer.Option("--save", help="bench.save", metavar="RUN")] = None,
    compare: Annotated[str | None, typer.Option("--compare", help="bench.compare", metavar="RUN")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="bench.csv", metavar="FILE")] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="bench.markdown", metavar="FILE")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="bench.plot", metavar="FILE.png")] = None,
) -> None:
    wanted = list(
        serving.cases(
            serving.parse_lengths(prompt, "--prompt"),
            serving.parse_lengths(output_lengths, "--output"),
            _clients(concurrency),
            _depths(depth),
            repeats,
        )
    )
    before = saved.load(compare) if compare else None
    bench_report.check(csv, markdown, picture)
    if picture:
        plot.check(picture)
    if save:
        saved.place(save)
    longest = max(case.longest for case in wanted)
    with _server(name, url, threads, api_key, longest, {"seed": seed, "patience": timeout}) as server:
        run = _measure(server, wanted)
    files = {"run": saved.save(save, run) if save else None}
    files |= bench_report.write(run, csv, markdown)
    if picture:
        files["plot"] = plot.write(picture, run["rows"], bench_report.axes(run["model"]))
    compared = {"compared": bench_report.ratios(before, run)} if before else {}
    output.result(
        {**run, **compared, "files": {kind: str(path) for kind, path in files.items() if path}},
        lambda: bench_report.text(run, before),
    )
    for path in files.values():
        if path:
            output.status(t("bench.written", path=path))


def _clients(text: str) -> tuple[int, ...]:
    counts = microbench.numbers(text, "--concurrency", "kt bench")
    if max(counts, default=0) > MOST_CLIENTS:
        raise UsageError("bench.clients_many", clients=max(counts), most=MOST_CLIENTS)
    return counts


@app.command("compare", cls=Command, help="bench.compare_help")
def compare_runs(
    before: Annotated[str, typer.Argument(help="bench.run", metavar="BEFORE")],
    after: Annotated[str, typer.Argument(help="bench.run", metavar="AFTER")],
) -> None:
    old, new = saved.load(before), saved.load(after)
    data = {"before": before, "after": after, "rows": bench_report.ratios(old, new)}
    output.result(data, lambda: bench_report.comparison(old, new))


app.command("quality", cls=Command, help="bench_quality.help", epilog="bench_quality.examples")(bench_quality.quality)
app.command("machine", cls=Command, help="microbench.ceilings_help")(microbench.ceilings)
app.command("moe", cls=Command, help="microbench.moe_help")(microbench.moe)
app.command("linear", cls=Command, help="microbench.linear_help")(microbench.linear)
app.command("attention", cls=Command, help="microbench.attention_help")(microbench.attention)


@app.command("mla", cls=Command, help="bench.mla_help")
def mla(
    keys_: Annotated[str | None, typer.Option("--keys", help="microbench.keys", metavar="LIST")] = None,
    tokens: Annotated[str | None, typer.Option("--tokens", help="microbench.queries", metavar="LIST")] = None,
    threads: microbench.Threads = None,
    repeats: microbench.Repeats = DEFAULT_REPEATS,
    check: microbench.Check = False,
) -> None:
    microbench.attention("deepseek-v3", keys_, None, tokens, threads, None, None, repeats, check)


def _depths(text: str) -> tuple[int, ...]:
    found = [whole(word.strip()) for word in text.split(",")]
    depths = tuple(dict.fromkeys(depth for depth in found if depth is not None))
    if None in found or max(depths) > MOST_TOKENS:
        raise UsageError("bench.bad_depths", text=shown(text))
    return depths


@contextmanager
def _server(
    name: str | None, url: str | None, threads: int | None, key: str | None, longest: int, more: dict[str, Any]
) -> Iterator[requests.Server]:
    """The server at `url`, else a running one of that model, else one that is started for this run. `more` goes to it."""

    def opened(url: str, model: str, key: str) -> requests.Server:
        def waits(seconds: float) -> None:
            output.status(t("bench.waits", url=url, silent=f"{seconds:.0f}", seconds=f"{more['patience']:g}"))

        return requests.Server(url, model, key, waits=waits, **more)

    if url:
        from kt_cli import client

        secret = key or keys.own()
        models = client.models(client.Api(url, secret))
        yield opened(url, name or next(iter(models), ""), secret)
        return
    running = servers.ready() if threads is None else []
    found = next((server for server in running if name in (None, server.model)), None)
    if found:
        yield opened(found.url, found.model, key or keys.own())
        return
    if name is None:
        raise NotFound("bench.no_server")
    plan = launch.make_plan(launch.files_of(name), {"threads": threads})
    if plan.value("context") < longest:
        plan = launch.make_plan(launch.files_of(name), {"threads": threads, "context": longest})
    plan = launch.with_server(plan, None, None)
    with launch.serving(plan) as child:
        address = launch.wait_ready(child, launch.events(child))
        yield opened(address, plan.model.name, next(iter(plan.server.api_keys), ""))


def _measure(server: requests.Server, wanted: list[Case]) -> dict[str, Any]:
    """All cases, with what the server tells of itself and what most likely limits it."""
    rows: list[Figures] = []
    with output.progress() as report:
        server.warm_up()
        for case in wanted:
            rows.append(_row(server, case, report))
    info = server.info() or {}
    predicted = info.get("predicted") or {}
    limit = measuring.limit(info, rows, server.url)
    return {
        "model": server.model,
        "url": server.url,
        "rows": [row.data() for row in rows],
        "predicted": predicted,
        "limit": {"name": limit.name, **limit.numbers} if limit else None,
        "machine": measuring.machine(),
    }


def _row(server: requests.Server, case: Case, report: Any) -> Figures:
    stage = t("bench.stage", prompt=case.prompt, output=case.output, concurrency=case.concurrency, depth=case.depth)
    report(stage, 0, case.requests, "")
    with energy.meter() as joules:
        samples = server.run(case, lambda done: report(stage, done, case.requests, ""))
    requests.failed(samples)
    for sample in samples:
        if sample.error:
            output.warn(t("bench.a_failure", reason=sample.error))
    memory = (server.info() or {}).get("memory") or {}
    return serving.summary(case, samples, int(memory.get("resident") or 0), joules())
