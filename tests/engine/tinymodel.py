"""A tiny byte-level tokenizer, a tiny random mixture-of-experts model, and runners that do as they are told."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

from kt_core.engine.runners import runner_for
from kt_core.engine.step import Runner, Step

TEMPLATE = """{{ bos_token }}{% for m in messages -%}
{% if m.role == 'user' and not loop.first and loop.previtem.role == 'user' %}{{ raise_exception('roles must alternate') }}{% endif -%}
<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}[{{ c.function.name }}:{{ c.function.arguments.city }}]{% endfor %}{% endif %}<|end|>
{%- endfor %}{% if tools %}<|tools|>{{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and not enable_thinking %}<nothink>{% endif %}{% endif %}"""

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "hello world, the world is round",
    "stop and go, stop and think",
]


@cache
def tokenizer() -> Any:
    """Byte-level BPE with a few merges: ids 0..3 are specials, every byte has a token."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    specials = ["<|bos|>", "<|end|>", "<|user|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=specials, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    core.train_from_iterator(CORPUS * 20, trainer)
    core.add_special_tokens([AddedToken(s, special=True) for s in specials])
    core.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<|bos|>", eos_token="<|end|>")
    fast.chat_template = TEMPLATE
    return fast


@cache
def model() -> Any:
    torch.manual_seed(7)
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer()),
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=6,
        num_experts_per_tok=2,
        max_position_embeddings=1024,
        initializer_range=0.4,
        eos_token_id=1,
        bos_token_id=0,
    )
    return Qwen3MoeForCausalLM(config).eval()


def runner(max_context: int | None = None, chunk: int | None = None) -> Runner:
    """Pages of float32, so that answers are those of transformers' own generation."""
    return runner_for(model(), max_context, torch.float32, chunk)


def byte_tokens(text: str) -> list[int]:
    """One token per byte, whatever the merges would do."""
    table = {c: i for c, i in tokenizer().get_vocab().items() if len(c) == 1}
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return [table[letter] for word, _ in words for letter in word]


class Scripted:
    """A runner whose greedy answer is `script`, then the end token; counts its steps.

    `before` is called with the number of each forward, before it; what it raises, forward raises.
    `shape` may change the logits of a step.
    """

    page = 16
    page_bytes = 0
    experts: ClassVar = {}
    moved: ClassVar = {"experts": 0, "bytes": 0, "hits": 0}
    shareable = False
    max_tokens = 512

    def __init__(
        self,
        script: Sequence[int],
        delay: float = 0.0,
        before: Callable[[int], None] | None = None,
        shape: Callable[[int, torch.Tensor], torch.Tensor] | None = None,
        max_context: int = 4096,
        loop: bool = False,
    ) -> None:
        self.script = list(script)
        self.max_context = max_context
        self.vocab = len(tokenizer())
        self.eos_ids = frozenset({1})
        self.steps = 0
        self.fed: list[int] = []
        self.started = threading.Event()
        self._delay = delay
        self._before = before
        self._shape = shape
        self._loop = loop
        self._answered: dict[int, int] = {}  # sequence -> tokens of its answer that it was fed

    def allocate(self, pages: int) -> None:
        pass

    def release(self, sequence: int) -> None:
        self._answered.pop(sequence, None)

    def resume(self, sequence: int, tokens: Sequence[int]) -> tuple[int, str]:
        return 0, "off"

    def forget(self) -> int:
        return 0

    def forward(self, step: Step) -> torch.Tensor:
        self.steps += 1
        self.fed.append(len(step.tokens))
        self.started.set()
        if self._before:
            self._before(self.steps)
        time.sleep(self._delay)
        starts = step.batch.starts.tolist()
        rows = []
        for number, begin, end in zip(step.sequences, starts[:-1], starts[1:], strict=True):
            # The position in the script follows the fed answer tokens, so every request starts at its beginning.
            answered = int(number in self._answered and end - begin == 1)
            self._answered[number] = at = self._answered.get(number, 0) + answered
            logits = torch.full((self.vocab,), -15.0)  # 20 below: sampled, one token in 10^6 parts
            at = at % len(self.script) if self._loop else at
            logits[self.script[at] if at < len(self.script) else 1] = 5.0
            if end - 1 in step.outputs:
                rows.append(self._shape(self.steps, logits) if self._shape else logits)
        return torch.stack(rows) if rows else torch.empty(0, self.vocab)
