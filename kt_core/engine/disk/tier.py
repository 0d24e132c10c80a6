"""Pages between where they are computed with and where they are kept, beside the steps: no step ever waits for a file."""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

from kt_core.engine.disk.folder import Folder, Key
from kt_core.engine.disk.host import Host
from kt_core.engine.pages import Node
from kt_core.messages import t

log = logging.getLogger(__name__)

PATIENCE = 10.0  # seconds for one page; a disk that takes longer is given up
_NICE = 19  # of the thread that writes: it takes what the kernels' threads leave


class Load:
    """Pages of one sequence on their way from disk into `pages`; the first `done` of them are there."""

    def __init__(self, pages: Sequence[int]) -> None:
        self.pages = pages
        self.done = 0
        self.cancelled = False
        self.moved = math.inf  # when reading began, or the last page came
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """From now on its pages may serve another: nothing is written into them. Never waits for the disk."""
        with self._lock:
            self.cancelled = True

    @property
    def stuck(self) -> bool:
        return time.monotonic() - self.moved > PATIENCE

    def put(self, data: memoryview, layers: "Sequence[_Layer]") -> bool:
        """The next page, whose bytes are `data`; False when it is not wanted any more."""
        with self._lock:
            if self.cancelled:
                return False
            at, page = 0, self.pages[self.done]
            for layer in layers:
                layer.put(page, data[at : at + layer.nbytes])
                at += layer.nbytes
            self.done += 1
            self.moved = time.monotonic()
            return True


class _Layer:
    """One layer's pages, uint8 [pages, bytes], in the CPU's memory or on a device."""

    def __init__(self, pages: torch.Tensor) -> None:
        self.nbytes = pages.shape[1]
        self._pages = pages
        # Of its own: on the steps' stream a copy would wait for their end, and they for the copy's.
        self._stream = torch.Stream(pages.device) if pages.device.type != "cpu" else None

    def get(self, page: int) -> Any:
        """The page's bytes, of the CPU's own memory without a copy."""
        with self._stream or nullcontext():
            return self._pages[page].cpu().numpy()

    def put(self, page: int, data: memoryview) -> None:
        """They are there when this returns."""
        row = np.frombuffer(data, np.uint8)
        if self._stream is None:
            self._pages.numpy()[page] = row
            return
        with self._stream:
            self._pages[page].copy_(torch.from_numpy(row))
        self._stream.synchronize()


class Tier:
    """Keeps pages of `storage`, as a runner has it, in memory of the CPU or in a folder, and brings them back.

    Pages are written when a request has ended, prompt and answer, each once: pages that wait until they are evicted
    would be lost with the process, and would have to be copied in the step that needs their place. They are written
    from where they lie, without a copy; one that was evicted meanwhile is not kept. The first fault of the disk
    switches the tier off.
    """

    def __init__(self, folder: Folder | Host, storage: Sequence[torch.Tensor]) -> None:
        self.off = False
        self._folder = folder
        self._layers = [_Layer(layer) for layer in storage]
        self._most = len(storage[0])
        self._kept = self._done = 0  # pages, ever: that were to be written, and that are done with; a thread each
        self._buffer = bytearray()
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._reads: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._writer = threading.Thread(target=_serve, name="disk-write", args=(self._orders, _NICE), daemon=True)
        self._reader = threading.Thread(target=_serve, name="disk-read", args=(self._reads, 0), daemon=True)
        self._writer.start()
        self._reader.start()
        self._order(folder.trim)

    def keep(self, nodes: Sequence[Node]) -> None:
        """Write the pages of one path of the tree, from its root, unless so many wait that it would be too late."""
        if not self.off and nodes and self._kept - self._done + len(nodes) <= self._most:
            self._kept += len(nodes)
            self._order(partial(self._write, list(nodes)))

    def load(self, keys: Sequence[Key], pages: Sequence[int], ended: Callable[[Load], None]) -> Load | None:
        """Bring the longest beginning of `keys` that is on disk into `pages`; `ended` is called from another thread."""
        if self.off or not keys:
            return None
        load = Load(pages)
        self._reads.put(partial(self._read, load, keys, ended))
        return load

    def expect(self, keys: Sequence[Key]) -> None:
        """These pages will be asked for when it is their request's turn."""
        self._reads.put(partial(self._expect, keys))

    def forget(self, paths: Sequence[bytes]) -> None:
        """What lies there may be wrong. Its nodes must be out of the tree."""
        self._order(partial(self._folder.forget, paths))

    def flush(self) -> "Future[int]":
        """Delete all pages of this model; how many there were. Nothing that is in no tree any more is written after."""
        done: Future[int] = Future()

        def flush() -> None:
            count = 0
            try:
                count = self._folder.flush()
            finally:
                done.set_result(count)

        self._order(flush)
        return done

    def give_up(self, reason: str) -> None:
        """Switch off, with one line in the log."""
        if not self.off:
            self.off = True
            log.warning("%s", t("engine.disk_off", reason=reason))

    def close(self, wait: float | None) -> None:
        """What has been kept is still written, for `wait` seconds at most, unless the process goes on."""
        self._orders.put(None)
        self._reads.put(None)
        self._writer.join(wait)

    def _order(self, work: Callable[[], Any]) -> None:
        def guarded() -> None:
            try:
                work()
            except OSError as error:
                self.give_up(error.strerror or type(error).__name__)

        self._orders.put(guarded)

    def _write(self, nodes: Sequence[Node]) -> None:
        self._done += len(nodes)
        written, parent = 0, b""
        for node in nodes:
            if self.off or node.parent is None:  # what hangs on an evicted page is in no tree either
                break
            parts = [layer.get(node.page) for layer in self._layers]
            written += self._folder.write(Key(node.path, parent, node.tokens), parts, partial(_evicted, node))
            parent = node.path
        if written:
            log.debug("%d of %d pages written to disk", written, len(nodes))
        self._folder.touch(node.path for node in reversed(nodes))

    def _read(self, load: Load, keys: Sequence[Key], ended: Callable[[Load], None]) -> None:
        load.moved = time.monotonic()
        try:
            for key in keys:
                data = None if self.off or load.cancelled else self._folder.read(key, self._buffer)
                if data is None or not load.put(data, self._layers):
                    break
        except OSError as error:
            self.give_up(error.strerror or type(error).__name__)
        finally:
            ended(load)

    def _expect(self, keys: Sequence[Key]) -> None:
        try:
            for key in keys:
                if self.off or not self._folder.expect(key.path):
                    return
        except OSError as error:
            self.give_up(error.strerror or type(error).__name__)


def _evicted(node: Node) -> bool:
    return node.parent is None


def _serve(orders: "SimpleQueue[Callable[[], None] | None]", nice: int) -> None:
    if nice:  # of this thread alone, on Linux
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
    while work := orders.get():
        try:
            work()
        except Exception:
            log.exception("a task of the disk tier failed")
