"""`kt microbench`: the machine's ceilings, and the kernels against them."""

import signal
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from kt_cli import launch, output
from kt_cli.help import Command, new_app
from kt_core.bench import job as jobs
from kt_core.bench import shapes
from kt_core.bench.job import Job
from kt_core.bench.shapes import Shape
from kt_core.errors import KTError, UsageError
from kt_core.flags import whole
from kt_core.formats.quantized import KERNEL_GROUP
from kt_core.machine import default_threads, probe
from kt_core.messages import t
from kt_core.plan import KERNEL_FORMATS, MOST_THREADS
from kt_core.types import Machine

app = new_app("microbench.help")
DEFAULT_SHAPE = "qwen3-30b-a3b"
ALL = "all"
INTERRUPTED = 130
TITLES = {
    jobs.MOE: "microbench.title_moe",
    jobs.LINEAR: "microbench.title_linear",
    jobs.ATTENTION: "microbench.title_attention",
}
COLUMNS = {
    "format": "microbench.column_format",
    "tier": "microbench.column_tier",
    "path": "microbench.column_path",
    "threads": "microbench.column_threads",
    "tokens": "microbench.column_tokens",
    "keys": "microbench.column_keys",
    "median": "microbench.column_median",
    "spread": "microbench.column_spread",
    "gbps": "microbench.column_gbps",
    "tflops": "microbench.column_tflops",
    "share": "microbench.column_share",
    "ceiling": "microbench.column_ceiling",
    "error": "microbench.column_error",
    "bound": "microbench.column_bound",
}
LIMITS = {"memory": "microbench.limit_memory", "compute": "microbench.limit_compute"}
WHAT = {
    "read": "microbench.what_read",
    "f32": "microbench.what_f32",
    "bf16": "microbench.what_bf16",
    "int8": "microbench.what_int8",
    "tile_bf16": "microbench.what_tile_bf16",
    "tile_int8": "microbench.what_tile_int8",
}
LINKS = {"to": "microbench.link_to", "from": "microbench.link_from"}

ShapeName = Annotated[str, typer.Option("--shape", help="microbench.shape", metavar="MODEL")]
Formats = Annotated[str | None, typer.Option("--formats", help="microbench.formats", metavar="LIST")]
Tokens = Annotated[str | None, typer.Option("--tokens", help="microbench.tokens", metavar="LIST")]
Threads = Annotated[str | None, typer.Option("--threads", help="microbench.threads", metavar="LIST")]
Layers = Annotated[int | None, typer.Option("--layers", help="microbench.layers", metavar="COUNT", min=1)]
Tier = Annotated[str | None, typer.Option("--tier", help="microbench.tier", metavar="LIST")]
Repeats = Annotated[int, typer.Option("--repeats", help="microbench.repeats", metavar="COUNT", min=1)]
Vs = Annotated[str | None, typer.Option("--vs", help="microbench.vs", metavar="torch")]
Check = Annotated[bool, typer.Option("--check", help="microbench.check")]


@dataclass(frozen=True)
class Options:
    """What moe and linear have in common, as it was typed."""

    formats: str | None
    tokens: str | None
    threads: str | None
    layers: int | None
    tier: str | None
    repeats: int
    vs: str | None
    check: bool


@dataclass
class Found:
    """What a run has told so far."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stored: str = ""
    interrupted: bool = False


@app.command("ceilings", cls=Command, help="microbench.ceilings_help", epilog="microbench.examples")
def ceilings(
    threads: Annotated[
        str | None, typer.Option("--threads", help="microbench.ceilings_threads", metavar="LIST")
    ] = None,
    repeats: Repeats = jobs.DEFAULT_REPEATS,
) -> None:
    machine = probe()
    most = default_threads(machine)[0]
    counts = _threads(threads) or (*(2**n for n in range(12) if 2**n < most), most)
    job = jobs.make(jobs.CEILINGS, machine, repeats=repeats, threads=counts)
    found = _run(job)
    keys = ("microbench.column_what", COLUMNS["threads"], COLUMNS["median"], COLUMNS["spread"])
    header = [t(key) for key in keys]
    output.result(_data(job, found), lambda: output.table([_ceiling_row(row) for row in found.rows], header))
    output.status(t("microbench.stored", path=found.stored) if found.stored else t("microbench.not_stored"))
    _end(found)


@app.command("moe", cls=Command, help="microbench.moe_help", epilog="microbench.examples")
def moe(
    shape: ShapeName = DEFAULT_SHAPE,
    hidden: Annotated[int | None, typer.Option("--hidden", help="microbench.hidden", metavar="COUNT", min=1)] = None,
    intermediate: Annotated[
        int | None, typer.Option("--intermediate", help="microbench.intermediate", metavar="COUNT", min=1)
    ] = None,
    experts: Annotated[int | None, typer.Option("--experts", help="microbench.experts", metavar="COUNT", min=1)] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="microbench.top_k", metavar="COUNT", min=1)] = None,
    formats: Formats = None,
    tokens: Tokens = None,
    threads: Threads = None,
    layers: Layers = None,
    tier: Tier = None,
    repeats: Repeats = jobs.DEFAULT_REPEATS,
    vs: Vs = None,
    check: Check = False,
) -> None:
    known = shapes.find(shape)
    _check_multiples({"--hidden": hidden, "--intermediate": intermediate})
    given = hidden or intermediate or experts or top_k
    size = Shape(
        jobs.OWN if given else known.name,
        hidden or known.hidden,
        intermediate or known.intermediate,
        experts or known.experts,
        top_k or known.top_k,
        known.heads_width,
    )
    if size.top_k > size.experts:
        raise UsageError("bench.top_k", top_k=size.top_k, experts=size.experts)
    _measure(jobs.MOE, size, Options(formats, tokens, threads, layers, tier, repeats, vs, check))


@app.command("linear", cls=Command, help="microbench.linear_help", epilog="microbench.examples")
def linear(
    shape: ShapeName = DEFAULT_SHAPE,
    inputs: Annotated[int | None, typer.Option("--inputs", help="microbench.inputs", metavar="COUNT", min=1)] = None,
    outputs: Annotated[int | None, typer.Option("--outputs", help="microbench.outputs", metavar="COUNT", min=1)] = None,
    formats: Formats = None,
    tokens: Tokens = None,
    threads: Threads = None,
    layers: Layers = None,
    tier: Tier = None,
    repeats: Repeats = jobs.DEFAULT_REPEATS,
    vs: Vs = None,
    check: Check = False,
) -> None:
    known = shapes.find(shape)
    _check_multiples({"--inputs": inputs, "--outputs": outputs})
    size = Shape(
        jobs.OWN if inputs or outputs else known.name, inputs or known.heads_width, outputs or known.hidden, 1, 1, 0
    )
    _measure(jobs.LINEAR, size, Options(formats, tokens, threads, layers, tier, repeats, vs, check))


@app.command("attention", cls=Command, help="microbench.attention_help", epilog="microbench.examples")
def attention(
    shape: ShapeName = DEFAULT_SHAPE,
    keys: Annotated[str | None, typer.Option("--keys", help="microbench.keys", metavar="LIST")] = None,
    formats: Annotated[str | None, typer.Option("--formats", help="microbench.cache_formats", metavar="LIST")] = None,
    tokens: Annotated[str | None, typer.Option("--tokens", help="microbench.queries", metavar="LIST")] = None,
    threads: Threads = None,
    layers: Annotated[int | None, typer.Option("--layers", help="microbench.layers", metavar="COUNT", min=1)] = None,
    tier: Tier = None,
    repeats: Repeats = jobs.DEFAULT_REPEATS,
    check: Check = False,
) -> None:
    known = shapes.find(shape)
    cache = known.cache
    size = Shape(known.name, cache.heads * cache.key_size, cache.heads * cache.value_size, 1, 1, 0, cache)
    _measure(
        jobs.ATTENTION,
        size,
        Options(formats or "BF16", tokens or "1,512", threads, layers, tier, repeats, None, check),
        numbers(keys, "--keys") or jobs.DEFAULT_KEYS,
    )


# ---- from options to a job


def _measure(kind: str, size: Shape, options: Options, keys: tuple[int, ...] = ()) -> None:
    machine = probe()
    if options.vs not in (None, *jobs.OPPONENTS):
        raise _bad_value("--vs", t("cli.one_of", choices=output.listed(jobs.OPPONENTS)))
    job = jobs.make(
        kind,
        machine,
        size,
        formats=_formats(machine, kind, size, options),
        keys=keys,
        tokens=numbers(options.tokens, "--tokens") or jobs.DEFAULT_TOKENS,
        threads=_threads(options.threads) or (default_threads(machine)[0],),
        tiers=_names(options.tier) or (None,),
        repeats=options.repeats,
        layers=options.layers,
        vs=options.vs or "",
        check=options.check,
    )
    jobs.check_keys(job)
    jobs.check_memory(job)
    found = _run(job)
    output.result(_data(job, found), lambda: _report(job, found))
    _end(found)


def _formats(machine: Machine, kind: str, size: Shape, options: Options) -> tuple[str, ...]:
    """The formats named, which must all do; of "all", or of those taken when none is named, those that do."""
    named = _names(options.formats)
    chosen = {(): jobs.DEFAULT_FORMATS, (ALL,): KERNEL_FORMATS}.get(named, named)
    jobs.check_names(machine, chosen, _names(options.tier))
    if kind == jobs.ATTENTION:
        jobs.check_cache_formats(chosen)
        return chosen
    wrong = {name: reason for name in chosen if (reason := jobs.wrong_blocks(kind, size, name))}
    if named not in ((), (ALL,)):
        for reason in wrong.values():
            raise reason
    elif wrong:
        output.status(t("bench.left_out", formats=output.listed(wrong)))
    return tuple(name for name in chosen if name not in wrong)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in (text or "").split(",") if word.strip()))


def numbers(text: str | None, option: str, command: str = "kt microbench") -> tuple[int, ...]:
    words = _names(text)
    found = tuple(count for word in words if (count := whole(word)))
    if text is not None and (not words or len(found) < len(words)):
        raise _bad_value(option, t("microbench.a_list"), command)
    return found


def _check_multiples(sizes: dict[str, int | None]) -> None:
    """Raises UsageError for a width that no weight in blocks can have."""
    for option, count in sizes.items():
        if count and count % KERNEL_GROUP:
            near = max(KERNEL_GROUP, count // KERNEL_GROUP * KERNEL_GROUP)
            raise UsageError("microbench.multiple", option=option, count=count, step=KERNEL_GROUP, near=near)


def _threads(text: str | None) -> tuple[int, ...]:
    counts = numbers(text, "--threads")
    if max(counts, default=0) > MOST_THREADS:
        raise UsageError("microbench.threads_many", threads=max(counts), most=MOST_THREADS)
    return counts


def _bad_value(option: str, expected: str, command: str = "kt microbench") -> UsageError:
    return UsageError("cli.bad_value", name=option, expected=expected, command=command)


# ---- the run


def _run(job: Job) -> Found:
    """Run the job in a process of its own. Ctrl-C ends it; what was measured by then is there."""
    found = Found()
    try:
        with launch.running([*launch.BENCH, "--job", job.text()], f"microbench-{job.kind}") as child:
            _follow(child, found)
    except KeyboardInterrupt:
        found.interrupted = True
        output.status(t("microbench.interrupted"))
    return found


def _follow(child: launch.Child, found: Found) -> None:
    with output.progress() as report:
        report(t("microbench.start"), 0, 0, "")
        for event in launch.events(child):
            kind = event.get("event")
            if kind == "progress":
                report(str(event["stage"]), int(event["done"]), int(event["total"]), str(event["unit"]))
            elif kind == "row":
                found.rows.append(event["row"])
            elif kind == "note":
                found.notes.append(str(event["what"]))
            elif kind == "stored":
                found.stored = str(event["path"])
            elif kind == "error":
                raise launch.failure(child, event)
    code = child.process.wait()
    if code:
        key = "microbench.killed" if code < 0 else "microbench.ended"
        reason = t("run.perhaps_memory") if code == -signal.SIGKILL else launch.last_line(child.log)
        raise KTError(key, code=code, signal=-code, reason=reason, log=child.log)


def _end(found: Found) -> None:
    """Notes after the figures that they are about; then the exit code."""
    for note in found.notes:
        output.warn(note)
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)
    off = [row for row in found.rows if "error" in row and not row["error"] <= row["bound"]]
    if off:
        raise KTError("microbench.off", rows="; ".join(t("microbench.off_row", **_error_cells(row)) for row in off))


# ---- what a person sees


def _data(job: Job, found: Found) -> dict[str, Any]:
    shape = {name: getattr(job, name) for name in ("name", "hidden", "intermediate", "experts", "top_k")}
    more: dict[str, Any] = {"profile": found.stored} if job.kind == jobs.CEILINGS else {"shape": shape}
    if job.kind == jobs.ATTENTION:
        more = {"shape": {"name": job.name, **vars(job.cache_shape)}}
    ended = {"notes": found.notes, "interrupted": found.interrupted}
    return {"kind": job.kind, **more, "rows": found.rows, **ended}


def _report(job: Job, found: Found) -> str:
    left_out = (*(() if job.check else ("error", "bound")), *(() if job.keys else ("keys",)))
    columns = [column for column in COLUMNS if column not in left_out]
    title = t(TITLES[job.kind], **vars(job.cache_shape), **{k: v for k, v in vars(job).items() if k != "keys"})
    rows = [[_cells(row)[column] for column in columns] for row in found.rows]
    return "\n".join([title, "", output.table(rows, [t(COLUMNS[column]) for column in columns])])


def _cells(row: dict[str, Any]) -> dict[str, str]:
    peak = ", ".join(f"{rate:.3g} TFLOP/s" for rate in row["unit_tflops"].values())
    rate = f"{row['read_gbps']:.1f} GB/s" if row["limit"] == "memory" else peak
    return {
        **{name: str(row.get(name, "")) for name in ("format", "tier", "path", "threads", "tokens", "keys")},
        "median": _time(row["median_us"]),
        "spread": f"{_time(row['low_us'])}..{_time(row['high_us'])}",
        "gbps": f"{row['gbps']:.1f}",
        "tflops": f"{row['tflops']:.3g}",
        "share": f"{row['share_of_ceiling']:.0%}",
        "ceiling": t("microbench.ceiling_of", limit=t(LIMITS[row["limit"]]), rate=rate),
        **{name: text for name, text in _error_cells(row).items() if name in ("error", "bound")},
    }


def _error_cells(row: dict[str, Any]) -> dict[str, str]:
    figures = {name: f"{row[name]:.1e}" if name in row else "-" for name in ("error", "bound")}
    return figures | {name: str(row[name]) for name in ("format", "tier", "tokens")}


def _time(micros: float) -> str:
    """A time in us, ms or s with three digits."""
    for unit, size in (("us", 1.0), ("ms", 1e3)):
        if micros < 1000 * size:
            return f"{micros / size:.3g} {unit}"
    return f"{micros / 1e6:.3g} s"


def _ceiling_row(row: dict[str, Any]) -> tuple[str, ...]:
    device, _, way = row["what"].partition(" ")
    what = t(LINKS[way], device=device) if way else t(WHAT[device])
    size, unit = (1e9, "GB/s") if way or row["what"] == "read" else (1e12, "TFLOP/s")
    low, median, high = (row[name] / size for name in ("low", "median", "high"))
    return what, str(row["threads"]), f"{median:.3g} {unit}", f"{low:.3g}..{high:.3g}"
