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

from kt_core.errors import UsageError
from kt_core.models.storage import bits
from kt_core.quantise import folder, methods
from kt_core.quantise.job import Job, check_new
from kt_core.quantise.layout import Layout, Piece
from kt_core.quantise.methods import Scheme
from kt_core.quantise.source import Source, open_source
from kt_core.quantise.write import AT_ONCE, check_disk, unfinished, write
from kt_core.types import Progress

LABEL = 1  # version of kt.json
RUNTIME = 560 << 20  # bytes of Python, torch and transformers
COPIES = 8  # float32 copies of a thread's weights at its largest moment
SAMPLE = 1 << 18  # weights that a method's speed is measured with
READ_SAMPLE = 64 << 20  # bytes
_FIRST = 1 << 20  # bytes of each source file that its identity takes in


@dataclass(frozen=True)
class Prepared:
    """A job whose every byte has its place."""

    job: Job
    source: Source
    layout: Layout
    identity: str


def prepare(job: Job) -> Prepared:
    """Read headers and decide; nothing is written. Raises what opening a checkpoint raises, UsageError when nothing is to
    be done."""
    check_new(job.out)
    source = open_source(job.model, job.gguf)
    identity = _identity(source)
    label = _label(job, identity)
    layout = _layout(job)(source, job, label)
    if job.gguf == (source.header is not None) and all(piece.scheme is None for piece in layout.pieces):
        raise UsageError("quantise.nothing", model=job.model.name, method=job.method)
    return Prepared(job, source, layout, identity + label.decode())


def _layout(job: Job) -> Callable[[Source, Job, bytes], Layout]:
    if not job.gguf:
        return folder.layout
    from kt_core.quantise import gguf_file  # with transformers, whose import takes seconds

    return gguf_file.layout


def run(prepared: Prepared, progress: Progress) -> Path:
    """Write the output; its folder. Raises what `write` raises."""
    job = prepared.job
    out = Path(job.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write(prepared.layout, prepared.source, out, prepared.identity, job.threads, progress)
    return out


def figures(prepared: Prepared) -> dict[str, Any]:
    """What the job would do: `rows` (form before, form after, weights, bytes before and after), and the sums with seconds
    and peak memory that are expected. Raises DoesNotFit when the disk is too full."""
    job, layout = prepared.job, prepared.layout
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
    """Arithmetic at the speed that a sample of each method has now, and both ways through the disk at the speed of reading."""
    amounts: dict[Scheme, int] = {}
    for piece in prepared.layout.pieces:
        if piece.scheme:
            amounts[piece.scheme] = amounts.get(piece.scheme, 0) + piece.weight.rows * piece.weight.cols
    arithmetic = sum(count * _cost(scheme) for scheme, count in amounts.items()) / prepared.job.threads
    return arithmetic + (before + prepared.layout.nbytes) / _reading(prepared.source)


def _cost(scheme: Scheme) -> float:
    """Seconds for a weight, on one thread."""
    values = np.random.default_rng(0).standard_normal((methods.ROWS, SAMPLE // methods.ROWS), np.float32)
    method = methods.find(scheme.method)
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
    at_once = max([AT_ONCE, *(piece.weight.rows * piece.weight.cols for piece in pieces if piece.weight.order)])
    return RUNTIME + prepared.job.threads * COPIES * 4 * at_once + max(layers.values())


def _identity(source: Source) -> str:
    """Which checkpoint it is: names, sizes and the beginnings of its files, where headers say what is in them."""
    known = hashlib.sha256()
    for file in source.files.files:
        path = Path(file)
        known.update(f"{path.name} {path.stat().st_size} ".encode())
        with path.open("rb") as opened:
            known.update(opened.read(_FIRST))
    known.update(json.dumps(source.config, sort_keys=True, default=str).encode())
    return known.hexdigest()


def _label(job: Job, identity: str) -> bytes:
    """kt.json: what the output is and what it was made of."""
    label = {
        "label": LABEL,
        "method": job.method,
        "group": job.group,
        "zero_point": job.zero_point,
        "only": job.only,
        "overrides": [asdict(override) for override in job.overrides],
        "source": {"name": job.model.name, "path": job.model.path, "format": job.model.format, "sha256": identity},
        "kt": version("kt-cli"),
    }
    return (json.dumps(label, indent=2, ensure_ascii=False) + "\n").encode()
