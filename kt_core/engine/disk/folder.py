"""Pages in files: one folder for all models of this user, shared by any number of servers.

A page's file is named by the digest of all tokens up to its end and lies in the folder of its model's identity. It
holds what it must be, which is compared when it is read, and a checksum of everything. Files are written beside and
renamed, without waiting for the disk: what a crash of the machine leaves half-written fails its checksum. There are no
locks and no index, so nothing can go stale: whoever misses a file has a miss, and whoever is beaten to a write keeps
the other's.
"""

import logging
import os
import struct
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b, sha256
from itertools import count
from pathlib import Path
from typing import Any

from kt_core.engine.pages import path_after

log = logging.getLogger(__name__)

_MAGIC = b"kt page1"
_SUM = 32  # bytes of the checksum
_UNFINISHED = ".kt-"  # how the names of files that are being written begin
_ABANDONED = 600.0  # seconds after which an unfinished file's writer is gone
_PARTS = 16  # others may write too: the folder is looked through after each such part of the limit


@dataclass(frozen=True)
class Key:
    """What a page holds: `path` is the digest of all tokens to its end, `parent` of those before, `tokens` its own."""

    path: bytes
    parent: bytes
    tokens: Sequence[int]


def keys_of(tokens: Sequence[int], page: int, skip: int, path: bytes) -> list[Key]:
    """Of the pages of `page` tokens that a sequence may share, behind the first `skip`, which lead to `path`."""
    keys: list[Key] = []
    for at in range(skip * page, len(tokens) - page, page):  # at least one token is left to compute
        own = tokens[at : at + page]
        keys.append(Key(path_after(path, own), path, own))
        path = keys[-1].path
    return keys


class Folder:
    """The files of one model's pages below `base`, and the byte limit of all models' files together.

    `identity` stands for everything that the bytes of a page depend on beside its tokens. Methods raise OSError as the
    system gives it, except where a file is merely not there any more. One thread may write, another one read; other
    folders, in this process or another, may use the same files.
    """

    def __init__(self, base: Path, identity: bytes, page_bytes: int, limit: int) -> None:
        self._base = base
        self._identity = blake2b(identity, digest_size=32).digest()
        self._own = base / self._identity.hex()
        self._page_bytes = page_bytes
        self._limit = limit
        self._room = 0  # bytes that may be written before the folder must be looked through
        self._names = count()

    def write(self, key: Key, parts: Sequence[Any], unless: Any) -> bool:
        """Keep the page, whose bytes are `parts`, buffers, one after the other. False when it was there already.

        `unless()` is asked when all has been written: if it says yes, the parts may have changed meanwhile, and
        nothing is kept.
        """
        target = self._file(key.path)
        head = self._head(key)
        size = _SUM + len(head) + self._page_bytes
        if size > self._limit or target.exists():
            return False
        if self._room < size:
            self.trim(size)
        beside = target.with_name(f"{_UNFINISHED}{os.getpid()}-{next(self._names)}")
        try:
            with _created(beside) as file:
                file.write(_checksum([head, *parts]))
                for part in (head, *parts):
                    file.write(part)
            if unless():
                return False
            beside.replace(target)
        except FileNotFoundError:  # another server emptied the folder meanwhile
            return False
        finally:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
        self._room -= size
        return True

    def read(self, key: Key, buffer: bytearray) -> memoryview | None:
        """The page's bytes, within `buffer`, which is made as long as it must be; None when there is no such page.

        A file that is not exactly what was written for this key is deleted and never served.
        """
        file, head = self._file(key.path), self._head(key)
        size = _SUM + len(head) + self._page_bytes
        if len(buffer) != size + 1:
            buffer[:] = bytes(size + 1)
        try:
            with file.open("rb", buffering=0) as source:
                view, found = memoryview(buffer), 0
                while more := source.readinto(view[found:]):
                    found += more
        except FileNotFoundError:
            return None
        whole = memoryview(buffer)[:size]
        fault = self._fault(whole, head) if found == size else f"it has {found} bytes instead of {size}"
        if fault:
            log.info("a page on disk is dropped, %s: %s", fault, file)
            with suppress(FileNotFoundError):
                file.unlink()
            return None
        return whole[_SUM + len(head) :]

    def has(self, key: Key) -> bool:
        """Whether there is a file of the page; what is in it shows when it is read."""
        return self._file(key.path).exists()

    def expect(self, path: bytes) -> bool:
        """Whether the page is there; the system is asked to read it into its own cache meanwhile."""
        try:
            with self._file(path).open("rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
        except FileNotFoundError:
            return False
        return True

    def touch(self, paths: Iterable[bytes]) -> None:
        """They were used, the last one most recently: pages go in the order of their use."""
        now = time.time_ns()
        for number, path in enumerate(paths):
            with suppress(FileNotFoundError):
                os.utime(self._file(path), ns=(now + number, now + number))

    def forget(self, paths: Iterable[bytes]) -> None:
        for path in paths:
            self._file(path).unlink(missing_ok=True)

    def flush(self) -> int:
        """Delete this model's pages; returns how many there were."""
        pages = [file for file, _ in _files(self._own) if not file.name.startswith(_UNFINISHED)]
        for file in pages:
            file.unlink(missing_ok=True)
        return len(pages)

    def trim(self, more: int = 0) -> None:
        """Delete what was used least recently, of all models, until there is room for `more` bytes below the limit."""
        found = sorted((state.st_mtime_ns, state.st_size, file) for file, state in _files(self._base))
        total, most, part = sum(size for _, size, _ in found), self._limit - more, self._limit // _PARTS
        most -= part if total > most else 0  # so that not every write comes here
        abandoned = time.time_ns() - int(_ABANDONED * 1e9)
        for used, size, file in found:
            if total > most or (file.name.startswith(_UNFINISHED) and used < abandoned):
                file.unlink(missing_ok=True)
                total -= size
                with suppress(OSError):  # the last page of a model is gone
                    file.parent.rmdir()
                    file.parent.parent.rmdir()
        self._room = max(more, min(self._limit - total, part))

    def _file(self, path: bytes) -> Path:
        name = path.hex()
        return self._own / name[:2] / name

    def _head(self, key: Key) -> bytes:
        """All but the checksum that must be in a page's file before its bytes."""
        tokens = array("q", key.tokens)
        sizes = struct.pack("<QQ", len(tokens), self._page_bytes)
        return b"".join((_MAGIC, self._identity, key.path, key.parent.rjust(32, b"\0"), sizes, tokens.tobytes()))

    @staticmethod
    def _fault(whole: memoryview, head: bytes) -> str:
        if whole[_SUM : _SUM + len(head)] != head:
            return "it is another one"
        return "" if whole[:_SUM] == _checksum([whole[_SUM:]]) else "its checksum differs"


def _checksum(parts: Iterable[Any]) -> bytes:
    found = sha256()  # 1.8 GB/s on a core with its instructions, twice blake2b
    for part in parts:
        found.update(part)
    return found.digest()


def _created(path: Path) -> Any:
    """A new file that only its owner may read: who has a page can tell what was said."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        number = os.open(path, flags, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = os.open(path, flags, 0o600)
    return os.fdopen(number, "wb")


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Pages below a folder, whole and unfinished, and what the system says of them; nothing that kt did not write."""
    for where, _, names in os.walk(folder, onerror=_there):
        for name in names:
            if name.startswith(_UNFINISHED) or len(name) == 64:
                with suppress(FileNotFoundError):
                    file = Path(where, name)
                    yield file, file.lstat()


def _there(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
