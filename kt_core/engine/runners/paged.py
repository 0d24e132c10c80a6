"""Models whose layers are plain or sliding attention behind transformers' attention interface, with kt's pages."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from kt_core.engine.runners.adapted import stretches
from kt_core.engine.runners.facts import MAX_TOKENS, Facts, Unfit
from kt_core.engine.runners.interface import PAGED, attending
from kt_core.engine.step import NO_EXPERTS, NOTHING_MOVED, Counted, Step
from kt_core.engine.vision import arguments
from kt_core.kernels.attention import PageLayout, attend, new_pages, write
from kt_core.lora import Adapter

PAGE = 64
# Arguments of the attention interface that change nothing behind a causal mask. Any other one must be understood.
_HARMLESS = frozenset(
    {"dropout", "position_ids", "position_embeddings", "cache_position", "use_cache", "is_causal", "output_attentions"}
    | {"past_key_values", "cache", "output_router_logits", "logits_to_keep"}
)


@dataclass(frozen=True)
class Attention:
    """An attention module as it calls the interface: kv heads, columns of keys and values, the sliding window."""

    heads: int
    key_size: int
    value_size: int
    window: int | None


def shown(step: Step) -> dict[str, Any]:
    """What a forward takes for the step's images; {} without any."""
    if not any(step.seen):
        return {}
    starts = step.batch.starts.tolist()
    begins = [int(step.positions[start]) for start in starts[:-1]]
    sizes = [end - start for start, end in pairwise(starts)]
    return arguments([(s, b, b + size) for s, b, size in zip(step.seen, begins, sizes, strict=True)])


class PagedRunner:
    """Computes a step in one forward: tokens of all sequences in one row, keys and values written into pages.

    The model is called without a cache, so that a module hands the keys and values of the new tokens alone to the
    attention function, which writes them and attends over the pages. Latent attention comes with keys and values
    expanded. `layers` are all modules that call the interface.
    """

    page = PAGE
    shareable = True
    experts: Mapping[int, Counted] = NO_EXPERTS
    moved: Mapping[str, int] = NOTHING_MOVED
    max_tokens = MAX_TOKENS

    def __init__(
        self, model: Any, max_context: int | None, dtype: torch.dtype, layers: Mapping[nn.Module, Attention]
    ) -> None:
        self._facts = Facts(model, max_context)
        self.max_context = self._facts.max_context
        self.vocab = self._facts.vocab
        self.eos_ids = self._facts.eos_ids
        self._layouts = {
            module: PageLayout(kind.heads, kind.key_size, kind.value_size, PAGE, dtype)
            for module, kind in layers.items()
        }
        self._windows = {module: kind.window for module, kind in layers.items()}
        self._pages: dict[nn.Module, torch.Tensor] = {}
        self.page_bytes = sum(layout.page_bytes for layout in self._layouts.values())

    @property
    def storage(self) -> list[torch.Tensor]:
        return list(self._pages.values())

    def allocate(self, pages: int) -> None:
        self._pages = {module: new_pages(layout, pages) for module, layout in self._layouts.items()}

    def forward(self, step: Step) -> torch.Tensor:
        return self.computed(step, partial(self.attend, step))

    def computed(self, step: Step, attention: Callable[..., torch.Tensor]) -> torch.Tensor:
        """The step's logits, with `attention` for each layer's."""
        more = {"position_ids": step.positions[None]} | shown(step)  # images are computed with their own attention
        with attending(self._facts.configs, PAGED, attention), self._facts.adapted.taking(stretches(step)):
            return self._facts.logits(step.tokens, step.outputs, **more)

    def release(self, sequence: int) -> None:
        """Nothing is kept beside pages."""

    def adapt(self, number: int, adapter: Adapter) -> None:
        """Raises what Adapted.adapt raises."""
        self._facts.adapted.adapt(number, adapter)

    def forget_adapter(self, number: int) -> None:
        """No sequence of a step takes it any more."""
        self._facts.adapted.forget(number)

    def attend(
        self,
        step: Any,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None = None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        **more: Any,
    ) -> torch.Tensor:
        """The interface's call for one layer: query [1, heads, T, size] and so on, to [1, T, heads, value size].

        Raises Unfit for a layer that is not what it was found to be, or arguments that are not known here.
        """
        layout, window = self._layouts.get(module), self._windows.get(module)
        if layout is None or sliding_window not in (None, window):
            raise Unfit(f"{type(module).__name__} has a window of {sliding_window}, and its cache one of {window}")
        if mask is not None:
            raise Unfit(f"{type(module).__name__} attends behind a mask of its own")
        if unknown := sorted(name for name, given in more.items() if given is not None and name not in _HARMLESS):
            raise Unfit(f"{type(module).__name__} attends with {', '.join(unknown)}")
        q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
        scale = layout.key_size**-0.5 if scaling is None else scaling
        return self._over_pages(step, module, q, k, v, scale, s_aux, softcap or 0.0)[None]

    def _over_pages(
        self,
        step: Any,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        sinks: torch.Tensor | None,
        softcap: float,
    ) -> torch.Tensor:
        """Write the step's keys and values [T, heads, size], and attend: [T, query heads, value size]."""
        layout, pages = self._layouts[module], self._pages[module]
        write(pages, layout, step.slots, key, value)
        return attend(query, pages, layout, step.batch, scale, self._windows[module], sinks, softcap)
