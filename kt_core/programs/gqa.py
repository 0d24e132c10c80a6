"""Attention whose queries share keys and values in groups, with norms of both, sinks, windows and biases."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from kt_core.kernels.attention import PageLayout
from kt_core.kernels.program import Norm, Rows, Source
from kt_core.programs import norm
from kt_core.programs.code import Choices, Code
from kt_core.programs.rotary import Rotary
from kt_core.programs.unfit import Unfit, kernel_of, only

NEEDED = {"q_proj", "k_proj", "v_proj", "o_proj"}


class Gqa:
    """llama, qwen, mixtral, glm4_moe, gpt-oss and what is built like them."""

    def __init__(self, module: nn.Module, rotary: Rotary, config: Any) -> None:
        only(module, NEEDED | {"q_norm", "k_norm", "sinks"})
        self.q, self.k, self.v, self.o = (kernel_of(module, f"{name}_proj") for name in "qkvo")
        self.module: Any = module
        self.config = config
        self.rotary = rotary
        self.norms = {name: norm.read(part) for name, part in module.named_children() if name.endswith("_norm")}
        head = getattr(module, "head_dim", None)
        if not isinstance(head, int) or not isinstance(getattr(module, "scaling", None), float):
            raise Unfit("programs.missing", cls=type(module).__name__, part="head_dim, scaling")
        self.head = head
        self.kv_heads = self.k.out_features // head

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Whether the module is one of these, by its parts."""
        return set(module._modules) >= NEEDED

    def exactly(self) -> AbstractContextManager[None]:
        """Nothing to do: it rounds what the module rounds."""
        return nullcontext()

    @property
    def window(self) -> int | None:
        """Keys that a query sees where the layer has a window: read anew, since the check makes it small."""
        found: int | None = getattr(self.module, "sliding_window", None) or getattr(self.config, "sliding_window", None)
        return found

    def emit(self, code: Code, x: Rows, before: Norm, choices: Choices, last: bool) -> None:
        """x += attention(norm(x)); `last`: of the step's outputs alone."""
        program = code.program
        q, k, v = (
            code.rows(f"attention.{n}", w.out_features) for n, w in zip("qkv", (self.q, self.k, self.v), strict=True)
        )
        program.linear(Source(x, norm=before), [(self.q, q, False), (self.k, k, False), (self.v, v, False)])
        table = code.table(self.rotary)
        for name, rows in (("q_norm", q), ("k_norm", k)):
            if name in self.norms:  # of each head, or of all heads together
                program.norm(rows, rows.width // self.norms[name].weight.numel(), self.norms[name])
            program.rotate(rows, rows.width // self.head, table, choices.interleaved)
        value_size = self.v.out_features // self.kv_heads
        layer = program.layer(PageLayout(self.kv_heads, self.head, value_size, code.page, code.dtype))
        program.write(layer, k, v)
        out = code.rows("attention.out", self.o.in_features)
        sinks = getattr(self.module, "sinks", None)
        window = self.window if choices.windowed else None
        program.attend(layer, q, out, self.module.scaling, window, sinks)
        if last:
            program.gather([x, out])
        program.linear(Source(out), [(self.o, x, True)])
