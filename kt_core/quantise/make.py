"""A job from its beginning to its end: open the source, lay out the output, foretell its figures, write it."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kt_core import paths
from kt_core.errors import BadData, Unsupported, UsageError
from kt_core.models.storage import bits
from kt_core.quantise import folder, forms, methods, scheme
from kt_core.quantise.columns import Curvature
from kt_core.quantise.job import Job, check_new, exists, inputs_of, read_sample, unfinished
from kt_core.quantise.layout import Layout, Piece
from kt_core.quantise.methods import Scheme
from kt_core.quantise.source import Source, open_source
from kt_core.quantise.write import AT_ONCE, check_disk, claimed, finished, write
from kt_core.types import Progress

LABEL = 1  # version of kt.json
RUNTIME = 560 << 20  # bytes of Python, torch and transformers
COPIES = 8  # float32 copies of a thread's weights at its largest moment
COMPENSATED_AT_ONCE = (
    1 << 21
)  # weights that a thread takes at a time for GPTQ, which goes through their columns one by one
SAMPLE = 1 << 18  # weights that a method's speed is measured with
GPTQ_ROWS = 512  # of a sample of GPTQ, whose cost for each weight falls with them
READ_SAMPLE = 64 << 20  # bytes
# Bytes of each source file that its identity takes in: its beginning, where headers say what is in it, and places all over it.
_FIRST, _PLACES, _PLACE = 1 << 20, 256, 4096


@dataclass(frozen=True)
class Prepared:
    """A job whose every byte has its place."""

    job: Job
    source: Source
    layout: Layout
    checkpoint: str  # which one it is
    identity: str  # of the job


def prepare(job: Job) -> Prepared:
    """Read headers and decide; nothing is written. Raises what opening a checkpoint raises, UsageError when nothing is to
    be done or the output is there."""
    if not job.dry_run:  # which says so beside its figures
        check_new(job.out)
    source = open_source(job.model, job.gguf)
    identity = _identity(source)
    label = _label(job, identity)
    layout = _layout(job)(source, job, label)
    forms.check(layout.pieces, job.model)
    if idle := scheme.idle(job, source.weights):
        raise UsageError("quantise.idle", patterns=", ".join(idle), example=_example(layout))
    if job.gguf == (source.header is not None) and all(piece.scheme is None for piece in layout.pieces):
        raise UsageError("quantise.nothing", model=job.model.name, method=job.method)
    at = _moments(source)
    return Prepared(job, source, layout, identity + at, identity + at + label.decode())


def _example(layout: Layout) -> str:
    """The name of a weight that is taken."""
    taken = (piece.weight for piece in layout.pieces if piece.scheme and piece.weight.part in scheme.LAYER_PARTS)
    return next((weight.name for weight in taken), layout.pieces[0].weight.name)


def _layout(job: Job) -> Callable[[Source, Job, bytes], Layout]:
    if not job.gguf:
        return folder.layout
    from kt_core.quantise import gguf_file  # with transformers, whose import takes seconds

    return gguf_file.layout


def run(prepared: Prepared, progress: Progress) -> Path:
    """Write the output; its folder. Raises what `claimed` and `write` raise."""
    out = Path(prepared.job.out)
    with claimed(out):
        check_new(prepared.job.out)  # somebody may have finished it
        _run(prepared, out, progress)
    return out


def _run(prepared: Prepared, out: Path, progress: Progress) -> None:
    job = prepared.job
    place = prepared.layout, prepared.source, out, prepared.identity, job.threads, progress
    if job.gptq:
        from kt_core.quantise import gptq  # with transformers, whose import takes seconds

        inputs = gptq.of(job.model, prepared.checkpoint, Path(job.gptq), inputs_of(out), job.threads, progress)
        try:
            write(*place, inputs.find, COMPENSATED_AT_ONCE)
        except (BadData, Unsupported):
            inputs.remove()
            raise
        inputs.remove()
    elif job.importance:
        from kt_core.quantise import importance

        text = Path(job.importance)
        write(*place, importance.of(job.model, prepared.checkpoint, text, job.threads, progress).find)
    else:
        write(*place)


def figures(prepared: Prepared) -> dict[str, Any]:
    """What the job would do: `rows` (form before, form after, weights, bytes before and after), and the sums with seconds
    and peak memory that are expected; `exists`: the output is there, so that the job is refused; `finished`: of how many of its
    `groups` an earlier run of the same job is on the disk, with which it goes on. Raises DoesNotFit when the disk is too full,
    and what `claimed` raises where the output cannot be made; what that makes is gone again."""
    job, layout = prepared.job, prepared.layout
    there = exists(job.out)
    if not there:
        with claimed(Path(job.out)):  # what the system refuses there is known by trying alone
            check_disk(layout, unfinished(Path(job.out)))
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for piece in layout.pieces:
        key = piece.weight.format, _form(piece)
        row = rows.setdefault(key, {"from": key[0], "to": key[1], "weights": 0, "before": 0, "after": 0})
        row["weights"] += piece.weight.rows * piece.weight.cols
        row["before"] += _stored(piece)
        row["after"] += piece.nbytes
    listed = sorted(rows.values(), key=lambda row: -row["after"])
    before = sum(row["before"] for row in listed)
    return {
        "rows": listed,
        "before": before,
        "after": layout.nbytes,
        "seconds": _seconds(prepared, before),
        "memory": _memory(prepared),
        "threads": job.threads,
        "exists": there,
        "finished": 0 if there else finished(layout, unfinished(Path(job.out)), prepared.identity),
        "groups": sum(len(file.groups) for file in layout.files),
    }


def _form(piece: Piece) -> str:
    """The words for what a piece becomes."""
    scheme = piece.scheme
    if scheme is None:
        return piece.weight.format
    return (
        scheme.method.upper() + (f" g{scheme.group}" if scheme.group else "") + (" +zero" if scheme.zero_point else "")
    )


def _stored(piece: Piece) -> int:
    """Bytes of the weight in the source, nearly: the same for each of its numbers."""
    return round(piece.weight.rows * piece.weight.cols * bits(piece.weight.format) / 8)


def _seconds(prepared: Prepared, before: int) -> float:
    """Arithmetic at the speed that a sample of each method has now, and both ways through the disk at the speed of reading.
    What a text takes to run through the model is not in it."""
    amounts: dict[tuple[Scheme, int], int] = {}
    for piece in prepared.layout.pieces:
        if piece.scheme:
            kind = piece.scheme, piece.weight.cols if prepared.job.gptq else 0
            amounts[kind] = amounts.get(kind, 0) + piece.weight.rows * piece.weight.cols
    arithmetic = sum(count * _cost(*kind) for kind, count in amounts.items()) / prepared.job.threads
    return arithmetic + (before + prepared.layout.nbytes) / _reading(prepared.source)


def _cost(scheme: Scheme, compensated: int) -> float:
    """Seconds for a weight, on one thread; `compensated`: of GPTQ with that many columns."""
    method, random = methods.find(scheme.method), np.random.default_rng(0)
    if compensated and hasattr(method, "compensated"):
        values = random.standard_normal((GPTQ_ROWS, compensated), np.float32)
        begin = time.perf_counter()
        method.compensated(values, scheme, Curvature(torch.eye(compensated), np.ones(compensated, np.float32)))
        return (time.perf_counter() - begin) / values.size
    values = random.standard_normal((methods.ROWS, SAMPLE // methods.ROWS), np.float32)
    method.encode(values, scheme)
    begin = time.perf_counter()
    method.encode(values, scheme)
    return (time.perf_counter() - begin) / values.size


def _reading(source: Source) -> float:
    """Bytes a second that a part of the source is read with."""
    largest = max(source.files.files, key=lambda file: Path(file).stat().st_size)
    with Path(largest).open("rb") as file:
        file.seek(max(0, Path(largest).stat().st_size - READ_SAMPLE) // 2)
        begin = time.perf_counter()
        count = len(file.read(READ_SAMPLE))
    return count / max(1e-6, time.perf_counter() - begin)


def _memory(prepared: Prepared) -> int:
    """Bytes at the largest moment: the libraries, each thread's copies, and one layer of the source."""
    pieces = prepared.layout.pieces
    layers: dict[int, int] = {}
    for piece in pieces:
        layers[piece.weight.layer] = layers.get(piece.weight.layer, 0) + _stored(piece)
    usual = COMPENSATED_AT_ONCE if prepared.job.gptq else AT_ONCE
    at_once = max([usual, *(piece.weight.rows * piece.weight.cols for piece in pieces if piece.weight.order)])
    loaded = (
        sum(layers.values()) if prepared.job.importance or prepared.job.gptq else 0
    )  # the text runs through the whole model
    return RUNTIME + max(loaded, prepared.job.threads * COPIES * 4 * at_once + max(layers.values()))


def _identity(source: Source) -> str:
    """Which checkpoint it is: names, sizes, the beginnings of its files, and a sample of the rest."""
    known = hashlib.sha256()
    for file in source.files.files:
        path = Path(file)
        known.update(f"{path.name} {path.stat().st_size} ".encode())
        with path.open("rb") as opened:
            known.update(opened.read(_FIRST))
            for number in range(_PLACES):
                opened.seek(path.stat().st_size * number // _PLACES)
                known.update(opened.read(_PLACE))
    known.update(json.dumps(source.config, sort_keys=True, default=str).encode())
    return known.hexdigest()


def _moments(source: Source) -> str:
    """When its files were changed last: work on a source that has changed since is not taken up."""
    return " ".join(str(Path(file).stat().st_mtime_ns) for file in source.files.files)


def _text(path: str) -> dict[str, str]:
    """Which text it was. Raises what reading it raises."""
    read_sample(Path(path))
    return {"text": Path(path).name, "sha256": hashlib.sha256(paths.content(Path(path))).hexdigest()}


def _label(job: Job, identity: str) -> bytes:
    """kt.json: what the output is and what it was made of."""
    label = {
        "label": LABEL,
        "method": job.method,
        "group": job.group,
        "zero_point": job.zero_point,
        "only": job.only,
        "overrides": [asdict(override) for override in job.overrides],
        **{name: _text(path) for name, path in (("importance", job.importance), ("gptq", job.gptq)) if path},
        "source": {"name": job.model.name, "path": job.model.path, "format": job.model.format, "sha256": identity},
        "kt": version("kt-cli"),
    }
    return (json.dumps(label, indent=2, ensure_ascii=False) + "\n").encode()
