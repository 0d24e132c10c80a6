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


CACHE_NAMES = ("cache", "past_key_values")  # transformers renamed the argument


class TransformersRunner:
    """Runs any causal language model of transformers, on the device that its parameters are on."""

    def __init__(self, model: Any, max_context: int | None = None) -> None:
        text = model.config.get_text_config()
        self.max_context: int = max_context or text.max_position_embeddings
        self.vocab: int = getattr(model.get_output_embeddings(), "out_features", text.vocab_size)
        self.eos_ids = _eos_ids(model, text)
        self._model = model
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))  # an injected one has none
        named = inspect.signature(model.forward).parameters
        self._cache_name = next((name for name in CACHE_NAMES if name in named), CACHE_NAMES[-1])
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
