"""Writing the output: layer by layer, on all threads, so that a killed run goes on and an unfinished one has no name.

Everything is written into `.OUT.partial`, which is renamed at the end. The journal there says how many groups are on the
disk; it is written after their bytes are, so what it names survives a kill and a power cut.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from kt_core.errors import DoesNotFit, KTError
from kt_core.messages import t
from kt_core.quantise import methods
from kt_core.quantise.layout import File, Layout, Piece
from kt_core.quantise.source import Source, floats
from kt_core.types import Progress
from kt_core.weights import Matrix
from kt_core.weights.quantized import COLUMN_MAJOR

AT_ONCE = 1 << 20  # weights that a thread takes at a time
JOURNAL = "journal.json"
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Task:
    """Some rows of one of a piece's matrices; `before` are the rows of the matrices in front of it."""

    piece: Piece
    matrix: Matrix
    before: int
    first: int
    count: int


def write(layout: Layout, source: Source, out: Path, identity: str, threads: int, progress: Progress) -> None:
    """Write all files of the layout into the folder `out`, which must not be there.

    `identity` says which source it is: work that another source's run left behind is not taken up. Raises KTError when
    the disk refuses, DoesNotFit when it is too full.
    """
    partial = unfinished(out)
    try:
        done = _resumed(layout, partial, identity)
        check_disk(layout, partial)
        _write_groups(layout, source, partial, identity, done, threads, progress)
        for name, content in layout.small.items():
            (partial / name).write_bytes(content)
        layout.finish(str(partial))
        (partial / JOURNAL).unlink()
        partial.rename(out)
    except OSError as error:
        raise KTError("quantise.disk", folder=partial, reason=error.strerror or error) from error


def unfinished(out: Path) -> Path:
    """The folder beside `out` that it is written into; lists of models leave hidden ones out."""
    return out.with_name(f".{out.name}.partial")


def check_disk(layout: Layout, partial: Path) -> None:
    """Raises DoesNotFit when what is still to be written takes more than is free."""
    there = next(folder for folder in (partial, *partial.parents) if folder.exists())
    written = sum(path.stat().st_blocks * 512 for path in partial.glob("*")) if partial.is_dir() else 0
    needed, free = layout.nbytes - written, shutil.disk_usage(there).free
    if free < needed:
        raise DoesNotFit("quantise.disk_full", folder=there, needed=gib(needed), free=gib(free))


def gib(count: float) -> str:
    return f"{count / 2**30:.2f} GiB"


def _resumed(layout: Layout, partial: Path, identity: str) -> int:
    """How many groups are there already; without any, the folder is made anew."""
    plan = _digest(layout, identity)
    try:
        journal = json.loads((partial / JOURNAL).read_text(encoding="utf-8"))
        if journal["plan"] == plan and type(journal["done"]) is int:
            return int(journal["done"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return 0


def _digest(layout: Layout, identity: str) -> str:
    known = hashlib.sha256(identity.encode())
    for file in layout.files:
        known.update(file.name.encode() + file.header)
    return known.hexdigest()


def _record(partial: Path, plan: str, done: int) -> None:
    beside = partial / f"{JOURNAL}.new"
    beside.write_text(json.dumps({"plan": plan, "done": done}), encoding="utf-8")
    beside.replace(partial / JOURNAL)


def _write_groups(
    layout: Layout, source: Source, partial: Path, identity: str, done: int, threads: int, progress: Progress
) -> None:
    plan, number, written = _digest(layout, identity), 0, 0
    total = sum(piece.nbytes for piece in layout.pieces)
    stage = t("quantise.stage")
    with ThreadPoolExecutor(threads) as pool:
        for file in layout.files:
            with _opened(partial / file.name, file) as target:
                for group in file.groups:
                    number += 1
                    size = sum(piece.nbytes for piece in group)
                    if number > done:
                        before = written
                        told = _Told(lambda more, before=before: progress(stage, before + more, total, "bytes"))  # type: ignore[misc]
                        _write_group(pool, target.fileno(), file, group, told)
                        os.fdatasync(target.fileno())
                        _record(partial, plan, number)
                        source.forget()
                    written += size
    progress(stage, total, total, "bytes")


class _Told:
    """Adds up what is written and passes the sum on. Threads may add at once: a sum that is late by one does no harm."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self.tell = tell
        self.sum = 0

    def add(self, count: int) -> None:
        self.sum += count
        self.tell(self.sum)


def _opened(path: Path, file: File) -> IO[bytes]:
    """The file in its full size, with its header."""
    target = path.open("r+b" if path.exists() else "w+b")
    os.ftruncate(target.fileno(), file.size)
    os.pwrite(target.fileno(), file.header, 0)
    return target


def _write_group(pool: ThreadPoolExecutor, fd: int, file: File, group: tuple[Piece, ...], told: _Told) -> None:
    """All tensors of a group. The first failure ends it; what else was begun is waited for."""
    futures = [pool.submit(_work, fd, file, task, told) for piece in group for task in _tasks(piece)]
    finished, waiting = wait(futures, return_when=FIRST_EXCEPTION)
    for future in waiting:
        future.cancel()
    wait(waiting)
    for future in finished:
        future.result()


def _tasks(piece: Piece) -> Iterator[Task]:
    before = 0
    for matrix in piece.weight.open():
        # Columns that lie together are decoded for all rows at once; a reordered weight is a small one.
        whole = matrix.format in COLUMN_MAJOR or piece.weight.order is not None
        step = matrix.rows if whole else max(1, AT_ONCE // max(1, matrix.cols) // methods.ROWS) * methods.ROWS
        for first in range(0, matrix.rows, max(1, step)):
            yield Task(piece, matrix, before, first, min(step, matrix.rows - first))
        before += matrix.rows


def _work(fd: int, file: File, task: Task, told: _Told) -> None:
    piece, scheme = task.piece, task.piece.scheme
    for name, stored, data in zip(piece.names, piece.tensors, made(task), strict=False):
        at = file.offsets[name]
        if stored.per:
            rows = -(-piece.weight.rows // stored.per)
            at += (task.before + task.first) // stored.per * (stored.nbytes // max(1, rows))
        _write_at(fd, data, at)
        told.add(data.nbytes)
    if scheme and task.before + task.first == 0:
        for name, stored in zip(piece.names, piece.tensors, strict=True):
            if not stored.per:  # the weight's own shape
                _write_at(fd, methods.raw(np.array(piece.weight.shape, "<i8")), file.offsets[name])


def made(task: Task) -> tuple[Bytes, ...]:
    """The bytes of the task's rows, for each tensor that has rows."""
    weight, scheme, matrix = task.piece.weight, task.piece.scheme, task.matrix
    if scheme is None:
        return (methods.raw(matrix.data[task.first : task.first + task.count]),)
    values = floats(matrix, task.first, task.count)
    if weight.order is not None:
        order = weight.order()
        values = values[:, order] if len(weight.shape) == 1 else values[order]
    if not np.isfinite(values).all():
        raise KTError("quantise.not_finite", tensor=weight.name)
    encoded: tuple[Bytes, ...] = methods.find(scheme.method).encode(np.ascontiguousarray(values), scheme)
    return encoded


def _write_at(fd: int, data: Bytes, at: int) -> None:
    view = memoryview(data.data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written
