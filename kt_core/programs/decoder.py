"""A decoder layer: attention and a feed-forward part, each behind a norm and added to what came in."""

from typing import Any

from torch import nn

from kt_core.kernels.program import Rows
from kt_core.programs import norm
from kt_core.programs.code import Choices, Code
from kt_core.programs.gqa import Gqa
from kt_core.programs.latent import Latent
from kt_core.programs.mlp import Mlp
from kt_core.programs.moe import Moe
from kt_core.programs.rotary import Rotary
from kt_core.programs.unfit import Unfit, only

ATTENTION = (Gqa, Latent)  # a new kind: one more name
FEED_FORWARD = (Moe, Mlp)
ATTENTION_NAMES = ("self_attn",)
FEED_FORWARD_NAMES = ("mlp",)
NORMS = ("input_layernorm", "post_attention_layernorm")


class Layer:
    """What a layer's parts are, read from the module. Raises Unfit."""

    def __init__(self, module: nn.Module, rotary: Rotary, config: Any) -> None:
        only(module, {*ATTENTION_NAMES, *FEED_FORWARD_NAMES, *NORMS})
        first = _child(module, ATTENTION_NAMES)
        kind = next((kind for kind in ATTENTION if kind.fits(first)), None)
        second = _child(module, FEED_FORWARD_NAMES)
        other = next((kind for kind in FEED_FORWARD if kind.fits(second)), None)
        for part, found in ((first, kind), (second, other)):
            if found is None:
                raise Unfit("programs.parts", cls=type(part).__name__, parts=_names(part), known="-")
        self.attention = kind(first, rotary, config)  # type: ignore[misc]
        self.feed_forward = other(second, config)  # type: ignore[misc]
        self.norms = [norm.read(_child(module, (name,))) for name in NORMS]

    def emit(self, code: Code, x: Rows, choices: Choices, last: bool = False) -> None:
        """x = the layer's output; `last`: of the step's outputs alone."""
        self.attention.emit(code, x, self.norms[0], choices, last)
        self.feed_forward.emit(code, x, self.norms[1])


def _child(module: nn.Module, names: tuple[str, ...]) -> nn.Module:
    found = next((module._modules[name] for name in names if name in module._modules), None)
    if found is None:
        raise Unfit("programs.missing", cls=type(module).__name__, part=", ".join(names))
    return found


def _names(module: nn.Module) -> str:
    return ", ".join(module._modules) or "-"
