"""Models whose modules are on a device, and whose routed experts are shared out between it and the CPU."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from kt_core.device.pages import FP8, Attending, Form, Pages, last_keys, prompt
from kt_core.engine.runners.adapted import stretches
from kt_core.engine.runners.graphs import Graphs, Placed
from kt_core.engine.runners.interface import PAGED, attending
from kt_core.engine.runners.latent import Latent, kept_latent
from kt_core.engine.runners.paged import PAGE, Attention, PagedRunner, shown
from kt_core.engine.runners.rotation import as_kernels, rotations
from kt_core.engine.step import Step
from kt_core.errors import DoesNotFit
from kt_core.events import one_line
from kt_core.operators.crossing import Crossing
from kt_core.operators.moving import Moves

log = logging.getLogger(__name__)

NO_IMAGES: Mapping[str, Any] = MappingProxyType({})


def seen(step: Step) -> tuple[Step, dict[str, Any]]:
    """The step, and what its forward takes for images. Where they only move what comes behind them, its positions say so."""
    more = shown(step)
    turns = more.get("position_ids")  # [3, 1, T]: time, height, width
    if turns is not None and (turns == turns[:1]).all():
        step, _ = replace(step, positions=turns[0, 0]), more.pop("position_ids")
    return step, more


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
        # what the CPU's pages would be is of no matter
        super().__init__(model, max_context, torch.bfloat16 if dtype == FP8 else dtype, layers)
        self.max_tokens = chunk
        self._device = crossing.device
        self._last = model.get_output_embeddings().weight.device  # several devices, in the order of layers
        self._latent = {module: Latent(module) for module in layers if Latent.fits(module)}
        self._forms = {
            module: Form(kind.heads, kind.key_size, kind.value_size, PAGE, dtype) for module, kind in layers.items()
        } | {module: latent.form(PAGE, dtype) for module, latent in self._latent.items()}
        self.page_bytes = sum(form.page_bytes for form in self._forms.values())
        self._rotations = rotations(list(layers), self._device.torch)
        self._there: dict[nn.Module, Pages] = {}
        self._now: Placed | None = None
        self.crossing = crossing
        self.moves: list[Moves] = []  # experts that change places between steps, of each device
        if self._last != self._facts.device:
            log.info("steps are not captured as graphs: layers lie on several devices")
            captured = ()
        self._graphs = Graphs(crossing, captured, self._computed)

    @property
    def storage(self) -> list[torch.Tensor]:
        """Keys and values apart, on their device."""
        return [part for pages in self._there.values() for part in pages.storage]

    def allocate(self, pages: int) -> None:
        self._graphs.forget()  # they know where the pages were
        self._there = {}  # not both at once
        self._there = {
            module: Pages(form, pages, next(module.parameters()).device) for module, form in self._forms.items()
        }

    def forward(self, step: Step) -> torch.Tensor:
        """Raises DoesNotFit when the device's memory does not suffice for the step."""
        try:
            with self._device.use(), torch.inference_mode():
                found = [moves.turn() for moves in self.moves]
                if found:
                    self.moved = {name: sum(one[name] for one in found) for name in found[0]}
                step, images = seen(step)
                # A graph is of the model's own weights, and of tokens alone.
                graph = not images and max(step.adapters, default=-1) < 0 and self._graphs.takes(step)
                return self._graphs.forward(step) if graph else self._whole(step, images, partial(self.attend, step))
        except torch.OutOfMemoryError as e:
            raise DoesNotFit("device.full", device=self._device.name, reason=one_line(e)) from e

    def computed(self, step: Step, attention: Callable[..., torch.Tensor]) -> torch.Tensor:
        return self._whole(*seen(step), attention)

    def _whole(self, step: Step, images: Mapping[str, Any], attention: Callable[..., torch.Tensor]) -> torch.Tensor:
        """Of a step that `seen` has looked at."""
        with self._facts.adapted.taking(stretches(step)):
            return self._computed(Placed.of(step, self._device.torch), attention, images).cpu()

    def _computed(
        self,
        step: Placed,
        attention: Callable[..., torch.Tensor] | None = None,
        images: Mapping[str, Any] = NO_IMAGES,
    ) -> torch.Tensor:
        """float32 [R, vocab] on the device, with `attention` for each layer's, by default over the pages."""
        self._now, outputs = step, step.on(self._last).outputs
        more = {"position_ids": step.positions[None], **images}
        more["position_ids"] = more["position_ids"].to(step.tokens.device)
        own = attention or partial(self.attend, None)
        latent, turns = kept_latent(list(self._latent)), as_kernels(self._rotations)
        with attending(self._facts.configs, PAGED, own), latent, turns:
            return self._facts.there(step.tokens, outputs, **more)

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
        pages = self._there[module]
        assert self._now is not None
        now = self._now.on(query.device)
        pages.write(now.slots, key, value)
        how = Attending(scale, self._windows[module], sinks, softcap)
        latent = self._latent.get(module)
        if now.parts is None:
            single = latent.last_keys if latent else last_keys
            return single(query, pages, now.sequences, how)
        several, found = latent.prompt if latent else prompt, []
        for (begin, end, length), table in zip(now.parts, now.tables, strict=True):
            keys, values = (rows[:length] for rows in pages.rows(table[: -(-length // PAGE)]))
            found.append(several(query[begin:end], keys, values, how))
        return torch.cat(found)
