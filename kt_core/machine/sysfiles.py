"""Reading /proc and /sys of a machine, or of a copy of its files. Nothing here raises for a missing or odd file."""

import os
import stat
from pathlib import Path

from kt_core.messages import t

_MAX_CPU = 1 << 16  # beyond any machine; bounds what a damaged list can make us allocate
_MAX_NUMBER = 1 << 63  # the kernel's numbers have 64 bits
_MAX_TEXT = 1 << 25  # bytes; /proc/cpuinfo of 8192 CPUs has about 2^24


class Tree:
    """Files below `root`; `notes` collects what could not be read, in words, the first case of each kind."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._notes: dict[str, str] = {}

    @property
    def live(self) -> bool:
        """Whether this is the running system, which may be asked by other ways than files."""
        return self.root == Path("/")

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes.values())

    def note(self, key: str, **args: object) -> None:
        self._notes.setdefault(key, t(key, **args))

    def text(self, path: str, limit: int = _MAX_TEXT) -> str | None:
        """The file's text, stripped; its first `limit` bytes at most. None when it is missing or cannot be read."""
        try:
            number = os.open(self._path(path), os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for its writer
            with os.fdopen(number, "rb") as file:
                data = file.read(limit) if stat.S_ISREG(os.fstat(number).st_mode) else None
        except (OSError, ValueError):
            return None
        return None if data is None else data.decode("utf-8", "replace").strip(" \t\r\n\0")

    def number(self, path: str) -> int | None:
        """The file's whole number of 64 bits; None when it holds none."""
        return whole(self.text(path, 64) or "")

    def cpus(self, list_path: str, mask_path: str = "") -> tuple[int, ...] | None:
        """The ids in a list file ("0-3,8") or, without it, in a hexadecimal mask file; None when neither is usable."""
        for path, parse in ((list_path, parse_list), (mask_path, parse_mask)):
            text = self.text(path) if path else None
            if text is None:
                continue
            try:
                return parse(text)
            except ValueError:
                self.note("machine.bad_list", path="/" + path.lstrip("/"), text=text[:60])
        return None

    def names(self, path: str) -> list[str]:
        """Names in a folder, sorted; none when it cannot be read."""
        try:
            return sorted(entry.name for entry in self._path(path).iterdir())
        except (OSError, ValueError):
            return []

    def folders(self, path: str, prefix: str) -> dict[int, str]:
        """Sub-folders called prefix + number: number -> path, sorted by number."""
        numbers = [name[len(prefix) :] for name in self.names(path) if name.startswith(prefix)]
        found = {int(n) for n in numbers if n.isascii() and n.isdecimal() and len(n) < 6}
        return {n: f"{path}/{prefix}{n}" for n in sorted(found) if n < _MAX_CPU}

    def has(self, path: str) -> bool:
        """Whether anything is there."""
        try:
            return self._path(path).exists()
        except (OSError, ValueError):
            return False

    def above(self, path: str) -> str:
        """The folder above the one that the link `path` leads to, within the root; empty when it leads out of it."""
        try:
            root, parent = self.root.resolve(), self._path(path).resolve().parent
            return f"/{parent.relative_to(root)}"
        except (OSError, ValueError, RuntimeError):  # the last for links that lead to each other
            return ""

    def _path(self, path: str) -> Path:
        return self.root / path.lstrip("/")


def whole(text: str) -> int | None:
    """The whole number that the text is, if it has 64 bits at most; None for anything else."""
    try:
        number = int(text) if len(text) < 32 else None
    except ValueError:
        return None
    return number if number is not None and -_MAX_NUMBER <= number < 2 * _MAX_NUMBER else None


def parse_list(text: str) -> tuple[int, ...]:
    """Sorted ids of a kernel list such as "0-3,8,10-11"; an empty text has none. Raises ValueError."""
    found: set[int] = set()
    for piece in filter(None, (p.strip() for p in text.split(","))):
        first, dash, last = piece.partition("-")
        low, high = int(first), int(last if dash else first)
        if not 0 <= low <= high < _MAX_CPU:
            raise ValueError(piece)
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def parse_mask(text: str) -> tuple[int, ...]:
    """Sorted ids of a kernel mask such as "ff,00000003", words of 32 bits, highest first. Raises ValueError."""
    words = text.split(",")
    if len(words) > _MAX_CPU // 32:
        raise ValueError(text[:60])
    found = []
    for index, word in enumerate(reversed(words)):
        bits = int(word, 16)
        if not 0 <= bits < 1 << 32:
            raise ValueError(word)
        found += [32 * index + bit for bit in range(32) if bits >> bit & 1]
    return tuple(found)
