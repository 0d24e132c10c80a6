"""Pages in the CPU's memory, of a model whose own pages are on a device: between those and the files."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Any

from kt_core.engine.disk.folder import Folder, Key


class Host:
    """Pages of `page_bytes`, up to `limit` bytes of them, the least recently used given up first; what is not here is asked of
    the folder `below`, if there is one, and written there too. It is used as a Folder is: one thread writes, another one reads.

    A page is found by the digest of all tokens up to its end, and served only for the very tokens that it was kept for.
    """

    def __init__(self, limit: int, page_bytes: int, below: Folder | None = None) -> None:
        self._most = limit // page_bytes
        self._below = below
        self._lock = Lock()
        self._pages: OrderedDict[bytes, tuple[Key, bytearray]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pages)

    def write(self, key: Key, parts: Sequence[Any], unless: Callable[[], bool]) -> bool:
        """As Folder.write. Parts are copied once, whoever keeps them."""
        here = self._find(key) is not None
        if here and (self._below is None or self._below.has(key)):
            return False
        data = bytearray().join(parts)
        if unless():
            return False
        self._keep(key, data)
        return self._below.write(key, [data], unless) if self._below else True

    def read(self, key: Key, buffer: bytearray) -> memoryview | None:
        """As Folder.read; what the folder has is here from now on."""
        data = self._find(key)
        if data is not None:
            return memoryview(data)
        found = self._below.read(key, buffer) if self._below else None
        if found is not None:
            self._keep(key, bytearray(found))
        return found

    def expect(self, path: bytes) -> bool:
        """Whether the page is here or below, where it is read ahead."""
        return path in self._pages or (self._below is not None and self._below.expect(path))

    def touch(self, paths: Iterable[bytes]) -> None:
        """They were used, the last one most recently."""
        paths = list(paths)
        with self._lock:
            for path in paths:
                if path in self._pages:
                    self._pages.move_to_end(path)
        if self._below:
            self._below.touch(paths)

    def forget(self, paths: Iterable[bytes]) -> None:
        """What lies there may be wrong."""
        paths = list(paths)
        with self._lock:
            for path in paths:
                self._pages.pop(path, None)
        if self._below:
            self._below.forget(paths)

    def flush(self) -> int:
        """Forget all pages, here and below; returns how many there were, each counted once for each place."""
        with self._lock:
            count = len(self._pages)
            self._pages.clear()
        return count + (self._below.flush() if self._below else 0)

    def trim(self, more: int = 0) -> None:
        """As Folder.trim, of the files."""
        if self._below:
            self._below.trim(more)

    def _find(self, key: Key) -> bytearray | None:
        with self._lock:
            kept, data = self._pages.get(key.path, (None, None))
            if kept is None or kept.parent != key.parent or list(kept.tokens) != list(key.tokens):
                return None
            self._pages.move_to_end(key.path)
            return data

    def _keep(self, key: Key, data: bytearray) -> None:
        with self._lock:
            self._pages[key.path] = key, data
            self._pages.move_to_end(key.path)
            while len(self._pages) > self._most:
                self._pages.popitem(last=False)
