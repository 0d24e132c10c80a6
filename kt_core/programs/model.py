"""From a transformers model with kt's operators in place to its program."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from kt_core import kernels
from kt_core.kernels.program import Norm, Rows, Source
from kt_core.operators.embedding import Embedding
from kt_core.operators.experts import Experts
from kt_core.operators.linear import Linear
from kt_core.programs import norm
from kt_core.programs.code import Choices, Code
from kt_core.programs.decoder import Layer
from kt_core.programs.latent import Latent
from kt_core.programs.rotary import Rotary
from kt_core.programs.unfit import Unfit, kernel_of, only

LAYER_TYPES = {"full_attention", "sliding_attention"}  # masks that transformers makes and the kernels know
INNER = {"embed_tokens", "layers", "norm", "rotary_emb"}


@dataclass
class Program:
    """A whole model, read and not yet written down: how many tokens and which pages is the runner's to say."""

    embedding: Embedding
    layers: list[Layer]
    choices: list[Choices]  # of the layers
    norm: Norm
    head: kernels.Linear
    rotary: Rotary
    eos_ids: frozenset[int] = frozenset()  # tokens that end an answer
    parts: dict[str, Any] = field(
        default_factory=dict
    )  # what modules that an adapter may change are in it, by their paths

    @property
    def vocab(self) -> int:
        """Length of the logits."""
        return self.head.out_features

    def code(self, max_tokens: int, max_context: int, dtype: torch.dtype, page: int) -> Code:
        """The operations, for steps of at most max_tokens and pages of `page` keys in dtype, float32 or bfloat16.

        Raises Unfit when the rotary embedding differs at that length.
        """
        code = Code(max_tokens, max_context, dtype, page)
        x = self.begin(code)
        for index, (layer, choices) in enumerate(zip(self.layers, self.choices, strict=True)):
            layer.emit(code, x, choices, last=index == len(self.layers) - 1)
        if not self.layers:
            code.program.gather([x])
        code.program.linear(Source(x, norm=self.norm), [(self.head, None, False)])
        return code

    def begin(self, code: Code) -> Rows:
        """The embedded tokens."""
        matrix = self.embedding.matrix
        x = code.rows("x", matrix.cols)
        code.program.embed(matrix.format, matrix.data, matrix.cols, x)
        return x


def read(model: Any, config: Any) -> Program:
    """What the model's parts are; the choices are still open. Raises Unfit."""
    inner = model.base_model
    only(model, {model.base_model_prefix, "lm_head"})
    only(inner, INNER)
    for part in INNER:
        if part not in inner._modules:
            raise Unfit("programs.missing", cls=type(inner).__name__, part=part)
    if not isinstance(inner.embed_tokens, Embedding):
        raise Unfit("programs.not_ours", part="embed_tokens", cls=type(inner.embed_tokens).__name__)
    kinds = set(getattr(config, "layer_types", None) or ())
    if others := kinds - LAYER_TYPES or {"attention_chunk_size"} & {
        k for k, v in vars(config).items() if v is not None
    }:
        raise Unfit("programs.layers", cls=type(inner).__name__, kinds=", ".join(sorted(others)))
    rotary = Rotary(inner.rotary_emb)
    modules: list[nn.Module] = list(inner.layers)[: config.num_hidden_layers]
    layers = [Layer(module, rotary, config) for module in modules]
    head = kernel_of(model, "lm_head")
    choices = [Choices()] * len(layers)
    parts = _parts(model, layers)
    return Program(inner.embed_tokens, layers, choices, norm.read(inner.norm), head, rotary, _eos_ids(model), parts)


def _parts(model: Any, layers: list[Layer]) -> dict[str, Any]:
    """Linear layers but the head, experts, and latent attention in place of the projection that it absorbs."""
    absorbed = {
        id(layer.attention.projection): layer.attention for layer in layers if isinstance(layer.attention, Latent)
    }
    return {
        path: absorbed.get(id(module), module.kernel)
        for path, module in model.named_modules()
        if isinstance(module, Linear | Experts) and path != "lm_head"
    }


def _eos_ids(model: Any) -> frozenset[int]:
    for source in (getattr(model, "generation_config", None), model.config):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()
