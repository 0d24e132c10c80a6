"""One finding of `kt doctor`."""

from dataclasses import dataclass

OK, WARN, ERROR = "ok", "warn", "error"


@dataclass(frozen=True)
class Check:
    """status is "ok", "warn" or "error"; suggestion is empty when there is nothing to do."""

    name: str
    status: str
    value: str
    suggestion: str = ""
