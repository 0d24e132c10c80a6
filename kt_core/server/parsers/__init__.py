"""From an answer's text to text, reasoning and tool calls.

A style is one file with a `STYLE` and one line in `STYLES`; docs/parsers.md says how to add one. Which one a model uses is seen
from the marks in its chat template, unless the settings say so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kt_core.errors import UsageError
from kt_core.server.parsers import (
    deepseek_v3,
    deepseek_v32,
    glm,
    harmony,
    hermes,
    kimi_k2,
    llama,
    minimax_m2,
    minimax_m3,
    mistral,
    qwen3_coder,
)
from kt_core.server.parsers.base import Call, Calls, Event, Parser, Reasoning, Text, Thinking
from kt_core.server.parsers.scanner import Scanner
from kt_core.server.parsers.thinking import THINKING

__all__ = ["AUTO", "NONE", "Call", "Event", "Parser", "Reasoning", "Style", "Text", "choose"]

AUTO, NONE = "auto", "none"

# The first one counts whose signs a template holds, so what is more special comes before what is more common.
STYLES: tuple[Calls, ...] = (
    harmony.STYLE,
    deepseek_v3.STYLE,
    deepseek_v32.STYLE,
    kimi_k2.STYLE,
    minimax_m3.STYLE,
    minimax_m2.STYLE,
    glm.STYLE,
    qwen3_coder.STYLE,
    mistral.STYLE,
    hermes.STYLE,
    llama.STYLE,
)
THINKERS: tuple[Thinking, ...] = (harmony.THINKING, *THINKING)


@dataclass(frozen=True)
class Style:
    """How one model writes."""

    thinking: Thinking | None = None
    calls: Calls | None = None

    def parser(self, tools: Sequence[dict[str, Any]]) -> Parser | None:
        """The parser of one answer; None where there is nothing to parse. Without tools no call is looked for."""
        calls = self.calls if tools else None
        schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
        if harmony.STYLE is self.calls or harmony.THINKING is self.thinking:
            return harmony.Harmony(self.thinking is not None, calls is not None, schemas)
        return Scanner(self.thinking, calls, schemas) if self.thinking or calls else None

    def history(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message of the assistant as the model's template takes it."""
        return self.calls.history(message) if self.calls and self.calls.history else message


def choose(template: str, calls: str = AUTO, thinking: str = AUTO) -> Style:
    """The style for a chat template. A name other than "auto" and "none" is taken whatever the template holds.

    Raises UsageError for an unknown name.
    """
    by_sign = next((style for style in STYLES if all(sign in template for sign in style.signs)), None)
    by_mark = next((style for style in THINKERS if style.close in template and style.open in template), None)
    return Style(
        thinking=_named("reasoning_parser", thinking, {style.name: style for style in THINKERS}, by_mark),
        calls=_named("tool_parser", calls, {style.name: style for style in STYLES}, by_sign),
    )


def _named(setting: str, name: str, known: dict[str, Any], found: Any) -> Any:
    if name in (AUTO, NONE):
        return found if name == AUTO else None
    if name not in known:
        raise UsageError("server.no_parser", setting=setting, name=name, known=", ".join([AUTO, NONE, *sorted(known)]))
    return known[name]
