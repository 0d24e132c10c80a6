"""Multi-head latent attention in its absorbed form: pages hold the latent and the rotary columns."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from kt_core import kernels
from kt_core.kernels.attention import LANES, HeadLinear, PageLayout
from kt_core.kernels.program import Norm, Rows, Source
from kt_core.operators.linear import Linear
from kt_core.programs import norm
from kt_core.programs.code import Choices, Code
from kt_core.programs.rotary import Rotary
from kt_core.programs.unfit import Unfit, float_matrix, kernel_of, only
from kt_core.weights import Matrix

NEEDED = {"kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"}
QUERIES = {"q_proj", "q_a_proj", "q_a_layernorm", "q_b_proj"}
SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


class Latent:
    """DeepSeek's V2 and V3, Kimi-K2 and what is built like them.

    q' = W_UK^T q_nope joins q_rope; scores run over latent and rotary columns, sums over the latent, and W_UV makes them
    values (docs/attention.md). W_UK is turned round, so it is decoded: to bfloat16, or float32 where it is stored so. W_UV
    stays as it is stored, but for formats with scales beside the data.
    """

    def __init__(self, module: nn.Module, rotary: Rotary, config: Any) -> None:
        only(module, NEEDED | QUERIES)
        held: Any = module
        if not all(isinstance(getattr(module, name, None), int) for name in SIZES):
            raise Unfit("programs.missing", cls=type(module).__name__, part=", ".join(SIZES))
        self.latent, self.nope, self.rope, self.value = (int(getattr(module, name)) for name in SIZES)
        if self.latent % LANES:
            raise Unfit("programs.latent", cls=type(module).__name__, columns=self.latent)
        self.rotary, self.scaling = rotary, float(held.scaling)
        self.kv_a, self.o = kernel_of(module, "kv_a_proj_with_mqa"), kernel_of(module, "o_proj")
        self.kv_norm = norm.read(held.kv_a_layernorm)
        kernel_of(module, "kv_b_proj")
        self.projection: Linear = held.kv_b_proj
        stored = self.projection.weights.matrix(f"{self.projection.key}.weight")
        self._absorb(self.projection.weight.to(torch.float32 if stored.format in ("F32", "F16") else torch.bfloat16))
        if stored.scales is None:
            self.up_values = HeadLinear.stored(self._value_rows(stored), self.heads)
        self.q_a: kernels.Linear | None = None
        if module._modules.get("q_a_proj") is not None:
            self.q_a, self.q_norm = kernel_of(module, "q_a_proj"), norm.read(held.q_a_layernorm)
            self.q = kernel_of(module, "q_b_proj")
        else:
            self.q = kernel_of(module, "q_proj")

    window = None

    def _absorb(self, weight: torch.Tensor) -> None:
        """W_UK, turned round, and W_UV of every head from kv_b_proj's [heads * (nope + value), latent]."""
        parts = weight.view(-1, self.nope + self.value, self.latent)
        self.heads = parts.shape[0]
        self.up_keys = HeadLinear(parts[:, : self.nope].transpose(1, 2).contiguous())
        self.up_values = HeadLinear(parts[:, self.nope :].contiguous())

    def _value_rows(self, stored: Matrix) -> Matrix:
        """W_UV's rows of kv_b_proj, head after head, as they are stored."""
        rows = stored.data.reshape(self.heads, self.nope + self.value, -1)[:, self.nope :]
        return Matrix(stored.format, self.heads * self.value, stored.cols, rows.reshape(self.heads * self.value, -1))

    def adapted(self, change: torch.Tensor) -> list[tuple[HeadLinear, HeadLinear]]:
        """Its maps of heads, each with the one that it is once `change` is added to kv_b_proj's weight. Raises RuntimeError
        for a change of another shape."""
        parts = (self.projection.weight + change).to(torch.bfloat16).view(-1, self.nope + self.value, self.latent)
        keys, values = parts[:, : self.nope].transpose(1, 2).contiguous(), parts[:, self.nope :].contiguous()
        return [(self.up_keys, HeadLinear(keys)), (self.up_values, HeadLinear(values))]

    @contextmanager
    def exactly(self) -> Iterator[None]:
        """The module rounds the latent where this rounds queries and sums; meanwhile neither rounds anything."""
        before = (self.projection.kernel, self.up_keys, self.up_values)
        weight = self.projection.weight
        self.projection.kernel = kernels.Linear(float_matrix(weight))
        self._absorb(weight)
        try:
            yield
        finally:
            self.projection.kernel, self.up_keys, self.up_values = before

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Whether the module is one of these, by its parts."""
        return set(module._modules) >= NEEDED

    def emit(self, code: Code, x: Rows, before: Norm, choices: Choices, last: bool) -> None:
        """x += attention(norm(x)); `last`: of the step's outputs alone."""
        program, table = code.program, code.table(self.rotary)
        head = self.nope + self.rope
        q = code.rows("latent.q", self.heads * head)
        key = code.rows("latent.key", self.latent + self.rope)
        if self.q_a is None:
            program.linear(Source(x, norm=before), [(self.q, q, False), (self.kv_a, key, False)])
        else:
            low = code.rows("latent.low", self.q_a.out_features)
            program.linear(Source(x, norm=before), [(self.q_a, low, False), (self.kv_a, key, False)])
            program.linear(Source(low, norm=self.q_norm), [(self.q, q, False)])
        program.norm(key.columns(0, self.latent), 1, self.kv_norm)
        program.rotate(key, 1, table, choices.interleaved, self.latent)
        program.rotate(q, self.heads, table, choices.interleaved, self.nope)
        absorbed = code.rows("latent.absorbed", self.heads * key.width)
        program.heads(self.up_keys, q, absorbed)
        program.copy(q, self.nope, absorbed, self.latent, self.heads, self.rope)
        layer = program.layer(PageLayout(1, key.width, self.latent, code.page, code.dtype, shared=True))
        program.write(layer, key, None)
        sums = code.rows("latent.sums", self.heads * self.latent)
        program.attend(layer, absorbed, sums, self.scaling)
        if last:
            program.gather([x, sums])
        out = code.rows("latent.out", self.heads * self.value)
        program.heads(self.up_values, sums, out)
        program.linear(Source(out), [(self.o, x, True)])
