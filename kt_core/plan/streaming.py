"""From how many tokens on a prompt step is faster when whole layers of experts are copied to the GPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kt_core.errors import UsageError
from kt_core.messages import t
from kt_core.models.knowledge import GGUF_METHOD
from kt_core.plan.abilities import WHOLE, Engine
from kt_core.types import Decision, ModelSpec

STEP = 64  # a threshold is a multiple of this
LEAST, MOST = 256, 16384  # tokens: fewer give the GPU too little to do, more take too much of its memory for their rows


@dataclass(frozen=True)
class Link:
    """Bytes a second that reach a GPU from pinned memory, and operations a second of a prompt on the CPU."""

    copies: float
    operations: float


def threshold(spec: ModelSpec, wishes: Mapping[str, Any], link: Link | None, engine: Engine = WHOLE) -> Decision:
    """Where copying a layer's experts takes as long as the CPU takes to compute with them. None: nowhere below MOST."""
    wished = wishes.get("prefill_threshold")
    name = "prefill_threshold"
    if wished is not None:
        if isinstance(wished, bool) or not isinstance(wished, int) or wished < 1:
            raise UsageError("plan.not_positive", name=name, value=wished)
        return Decision(name, wished, t("plan.chosen"), "user")
    if not spec.experts or form(spec) not in engine.streamed:
        return Decision(name, None, t("gpus.stream_form"), "model")
    if link is None or not link.operations:
        return Decision(name, None, t("gpus.stream_unknown"), "machine")
    tokens = tokens_of(spec, link)
    most = min(MOST, wishes.get("chunk") or MOST)
    if tokens > most:
        return Decision(name, None, t("gpus.stream_slow", rate=f"{link.copies / 1e9:.0f}", most=most), "machine")
    value = min(most, max(LEAST, -(-tokens // STEP) * STEP))
    return Decision(name, value, t("gpus.stream", rate=f"{link.copies / 1e9:.0f}"), "machine")


def form(spec: ModelSpec) -> str:
    """The way most weights are stored: the method, or of a GGUF file the format."""
    most = max(spec.formats, key=lambda name: spec.formats[name], default="")
    return most if spec.method == GGUF_METHOD else spec.method


def tokens_of(spec: ModelSpec, link: Link) -> int:
    """Tokens for which the CPU takes as long as the copies: of each expert that is not on the GPU the same, so that how many
    are there does not count."""
    copy = spec.bytes_by_part["experts"] / link.copies
    used = spec.parameters_by_part.get("experts", 0) * spec.experts_per_token / spec.experts
    return max(1, int(copy * link.operations / max(1.0, 2 * used)))
