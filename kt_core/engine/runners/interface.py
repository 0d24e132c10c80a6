"""kt's entries in transformers' attention interface; what they do is set for the length of a forward."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from kt_core.engine.runners.facts import Unfit

# Called as the interface calls: (module, query, key, value, mask, **arguments), to [1, T, heads, value size].
Attention = Callable[..., torch.Tensor]

PAGED = "kt_paged"  # without a mask: transformers makes none for a name that has no entry for masks
REFERENCE = "kt_reference"  # with the mask of eager attention

_now = threading.local()


def _called(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **more: Any
) -> tuple[torch.Tensor, None]:
    return _now.attention(module, query, key, value, attention_mask, **more), None


AttentionInterface.register(PAGED, _called)
AttentionInterface.register(REFERENCE, _called)
AttentionMaskInterface.register(REFERENCE, eager_mask)


@contextmanager
def attending(configs: Sequence[Any], name: str, attention: Attention) -> Iterator[None]:
    """Within this block, in this thread, the modules of these configurations use `attention`, the entry `name`."""
    before = [config._attn_implementation for config in configs]
    try:
        for config in configs:
            config._attn_implementation = name
        _now.attention = attention
        yield
    finally:
        for config, old in zip(configs, before, strict=True):
            config._attn_implementation = old


def eager(module: nn.Module) -> Callable[..., tuple[torch.Tensor, Any]]:
    """The family's own attention function. Raises Unfit where there is none."""
    function = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if function is None:
        raise Unfit(f"{type(module).__name__} has no attention function of its own to compare with")
    return function  # type: ignore[no-any-return]
