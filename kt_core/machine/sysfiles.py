"""Reading /proc and /sys of a machine, or of a copy of its files. Nothing here raises for a missing or odd file."""

from pathlib import Path

from kt_core.messages import t

_MAX_CPU = 1 << 16  # beyond any machine; bounds what a damaged list can make us allocate


class Tree:
    """Files below `root`; `notes` collects what could not be read, in words, the first case of each kind."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._notes: dict[str, str] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes.values())

    def note(self, key: str, **args: object) -> None:
        self._notes.setdefault(key, t(key, **args))

    def text(self, path: str) -> str | None:
        """The file's text, stripped; None when it is missing or cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace").strip(" \t\r\n\0")
        except (OSError, ValueError):
            return None

    def number(self, path: str) -> int | None:
        """The file's whole number; None when it holds none."""
        text = self.text(path)
        try:
            return int(text) if text else None
        except ValueError:
            return None

    def cpus(self, list_path: str, mask_path: str = "") -> tuple[int, ...] | None:
        """The CPU ids in a list file ("0-3,8") or, without it, in a hexadecimal mask file; None when neither is usable."""
        for path, parse in ((list_path, parse_list), (mask_path, parse_mask)):
            text = self.text(path) if path else None
            if text is None:
                continue
            try:
                return parse(text)
            except ValueError:
                self.note("machine.bad_list", path="/" + path.lstrip("/"), text=text[:60])
        return None

    def folders(self, path: str, prefix: str) -> dict[int, str]:
        """Sub-folders called prefix + number: number -> path, sorted by number."""
        try:
            names = [p.name for p in (self.root / path.lstrip("/")).iterdir()]
        except OSError:
            return {}
        numbers = [int(n[len(prefix) :]) for n in names if n.startswith(prefix) and n[len(prefix) :].isdecimal()]
        return {n: f"{path}/{prefix}{n}" for n in sorted(numbers) if n < _MAX_CPU}


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
