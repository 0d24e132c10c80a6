"""Any causal language model of transformers, with a cache of transformers' own for each sequence."""

from typing import Any

import torch
from transformers import DynamicCache

from kt_core.engine.runners.facts import MAX_TOKENS, Facts
from kt_core.engine.step import Step

PAGE = 64  # tokens; the scheduler counts in pages all the same


class OwnCacheRunner:
    """Computes a step sequence by sequence: linear attention, and caches that no page can hold.

    Nothing is shared between sequences, since a recurrent state cannot be cut back to a prefix.
    """

    page = PAGE
    page_bytes = 0
    shareable = False
    storage: tuple[torch.Tensor, ...] = ()
    max_tokens = MAX_TOKENS

    def __init__(self, model: Any, max_context: int | None = None) -> None:
        self._facts = Facts(model, max_context)
        self.max_context = self._facts.max_context
        self.vocab = self._facts.vocab
        self.eos_ids = self._facts.eos_ids
        self._caches: dict[int, _Own] = {}

    def allocate(self, pages: int) -> None:
        """Nothing: caches grow with their sequences."""

    def forward(self, step: Step) -> torch.Tensor:
        starts = step.batch.starts.tolist()
        wanted = set(step.outputs.tolist())
        rows = []
        for number, begin, end in zip(step.sequences, starts[:-1], starts[1:], strict=True):
            logits = self._advance(number, int(step.positions[begin]), step.tokens[begin:end])
            rows += [logits] if end - 1 in wanted else []
        return torch.stack(rows) if rows else torch.empty(0, self.vocab)

    def release(self, sequence: int) -> None:
        self._caches.pop(sequence, None)

    def _advance(self, number: int, position: int, tokens: torch.Tensor) -> torch.Tensor:
        """The last token's logits [vocab]. A step that is taken again, since another sequence failed in it, changes nothing."""
        own = self._caches.setdefault(number, _Own(DynamicCache(config=self._facts.model.config)))
        if own.length == position:
            own.logits = self._facts.logits(tokens, torch.tensor([len(tokens) - 1]), own.cache)[0]
            own.length += len(tokens)
        assert own.logits is not None and own.length == position + len(tokens)
        return own.logits


class _Own:
    def __init__(self, cache: DynamicCache) -> None:
        self.cache = cache
        self.length = 0
        self.logits: torch.Tensor | None = None
