"""Models whose modules are on a device, and whose routed experts are shared out between it and the CPU."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from kt_core.device.pages import Attending, Form, Pages, last_keys, prompt, seen_of
from kt_core.engine.runners.graphs import Graphs, Placed
from kt_core.engine.runners.interface import PAGED, attending
from kt_core.engine.runners.latent import Latent, kept_latent
from kt_core.engine.runners.paged import PAGE, Attention, PagedRunner
from kt_core.engine.step import Step
from kt_core.errors import DoesNotFit
from kt_core.events import one_line
from kt_core.operators.crossing import Crossing


class HybridRunner(PagedRunner):
    """Computes a step in one forward on a device, with keys and values in pages there. Steps of one token of each sequence
    are replayed as graphs where the device can, for the numbers of sequences in `captured`.
    """

    def __init__(
        self,
        model: Any,
        max_context: int | None,
        dtype: torch.dtype,
        layers: Mapping[nn.Module, Attention],
        crossing: Crossing,
        chunk: int,
        captured: tuple[int, ...],
    ) -> None:
        super().__init__(model, max_context, dtype, layers)
        self.max_tokens = chunk
        self._device = crossing.device
        self._latent = {module: Latent(module) for module in layers if Latent.fits(module)}
        self._forms = {
            module: Form(kind.heads, kind.key_size, kind.value_size, PAGE, dtype) for module, kind in layers.items()
        } | {module: latent.form(PAGE, dtype) for module, latent in self._latent.items()}
        self.page_bytes = sum(form.page_bytes for form in self._forms.values())
        self._there: dict[nn.Module, Pages] = {}
        self._now: Placed | None = None
        self.crossing = crossing
        self._graphs = Graphs(crossing, captured, self._computed)

    @property
    def storage(self) -> list[torch.Tensor]:
        """None that the disk could write: they are on the device."""
        return []

    def allocate(self, pages: int) -> None:
        self._graphs.forget()  # they know where the pages were
        self._there = {module: Pages(form, pages, self._device.torch) for module, form in self._forms.items()}

    def forward(self, step: Step) -> torch.Tensor:
        """Raises DoesNotFit when the device's memory does not suffice for the step."""
        try:
            with self._device.use(), torch.inference_mode():
                return self._graphs.forward(step) if self._graphs.takes(step) else super().forward(step)
        except torch.OutOfMemoryError as e:
            raise DoesNotFit("device.full", device=self._device.name, reason=one_line(e)) from e

    def computed(self, step: Step, attention: Callable[..., torch.Tensor]) -> torch.Tensor:
        return self._computed(Placed.of(step, self._device.torch), attention).cpu()

    def _computed(self, step: Placed, attention: Callable[..., torch.Tensor] | None = None) -> torch.Tensor:
        """float32 [R, vocab] on the device, with `attention` for each layer's, by default over the pages."""
        self._now = step
        own = attention or partial(self.attend, None)
        with attending(self._facts.configs, PAGED, own), kept_latent(list(self._latent)):
            return self._facts.there(step.tokens, step.outputs, position_ids=step.positions[None])

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
        now, pages = self._now, self._there[module]
        assert now is not None
        pages.write(now.slots, key, value)
        how = Attending(scale, self._windows[module], sinks, softcap)
        latent = self._latent.get(module)
        if now.parts is None:
            if how.window not in now.seen:  # once for all layers of a kind
                now.seen[how.window] = seen_of(now.lengths, now.tables.shape[1] * PAGE, how.window)
            single = latent.last_keys if latent else last_keys
            return single(query, pages, now.tables, now.seen[how.window], how)
        several, found = latent.prompt if latent else prompt, []
        for (begin, end, length), table in zip(now.parts, now.tables, strict=True):
            keys, values = (rows[:length] for rows in pages.rows(table[: -(-length // PAGE)]))
            found.append(several(query[begin:end], keys, values, how))
        return torch.cat(found)
