"""Writing the output: layer by layer, on all threads, so that a killed run goes on and an unfinished one has no name.

Everything is written into `.OUT.partial`, which is renamed at the end. The journal there says how many groups are on the
disk; it is written after their bytes are, so what it names survives a kill and a power cut.
"""

import fcntl
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from kt_core.errors import BadData, DoesNotFit, KTError, Unsupported, UsageError
from kt_core.messages import t
from kt_core.quantise import methods
from kt_core.quantise.ahead import Ahead
from kt_core.quantise.columns import Curvature
from kt_core.quantise.job import JOURNAL, unfinished
from kt_core.quantise.layout import File, Layout, Piece
from kt_core.quantise.methods import fp8
from kt_core.quantise.source import Floats, Source, floats
from kt_core.types import Progress
from kt_core.weights import Matrix
from kt_core.weights.quantized import COLUMN_MAJOR

AT_ONCE = 1 << 18  # weights that a thread takes at a time: 1 MB as float32, which stays in a core's cache
_EXPONENTS = {"BF16": ("<u2", 0x7F80), "F16": ("<u2", 0x7C00), "F32": ("<u4", 0x7F800000)}  # of numbers that are copied
Bytes = npt.NDArray[np.uint8]
# (place of a matrix, row) -> how much an error of each column counts, alone or beside others'; see importance.Importance.find
# and gptq.Inputs.find.
Find = Callable[[str, int], Floats | Curvature | None]


def _all_alike(place: str, row: int) -> None:
    return None


@dataclass(frozen=True)
class Task:
    """Some rows of one of a piece's matrices, which is at `place`; `before` are the rows of the matrices in front of it."""

    piece: Piece
    matrix: Matrix
    place: str
    before: int
    first: int
    count: int

    @property
    def stored(self) -> Bytes:
        return self.matrix.data[self.first : self.first + self.count]


def write(
    layout: Layout,
    source: Source,
    out: Path,
    identity: str,
    threads: int,
    progress: Progress,
    find: Find = _all_alike,
    at_once: int = AT_ONCE,
) -> None:
    """Write all files of the layout into the folder `out`, which must not be there and is `claimed`.

    `identity` says which source it is: work that another source's run left behind is not taken up. `find` is asked for the
    importance of the weights' columns; `at_once` weights are taken at a time. Raises KTError when the disk refuses, DoesNotFit when it is too full.
    """
    partial = unfinished(out)
    try:
        done = _resumed(layout, partial, identity)
        check_disk(layout, partial)
        _write_groups(layout, source, partial, identity, done, threads, progress, find, at_once)
        for name, content in layout.small.items():
            (partial / name).write_bytes(content)
        layout.finish(str(partial))
        for path in partial.iterdir():
            _on_disk(path)
        (partial / JOURNAL).unlink()
        _on_disk(partial)
        partial.rename(out)
    except OSError as error:
        raise KTError("quantise.disk", folder=partial, reason=error.strerror or error) from error
    except (BadData, Unsupported):  # of the source: another one's run would begin anew
        for path in partial.iterdir():
            path.unlink()
        raise


def _on_disk(path: Path) -> None:
    """A file's bytes, or a folder's names, survive a power cut from here on."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Nobody else writes this output meanwhile, which a lock on its unfinished folder says; a killed process holds none.

    Raises UsageError where somebody does, KTError when the disk refuses.
    """
    partial = unfinished(out)
    made = [folder for folder in partial.parents if not folder.exists()]
    try:
        if partial.is_symlink():
            raise UsageError("quantise.not_ours", folder=partial)
        partial.mkdir(parents=True, exist_ok=True)
        folder = os.open(partial, os.O_RDONLY)
    except OSError as error:
        _remove_empty(made)
        raise KTError("quantise.no_place", out=out, folder=partial, reason=error.strerror or error) from error
    try:
        _lock(folder, out)
        try:
            yield
        finally:
            _remove_empty([partial, *made])
    finally:
        os.close(folder)


def _remove_empty(folders: list[Path]) -> None:
    """One after the other, up to one that was never made, has something in it, or has become the output."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _lock(folder: int, out: Path) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError("quantise.busy", out=out) from error


def check_disk(layout: Layout, partial: Path) -> None:
    """Raises DoesNotFit when what is still to be written takes more than is free."""
    there = next(folder for folder in (partial, *partial.parents) if folder.exists())
    written = sum(path.stat().st_blocks * 512 for path in partial.glob("*")) if partial.is_dir() else 0
    needed, free = layout.nbytes - written, shutil.disk_usage(there).free
    if free < needed:
        raise DoesNotFit("quantise.disk_full", folder=there, needed=gib(needed), free=gib(free))


def gib(count: float) -> str:
    return f"{count / 2**30:.2f} GiB"


def finished(layout: Layout, partial: Path, identity: str) -> int:
    """How many groups of this very output an earlier run brought to the disk."""
    try:
        journal = json.loads((partial / JOURNAL).read_text(encoding="utf-8"))
        done, same = journal["done"], journal["plan"] == _digest(layout, identity)
        return int(done) if same and type(done) is int and _whole(layout, partial, done) else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _resumed(layout: Layout, partial: Path, identity: str) -> int:
    """The same; without any, the folder is emptied. Raises UsageError where it holds what no run writes."""
    done = finished(layout, partial, identity)
    if any(path.is_dir() and not path.is_symlink() for path in partial.iterdir()):
        raise UsageError("quantise.not_ours", folder=partial)
    for path in partial.iterdir() if not done else ():
        path.unlink()
    return done


def _whole(layout: Layout, partial: Path, done: int) -> bool:
    """Whether the files that so many groups went to are as they were left."""
    for file in layout.files:
        if done <= 0:
            break
        done -= len(file.groups)
        path = partial / file.name
        if not path.is_file() or path.stat().st_size != file.size:
            return False
        with path.open("rb") as opened:
            if opened.read(len(file.header)) != file.header:
                return False
    return True


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
    layout: Layout,
    source: Source,
    partial: Path,
    identity: str,
    done: int,
    threads: int,
    progress: Progress,
    find: Find,
    at_once: int,
) -> None:
    plan, number, written = _digest(layout, identity), 0, 0
    total = sum(piece.nbytes for piece in layout.pieces)
    stage = t("quantise.stage")
    with ThreadPoolExecutor(threads) as pool:
        for file in layout.files:
            with _opened(partial / file.name, file) as target, ThreadPoolExecutor(1) as disk:
                sealing = None
                for group in file.groups:
                    number += 1
                    size = sum(piece.nbytes for piece in group)
                    if number > done:
                        before = written
                        told = _Told(lambda more, before=before: progress(stage, before + more, total, "bytes"))  # type: ignore[misc]
                        _write_group(pool, Target(target.fileno(), file, told, find, at_once), group)
                        source.forget()
                        if sealing:
                            sealing.result()
                        sealing = disk.submit(_seal, target.fileno(), partial, plan, number)
                    written += size
                if sealing:
                    sealing.result()
    progress(stage, total, total, "bytes")


def _seal(fd: int, partial: Path, plan: str, done: int) -> None:
    """Bring a group to the disk, and then say so; the next one is computed meanwhile."""
    os.fdatasync(fd)
    _record(partial, plan, done)


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


@dataclass(frozen=True)
class Target:
    """Where a group goes, who hears of it, and what is known of its columns."""

    fd: int
    file: File
    told: _Told
    find: Find
    at_once: int


def _write_group(pool: ThreadPoolExecutor, target: Target, group: tuple[Piece, ...]) -> None:
    """All tensors of a group. The first failure ends it; what else was begun is waited for."""
    tasks = [task for piece in group for task in _tasks(piece, target.at_once)]
    with Ahead([task.stored for task in tasks]) as ahead:
        futures = [pool.submit(_work, target, task, ahead) for task in tasks]
        finished, waiting = wait(futures, return_when=FIRST_EXCEPTION)
        for future in waiting:
            future.cancel()
        wait(waiting)
    for future in finished:
        future.result()


def _tasks(piece: Piece, at_once: int) -> Iterator[Task]:
    """Rows of a stack's matrices stay apart: importance differs between them."""
    before, shape = 0, piece.weight.shape
    for matrix, place in zip(piece.weight.open(), piece.weight.places, strict=True):
        # Columns that lie together are decoded for all rows at once; a reordered weight is a small one.
        whole = matrix.format in COLUMN_MAJOR or piece.weight.order is not None
        step = matrix.rows if whole else max(1, at_once // max(1, matrix.cols) // methods.ROWS) * methods.ROWS
        part = shape[-2] if len(shape) == 3 and not whole else matrix.rows
        for begin in range(0, matrix.rows, max(1, part)):
            end = min(begin + part, matrix.rows)
            for first in range(begin, end, max(1, step)):
                yield Task(piece, matrix, place, before, first, min(step, end - first))
        before += matrix.rows


def _work(target: Target, task: Task, ahead: Ahead) -> None:
    ahead.step()
    piece, offsets = task.piece, target.file.offsets
    for name, stored, data in zip(piece.names, piece.tensors, made(task, target.find), strict=False):
        at = offsets[name]
        if stored.per:
            rows = -(-piece.weight.rows // stored.per)
            at += (task.before + task.first) // stored.per * (stored.nbytes // max(1, rows))
        _write_at(target.fd, data, at)
        target.told.add(data.nbytes)
    if piece.scheme and task.before + task.first == 0:
        for name, stored in zip(piece.names, piece.tensors, strict=True):
            if not stored.per:  # the weight's own shape
                _write_at(target.fd, methods.raw(np.array(piece.weight.shape, "<i8")), offsets[name])


def made(task: Task, find: Find) -> tuple[Bytes, ...]:
    """The bytes of the task's rows, for each tensor that has rows."""
    weight, scheme, matrix = task.piece.weight, task.piece.scheme, task.matrix
    if scheme is None:
        rows = methods.raw(matrix.data[task.first : task.first + task.count])
        if matrix.format in _EXPONENTS and _any_not_finite(rows, *_EXPONENTS[matrix.format]):
            raise BadData("quantise.not_finite", tensor=weight.name)
        return (rows,)
    if fp8.same(matrix.format, weight.rows, weight.cols) == scheme and (
        same := fp8.stored(matrix, task.first, task.count)
    ):
        return same
    values = floats(matrix, task.first, task.count)
    if weight.order is not None:
        order = weight.order()
        values = values[:, order] if len(weight.shape) == 1 else values[order]
    method, known, values = methods.find(scheme.method), find(task.place, task.first), np.ascontiguousarray(values)
    largest = max(float(values.max(initial=0)), -float(values.min(initial=0)))  # NaN where one is
    if not math.isfinite(largest):
        raise BadData("quantise.not_finite", tensor=weight.name)
    if largest > method.LARGEST:
        most = f"{method.LARGEST:.3g}"
        raise BadData(
            "quantise.too_large", tensor=weight.name, method=scheme.method, largest=f"{largest:.3g}", most=most
        )
    if isinstance(known, Curvature):
        if len(known.diagonal) == matrix.cols and hasattr(method, "compensated"):
            compensated: tuple[Bytes, ...] = method.compensated(values, scheme, known)
            return compensated
        known = known.diagonal
    if known is not None and known.shape != (matrix.cols,):
        known = None
    encoded: tuple[Bytes, ...] = method.encode(values, scheme, known)
    return encoded


def _any_not_finite(rows: Bytes, dtype: str, exponent: int) -> bool:
    """Whether a number has every bit of its exponent."""
    numbers = rows.view(dtype)
    return bool(((numbers & numbers.dtype.type(exponent)) == exponent).any())


def _write_at(fd: int, data: Bytes, at: int) -> None:
    view = memoryview(data.data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written
