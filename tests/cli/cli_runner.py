"""What the `kt` fixture returns."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Done:
    """What a command left: exit code and both streams."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on stdout."""
        (line,) = self.out.splitlines()
        return json.loads(line)


Run = Callable[..., Done]
