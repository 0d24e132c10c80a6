"""The marks around reasoning, by their name for --reasoning-parser."""

from kt_core.server.parsers.base import Thinking

THINKING = (
    Thinking("minimax-m3", "<mm:think>", "</mm:think>"),
    Thinking("mistral", "[THINK]", "[/THINK]"),
    Thinking("think", "<think>", "</think>"),
)
