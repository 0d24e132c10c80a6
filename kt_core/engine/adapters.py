"""Adapters that requests take by name, loaded and dropped while others run."""

import logging
import threading
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from kt_core import lora
from kt_core.engine.step import Runner
from kt_core.errors import NotFound, UsageError

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Taken:
    """An adapter as requests hold it: `number` is what the runner knows it by, `digest` what tells its pages apart."""

    name: str
    folder: Path
    number: int
    digest: bytes
    nbytes: int
    owner: "Adapters" = field(repr=False)
    users: int = 0
    dropped: bool = False

    def leave(self) -> None:
        """A request that took it has ended."""
        self.owner.left(self)

    def keys(self, tokens: list[int]) -> list[int]:
        """What finds pages of these tokens computed with it: the first is a number of 62 bits, which is no token."""
        first = blake2b(self.digest + str(tokens[0]).encode(), digest_size=8).digest()
        return [int.from_bytes(first, "little") >> 3 | 1 << 61, *tokens[1:]]


class Adapters:
    """By name. Safe from any thread."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._lock = threading.Lock()  # of the names
        self._loading = threading.Lock()
        self._by_name: dict[str, Taken] = {}
        self._numbers = 0

    @property
    def names(self) -> list[str]:
        return list(self._by_name)

    def load(self, name: str, folder: Path) -> Taken:
        """Read an adapter and let requests take it. Raises UsageError for a name in use, and what lora.read and
        Runner.adapt raise."""
        with self._loading:
            if name in self._by_name:
                raise UsageError("lora.taken", field="lora_name", name=name)
            adapter = lora.read(folder)
            number, self._numbers = self._numbers, self._numbers + 1
            self._runner.adapt(number, adapter)
            taken = Taken(name, folder, number, adapter.digest, adapter.nbytes, self)
            with self._lock:
                self._by_name[name] = taken
            log.info("adapter %s: %s, %d bytes", name, folder, adapter.nbytes)
            return taken

    def drop(self, name: str) -> None:
        """No request takes it any more; its memory goes when the last one that did has ended. Raises NotFound."""
        with self._lock:
            taken = self._by_name.pop(name, None)
            if taken is None:
                raise self._unknown(name)
            taken.dropped = True
            idle = taken.users == 0
        if idle:
            self._runner.forget_adapter(taken.number)

    def take(self, name: str) -> Taken:
        """For a request, which leaves it once. Raises NotFound."""
        with self._lock:
            taken = self._by_name.get(name)
            if taken is None:
                raise self._unknown(name)
            taken.users += 1
            return taken

    def left(self, taken: Taken) -> None:
        """For Taken."""
        with self._lock:
            taken.users -= 1
            last = taken.dropped and taken.users == 0
        if last:
            self._runner.forget_adapter(taken.number)

    def _unknown(self, name: str) -> NotFound:
        return NotFound("lora.unknown", field="model", name=name, known=", ".join(self._by_name) or "-")
