"""What the runners need to know of a transformers model."""

import inspect
from typing import Any

import torch

from kt_core.engine.runners.adapted import Adapted

CACHE_NAMES = ("cache", "past_key_values")  # transformers renamed the argument
MAX_TOKENS = 512  # of a step, and so the longest that a cancelled request still runs


class Unfit(Exception):
    """A runner cannot run this model; the text says why."""


class Facts:
    """Sizes, end tokens, the configurations of its modules, and how the model's forward is called."""

    def __init__(self, model: Any, max_context: int | None) -> None:
        text = model.config.get_text_config()
        self.model = model
        self.adapted = Adapted(model)
        self.configs = list({id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values())
        self.max_context: int = max_context or text.max_position_embeddings
        self.vocab: int = getattr(model.get_output_embeddings(), "out_features", text.vocab_size)
        self.eos_ids = _eos_ids(model, text)
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))  # an injected one has none
        named = inspect.signature(model.forward).parameters
        self._cache_name = next((name for name in CACHE_NAMES if name in named), CACHE_NAMES[-1])
        self._keeps = "logits_to_keep" in named

    def logits(self, tokens: torch.Tensor, rows: torch.Tensor, cache: Any = None, **more: Any) -> torch.Tensor:
        """float32 [R, vocab] of `rows` [R] for one sequence of tokens [T], appended to `cache`, which None leaves out."""
        return self.there(tokens.to(self.device), rows.to(self.device), cache, **more).cpu()

    def there(self, tokens: torch.Tensor, rows: torch.Tensor, cache: Any = None, **more: Any) -> torch.Tensor:
        """The same with everything on the model's device, and nothing asked of it meanwhile."""
        arguments = {**more, "use_cache": cache is not None, self._cache_name: cache}
        if self._keeps:  # the head of a single row where none is wanted: it must have some
            arguments["logits_to_keep"] = rows if len(rows) else rows.new_zeros(1)
        with torch.inference_mode():
            logits = self.model(input_ids=tokens[None], **arguments).logits[0]
        return logits[: len(rows)].float() if self._keeps else logits[rows].float()


def _eos_ids(model: Any, text_config: Any) -> frozenset[int]:
    generation = getattr(model, "generation_config", None)
    for source in (generation, text_config, model.config):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()
