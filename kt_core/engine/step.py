"""The seam between the scheduler and what computes: one step over the new tokens of several sequences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import torch

from kt_core.kernels.attention import Batch
from kt_core.lora import Adapter

if TYPE_CHECKING:
    from kt_core.engine.vision import Seen


class Counted(Protocol):
    """A layer's routed experts."""

    @property
    def asked(self) -> list[int]:
        """How often each was asked for a token since the start. From any thread."""
        ...

    @property
    def elsewhere(self) -> torch.Tensor | None:
        """Those that are computed elsewhere than on the CPU: bool or uint8 [experts]; None: none."""
        ...


NO_EXPERTS: Mapping[int, Counted] = MappingProxyType({})
# Where experts change places: how many came to a device, their bytes, and asks of experts that were there
NOTHING_MOVED: Mapping[str, int] = MappingProxyType({"experts": 0, "bytes": 0, "hits": 0})


@dataclass(frozen=True)
class Step:
    """The new tokens of B sequences, one sequence after the other, T in all.

    `batch` says which tokens and which pages belong to each sequence; one page table serves all layers. Token t
    belongs at index `positions[t]` of its sequence, and its keys and values go to `slots[t]`, which is
    page * keys of a page + place in it. `outputs` are the rows of `tokens` whose logits are wanted.
    """

    tokens: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int64 [T]
    slots: torch.Tensor  # int64 [T]
    batch: Batch
    outputs: torch.Tensor  # int64 [R], rising; R may be 0
    sequences: tuple[int, ...]  # [B], a number for each sequence that lives, for runners that keep state by it
    seen: tuple["Seen | None", ...] = ()  # [B], their images and videos; (): none has any
    adapters: tuple[int, ...] = ()  # [B], the number that `adapt` was told, or -1; (): none takes any


class Runner(Protocol):
    """A model that computes steps."""

    max_context: int  # tokens of prompt and answer together
    max_tokens: int  # T of a step at most
    vocab: int  # length of the logits
    eos_ids: frozenset[int]  # tokens that end an answer
    page: int  # keys of a page
    page_bytes: int  # bytes of a page in all layers together; 0: the runner keeps its own caches and reads no pages
    experts: Mapping[int, Counted]  # the routed experts that kt computes, by the number of their layer
    moved: Mapping[str, int]  # as NOTHING_MOVED, since the start
    shareable: bool  # whether full pages may serve another sequence that begins with the same tokens

    @property
    def storage(self) -> Sequence[torch.Tensor]:
        """Each layer's pages, uint8 [pages, bytes], once they are allocated; none for a runner without."""
        ...

    def allocate(self, pages: int) -> None:
        """Memory for pages 0 .. pages - 1 in every layer; called once, before the first step."""
        ...

    def forward(self, step: Step) -> torch.Tensor:
        """Writes the step's keys and values into its slots; returns float32 [R, vocab]. A runner that is not shareable need
        only give rows of its sequences' last tokens."""
        ...

    def release(self, sequence: int) -> None:
        """The sequence will not come again: what is kept for it beside pages can go."""
        ...

    def adapt(self, number: int, adapter: Adapter) -> None:
        """Sequences may take this adapter from the next step on. From any thread.

        Raises BadData for an adapter of another model, Unsupported for one that is not served here.
        """
        ...

    def forget_adapter(self, number: int) -> None:
        """No sequence takes it any more. From any thread."""
        ...


class Stateful(Runner, Protocol):
    """A runner whose pages cannot be shared, and which may keep states of its own."""

    def resume(self, sequence: int, tokens: Sequence[int]) -> tuple[int, str]:
        """Before a sequence with these tokens is computed for the first time: how many of them, all but one at most,
        need not be, because a state is kept that follows them; and why no more, a key of pages.MISSES or ""."""
        ...

    def forget(self) -> int:
        """Drop all states that are kept for others; returns how many there were."""
        ...
