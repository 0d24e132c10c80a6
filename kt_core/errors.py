"""Errors that a person may read: what happened, why, and the next command.

Each class stands for one documented exit code. An error carries a message key and its
arguments; the text is looked up when it is shown, so it comes in the reader's language.
"""

from kt_core.messages import t


class KTError(Exception):
    """An expected failure. The catalogue entry `key` has up to three lines: what, why, next."""

    exit_code = 1

    @property
    def kind(self) -> str:
        """What programs tell failures apart by."""
        return type(self).__name__

    def __init__(self, key: str, **args: object) -> None:
        super().__init__(key)
        self.key = key
        self.args_ = args

    def lines(self) -> tuple[str, str, str]:
        """(what, why, next) in the current language; missing parts are empty."""
        what, why, next_step = [*t(self.key, **self.args_).split("\n", 2), "", ""][:3]
        return what, why, next_step

    def __str__(self) -> str:
        return " ".join(line for line in self.lines() if line)


class UsageError(KTError):
    """The command line or a request is wrong."""

    exit_code = 2


class DoesNotFit(KTError):
    """The machine has too little memory for what was asked."""

    exit_code = 3


class NotFound(KTError):
    """No such model, file or server."""

    exit_code = 4


class BadData(KTError):
    """A file is damaged, truncated, or not what its name says."""

    exit_code = 5


class EnvironmentProblem(KTError):
    """A needed part is missing, too old, or broken."""

    exit_code = 6


class Unsupported(KTError):
    """A combination that kt does not do."""

    exit_code = 7


class RemoteError(KTError):
    """An error that another process reported, already in words; `kind` is what it was there, where that was said."""

    def __init__(self, what: str, why: str = "", next_step: str = "", exit_code: int = 1, kind: str = "") -> None:
        super().__init__("core.remote", what=what, why=why, next=next_step)
        self.exit_code = exit_code
        self._kind = kind

    @property
    def kind(self) -> str:
        return self._kind or super().kind
