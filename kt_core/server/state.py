"""What the routes share: the server's settings, and the engine once it is loaded."""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kt_core.engine import prompt
from kt_core.server.errors import Loading
from kt_core.server.figures import Metrics
from kt_core.server.parsers import AUTO, Style, choose
from kt_core.types import Plan

if TYPE_CHECKING:  # the engine imports torch, and the server listens before that
    from kt_core.engine.engine import Engine


@dataclass
class State:
    model: str  # the name that clients use
    api_keys: tuple[str, ...] = ()  # any of them will do; none: no key is asked for
    engine: "Engine | None" = None
    stage: str = "start"
    done: int = 0
    total: int = 0
    created: int = field(default_factory=lambda: int(time.time()))
    tool_parser: str = AUTO
    reasoning_parser: str = AUTO
    plan: Plan | None = None
    local: bool = False  # only this machine can reach the server
    cors: tuple[str, ...] = ()  # origins of web pages that may use this server
    media_hosts: tuple[str, ...] = ()  # from which images are fetched
    log_prompts: bool = False
    lora_folder: str = ""  # from which clients may have adapters loaded; "": from nowhere
    metrics: Metrics = field(init=False)
    _style: Style | None = None

    def __post_init__(self) -> None:
        self.metrics = Metrics(self)

    def ready(self) -> "Engine":
        """The engine. Raises Loading until there is one."""
        if self.engine is None:
            raise Loading("server.loading", stage=self.stage, done=self.done, total=self.total)
        return self.engine

    def served(self) -> list[str]:
        """The names that clients may ask for: the model, and with each adapter."""
        return [self.model, *(f"{self.model}:{name}" for name in (self.engine.adapters.names if self.engine else ()))]

    def style(self) -> Style:
        """How the model writes reasoning and calls. Raises Loading, and UsageError for a parser that does not exist."""
        if self._style is None:
            self._style = choose(
                "\n".join(prompt.all_templates(self.ready().tokenizer)), self.tool_parser, self.reasoning_parser
            )
        return self._style
