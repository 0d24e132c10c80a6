"""A model that is loaded to be judged: logits of texts, outputs of layers, speed."""

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from kt_core import kernels
from kt_core.engine.loader import build
from kt_core.engine.runners import runner_for
from kt_core.engine.step import Step
from kt_core.engine.tokenizer import load_tokenizer
from kt_core.engine.trial import try_out
from kt_core.formats import gguf
from kt_core.kernels.attention import Batch
from kt_core.quality.job import Subject
from kt_core.types import Progress
from kt_core.weights import open_weights

ROWS = 256  # of logits at a time: 150 MB where a vocabulary has 150 thousand tokens
DECODED = 32  # tokens that the speed of decoding is measured with
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def tokenizer_of(subject: Subject) -> Any:
    """The subject's tokenizer, without its weights. Raises what reading it raises."""
    header = gguf.read_model(subject.files.path) if subject.files.format == "gguf" else None
    return load_tokenizer(subject.files, header)


def encoded(tokenizer: Any, text: str) -> list[int]:
    """The text's tokens, without any that the tokenizer would put around them."""
    found: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return found


class Model:
    """A subject's weights, tokenizer and runner for texts of at most `context` tokens."""

    def __init__(self, subject: Subject, context: int, progress: Progress) -> None:
        settings = subject.settings
        if settings["tier"]:
            os.environ.setdefault("KT_KERNEL_CPU_VARIANT", str(settings["tier"]))
        kernels.set_pools(settings["pools"])
        torch.set_num_threads(int(settings["threads"]))
        self.tokenizer = tokenizer_of(subject)
        self.module = build(open_weights(subject.files), progress)
        try_out(self.module)  # raises BadData for one that computes no numbers
        self.runner = runner_for(self.module, context, _DTYPES[settings["kv_dtype"]])
        self._pages = -(-context // self.runner.page)
        self.runner.allocate(self._pages)
        self._numbers = itertools.count()

    def log_probabilities(self, ids: Sequence[int]) -> Iterator[torch.Tensor]:
        """float32 [rows, vocab] of what follows each token of a text, some rows at a time."""
        number = next(self._numbers)
        for first in range(0, len(ids), self._at_once):
            piece = ids[first : first + self._at_once]
            yield self._forward(number, piece, first, list(range(len(piece)))).float().log_softmax(-1)
        self.runner.release(number)

    def speed(self, ids: Sequence[int]) -> tuple[float, float]:
        """Tokens a second of a prompt, and of decoding after it."""
        number = next(self._numbers)
        prompt = ids[: len(ids) - min(DECODED, len(ids) // 2)]
        begin = time.perf_counter()
        for first in range(0, len(prompt), self._at_once):
            self._forward(number, prompt[first : first + self._at_once], first, [])
        middle = time.perf_counter()
        for at in range(len(prompt), len(ids)):
            self._forward(number, ids[at : at + 1], at, [0])
        end = time.perf_counter()
        self.runner.release(number)
        return len(prompt) / (middle - begin), (len(ids) - len(prompt)) / (end - middle)

    @property
    def _at_once(self) -> int:
        return min(ROWS, self.runner.max_tokens)

    def _forward(self, number: int, ids: Sequence[int], first: int, wanted: list[int]) -> torch.Tensor:
        """A step of one sequence that has all pages to itself."""
        count = len(ids)
        batch = Batch(
            torch.arange(self._pages, dtype=torch.int32)[None],
            torch.tensor([first + count], dtype=torch.int32),
            torch.tensor([0, count], dtype=torch.int32),
        )
        places = torch.arange(first, first + count)
        outputs = torch.tensor(wanted, dtype=torch.int64)
        return self.runner.forward(Step(torch.tensor(ids), places, places, batch, outputs, (number,)))

    # ---- layers, module by module

    def layers(
        self, ids: Sequence[int], each: Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor | None]
    ) -> None:
        """Run a text through transformers' modules; `each(index, input, output)` sees every decoder layer.

        What `each` returns, if anything, is the next layer's input in place of this one's output.
        """
        layers = _decoder_layers(self.module)
        with torch.no_grad(), _watched(layers, each):
            self.module(input_ids=torch.tensor([list(ids)]), use_cache=False)


def _decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The decoder's layers: the first list of modules with that name."""
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and name.endswith("layers"):
            return list(module)
    return []


@contextmanager
def _watched(
    layers: list[nn.Module], each: Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor | None]
) -> Iterator[None]:
    def hook(index: int) -> Callable[..., Any]:
        def watch(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            hidden = args[0] if args else kwargs["hidden_states"]
            first = output[0] if isinstance(output, tuple) else output
            other = each(index, hidden, first)
            if other is None:
                return None
            return (other, *output[1:]) if isinstance(output, tuple) else other

        return watch

    handles = [layer.register_forward_hook(hook(i), with_kwargs=True) for i, layer in enumerate(layers)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
