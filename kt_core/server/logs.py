"""The server's log: standard error, and rotation where that is a file."""

import logging
import os
import stat
from logging.handlers import RotatingFileHandler
from pathlib import Path

# A busy server's log stays below (1 + KEPT) times this many bytes.
LOG_BYTES = 16 * 2**20
KEPT = 3
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def set_up() -> None:
    """Log to standard error, from level INFO on."""
    file = log_file()
    handler = RotatingLog(file) if file else logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def log_file() -> str:
    """The file that standard error goes to, or "" when it is none."""
    try:
        return str(Path("/proc/self/fd/2").readlink()) if stat.S_ISREG(os.fstat(2).st_mode) else ""
    except OSError:
        return ""


class RotatingLog(RotatingFileHandler):
    """The log's file; older parts are NAME.1.log and so on. Standard error, where crashes and libraries write, moves along."""

    def __init__(self, file: str) -> None:
        super().__init__(file, maxBytes=LOG_BYTES, backupCount=KEPT, encoding="utf-8", errors="backslashreplace")
        self.namer = _numbered

    def doRollover(self) -> None:
        super().doRollover()
        if self.stream is None:
            self.stream = self._open()
        os.dup2(self.stream.fileno(), 2)


def _numbered(name: str) -> str:
    """a.log.1 is a.1.log: whatever looks for logs finds the older parts too."""
    base, _, number = name.rpartition(".")
    return str(Path(base).with_suffix(f".{number}{Path(base).suffix}"))
