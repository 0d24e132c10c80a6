"""Runs a job: one row for each format, tier, number of threads and number of tokens."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from kt_core.bench import rivals
from kt_core.bench.attention import AttentionBench
from kt_core.bench.check import check
from kt_core.bench.job import ATTENTION, LINEAR, MOE, Job
from kt_core.bench.layers import LinearBench, MoeBench
from kt_core.bench.measure import Call, Prober, measure
from kt_core.kernels import info, set_threads
from kt_core.messages import t
from kt_core.types import Progress

Row = dict[str, Any]
Note = Callable[[str], None]
BENCHES: dict[str, type[LinearBench | MoeBench | AttentionBench]] = {
    LINEAR: LinearBench,
    MOE: MoeBench,
    ATTENTION: AttentionBench,
}


def rows(job: Job, progress: Progress, note: Note) -> Iterator[Row]:
    """Each row as soon as it is measured: format, tier, path, tokens, threads, and the fields of Measured.

    With job.check also `error` and `bound`. Notes are sentences for a person: what makes a figure doubtful.
    """
    torch.set_num_threads(1)  # torch's threads would spin beside the pool's
    prober = Prober(job.probe)
    formats = [*job.formats, *(rivals.names() if job.vs else ())]
    total = len(formats) * len(job.threads) * len(job.tokens) * len(job.tiers) * max(1, len(job.keys))
    done = 0
    for tier in job.tiers:
        for format in formats:
            if format in rivals.names() and tier != job.tiers[0]:
                continue  # torch has no tiers
            for part in [replace(job, keys=(keys,)) for keys in job.keys] or [job]:
                for row in _rows(part, format, tier, prober, progress, note):
                    yield row | ({"keys": part.keys[0]} if part.keys else {})
                    done += 1
                    progress(t("bench.stage_rows"), done, total, "")


def _rows(job: Job, format: str, tier: str | None, prober: Prober, progress: Progress, note: Note) -> Iterator[Row]:
    if format in rivals.names():
        yield from _rival_rows(job, format, prober, progress)
        return
    if not job.is_cold(format):
        note(t("bench.warm", format=format, layers=job.layer_count(format)))
    total = job.layer_count(format) * job.experts
    stage = t("bench.stage_caches" if job.kind == ATTENTION else "bench.stage_weights", format=format)
    bench = BENCHES[job.kind](job, format, tier, lambda loaded: progress(stage, loaded, total, ""))
    for threads in job.threads:
        _use(threads, note)
        for tokens in job.tokens:
            row = {"format": format, "tier": tier or info()["chosen"], "path": bench.path(tokens)}
            row |= _measured(bench.calls(tokens), tokens, threads, prober, tier, job.repeats)
            if job.check:
                row |= vars(check(job, format, tier, tokens))
            yield row
    del bench
    gc.collect()


def _rival_rows(job: Job, name: str, prober: Prober, progress: Progress) -> Iterator[Row]:
    progress(t("bench.stage_weights", format=name), 0, 1, "")
    calls = rivals.calls(job, name, lambda loaded: progress(t("bench.stage_weights", format=name), loaded, 1, ""))
    for threads in job.threads:
        _use(threads, lambda _: None)
        torch.set_num_threads(threads)
        for tokens in job.tokens:
            row = {"format": name, "tier": "", "path": "torch"}
            yield row | _measured(calls(tokens), tokens, threads, prober, None, job.repeats)
        torch.set_num_threads(1)
    del calls
    gc.collect()


def _measured(calls: list[Call], tokens: int, threads: int, prober: Prober, tier: str | None, repeats: int) -> Row:
    return {"tokens": tokens, "threads": threads, **vars(measure(calls, prober, tier, repeats))}


def _use(threads: int, note: Note) -> None:
    set_threads(threads)
    if info()["note"]:
        note(str(info()["note"]))
