"""Collecting every problem of a file, so that one error lists them all."""

from pathlib import Path

from kt_core.errors import BadData, KTError, NotFound, Unsupported
from kt_core.messages import t

LISTED = 20  # problems spelled out in one error; the rest are counted
_SHOWN = 100  # characters of a name taken from a file
_OURS = ("known", "tensors", "names")  # arguments made here, not taken from a file as they are


def shown(name: str) -> str:
    """`name` made safe for a terminal: control characters escaped, long names cut."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in name)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


class Problem:
    """One message of the catalogue, put into words when it is shown."""

    def __init__(self, key: str, **args: object) -> None:
        self.key = key
        self.args = {k: shown(v) if isinstance(v, str) and k not in _OURS else v for k, v in args.items()}

    def __str__(self) -> str:
        return t(self.key, **self.args)


class Problems:
    """Up to LISTED problems and the number of all. `unsupported` ones are sound data that kt cannot use."""

    def __init__(self) -> None:
        self.listed: list[Problem] = []
        self.total = 0
        self.damaged = False

    def add(self, key: str, **args: object) -> None:
        self._append(Problem(key, **args))
        self.damaged = True

    def unsupported(self, key: str, **args: object) -> None:
        self._append(Problem(key, **args))

    def extend(self, other: "Problems", file: str) -> None:
        """Takes over the problems of `file`, each with the file's name before it."""
        for problem in other.listed:
            self._append(Problem("formats.in_file", file=file, problem=problem))
        self.total += other.total - len(other.listed)
        self.damaged |= other.damaged

    def _append(self, problem: Problem) -> None:
        self.total += 1
        if len(self.listed) < LISTED:
            self.listed.append(problem)

    def __bool__(self) -> bool:
        return self.total > 0

    def __str__(self) -> str:
        text = "; ".join(str(problem) for problem in self.listed)
        hidden = self.total - len(self.listed)
        return f"{text}; {t('formats.more', count=hidden)}" if hidden else text

    def raise_for(self, path: object, kind: str) -> None:
        """Raises BadData, or Unsupported when nothing is damaged, if there is any problem."""
        if self:
            error: type[KTError] = BadData if self.damaged else Unsupported
            key = "formats.damaged" if self.damaged else "formats.unsupported"
            raise error(key, path=shown(str(path)), kind=kind, problems=self)


class Stop(Exception):
    """Reading cannot go on: what follows has no known place. Carries the last problem."""

    def __init__(self, key: str, **args: object) -> None:
        super().__init__(key)
        self.key = key
        self.args_ = args


def file_size(path: Path) -> int:
    """Bytes of a regular file. Raises NotFound, or BadData for a folder or a file that cannot be read."""
    try:
        with path.open("rb") as file:
            return file.seek(0, 2)
    except FileNotFoundError:
        raise NotFound("formats.no_file", path=shown(str(path))) from None
    except OSError as error:
        raise BadData("formats.unreadable", path=shown(str(path)), reason=error.strerror or str(error)) from None


def disguise(first: bytes) -> str:
    """What a file really is when its first bytes betray it, or an empty string."""
    for magic, what in _MAGICS:
        if first.startswith(magic):
            return what
    return ""


_MAGICS = (
    (b"GGUF", "GGUF"),
    (b"FUGG", "GGUF (big-endian)"),
    (b"version https://git-lfs", "Git LFS pointer"),
    (b"PK\x03\x04", "zip (PyTorch)"),
    (b"<!DOCTYPE", "HTML"),
    (b"<html", "HTML"),
)
