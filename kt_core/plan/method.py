"""Decision on the way that experts are held: their stored form, under the name that users of KTransformers know."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from kt_core.errors import Unsupported, UsageError
from kt_core.messages import t
from kt_core.models.knowledge import GGUF_METHOD, METHODS
from kt_core.types import Decision, ModelSpec

# Names of ways that convert weights beforehand -> what kt calls weights that are stored so
CONVERTED = {
    "AMXINT8": ("INT8_CHANNEL", "Q8_0"),
    "MOE_INT8": ("INT8_CHANNEL", "Q8_0"),
    "AMXINT4": ("INT4",),
    "MOE_INT4": ("INT4",),
    "AMXBF16": ("BF16",),
}
OLDER = {"RAWFP8": "FP8"}  # names that KTransformers has changed since
NAMES = (*METHODS.values(), GGUF_METHOD, *CONVERTED)


def method(spec: ModelSpec, wishes: Mapping[str, Any]) -> Decision:
    """Raises UsageError for an unknown name, Unsupported for a way that the weights are not stored in."""
    stored = max(spec.formats, key=lambda form: spec.formats[form], default="")
    own = spec.method or stored
    wished = wishes.get("method")
    if wished is None:
        return Decision("method", own, t("plan.method_stored"), "model")
    given = str(wished).upper()
    name = OLDER.get(given, given)
    if name not in NAMES:
        near = get_close_matches(name, NAMES, n=3, cutoff=0.5)
        raise UsageError("plan.unknown_method", name=wished, known=", ".join(near or NAMES))
    if name != own and stored not in CONVERTED.get(name, ()):
        raise Unsupported("plan.other_method", name=name, stored=own)
    reason = t("plan.chosen") if name == given else t("plan.method_renamed", old=given)
    return Decision("method", name, reason, "user")
