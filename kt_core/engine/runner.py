"""What runs a model one step at a time."""

import inspect
from typing import Any, Protocol

import torch
from transformers import DynamicCache


class Runner(Protocol):
    """A model with a cache per sequence."""

    max_context: int  # tokens of prompt and answer together
    vocab: int  # length of the logits
    eos_ids: frozenset[int]  # tokens that end an answer

    def new_cache(self) -> object:
        """An empty cache for one sequence."""
        ...

    def forward(self, ids: list[int], cache: Any) -> torch.Tensor:
        """Append `ids` (at least one) to the sequence in `cache`; returns the last token's logits, float32 [vocab]."""
        ...


class TransformersRunner:
    """Runs any causal language model of transformers, on the device that its parameters are on."""

    def __init__(self, model: Any, max_context: int | None = None) -> None:
        text = model.config.get_text_config()
        self.max_context: int = max_context or text.max_position_embeddings
        head = getattr(model.get_output_embeddings(), "weight", None)
        self.vocab: int = text.vocab_size if head is None else head.shape[0]
        self.eos_ids = _eos_ids(model, text)
        self._model = model
        self._device = model.device
        # transformers renamed the argument; the old name works in newer releases only with a warning.
        named = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in named else "past_key_values"
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in named else {}

    def new_cache(self) -> DynamicCache:
        return DynamicCache(config=self._model.config)

    def forward(self, ids: list[int], cache: Any) -> torch.Tensor:
        tokens = torch.tensor([ids], dtype=torch.int64, device=self._device)
        with torch.inference_mode():
            output = self._model(input_ids=tokens, use_cache=True, **{self._cache_name: cache}, **self._last_only)
            logits: torch.Tensor = output.logits[0, -1].float().cpu()
        return logits


def _eos_ids(model: Any, text_config: Any) -> frozenset[int]:
    generation = getattr(model, "generation_config", None)
    for source in (generation, text_config, model.config):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()
