"""A model whose program would compute something else is found out, whatever its classes are called."""

import logging
from pathlib import Path

import pytest
import torch
from families import save
from references import save_tiny
from torch import nn

from kt_core import programs
from kt_core.engine.loader import build
from kt_core.inject import default_rules
from kt_core.models import resolve
from kt_core.programs import Unfit
from kt_core.weights import open_weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    save_tiny("qwen3_moe", path, torch.bfloat16)
    return path


@pytest.fixture
def model(folder):
    return build(open_weights(resolve(str(folder))), lambda *_: None)


def test_the_model_as_it_is_fits(model):
    program = programs.build(model)
    assert len(program.layers) == 3 and len({type(layer.feed_forward) for layer in program.layers}) == 2


def altered(model, path, change):
    """The class of the module at `path` gets a subclass of the same name with `change`d parts."""
    module = model.get_submodule(path)
    module.__class__ = type(type(module).__name__, (type(module),), change(type(module)))


@pytest.mark.parametrize("path", ["model.layers.1.input_layernorm", "model.layers.0.self_attn.k_norm", "model.norm"])
def test_another_epsilon(model, path):
    def change(cls):
        def forward(self, x):
            return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 30 * self.variance_epsilon)

        return {"forward": forward}

    altered(model, path, change)
    with pytest.raises(Unfit, match="is no RMSNorm"):
        programs.build(model)


def norms_swapped(cls):
    def forward(self, hidden, **kwargs):
        self.input_layernorm, self.post_attention_layernorm = self.post_attention_layernorm, self.input_layernorm
        try:
            return cls.forward(self, hidden, **kwargs)
        finally:
            self.input_layernorm, self.post_attention_layernorm = self.post_attention_layernorm, self.input_layernorm

    return {"forward": forward}


def norm_behind(cls):
    def forward(self, hidden, **kwargs):
        out, _ = self.self_attn(hidden_states=hidden, **kwargs)
        hidden = hidden + self.input_layernorm(out)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))

    return {"forward": forward}


def residual_scaled(cls):
    return {"forward": lambda self, hidden, **kwargs: hidden + 1.01 * (cls.forward(self, hidden, **kwargs) - hidden)}


@pytest.mark.parametrize("change", [norms_swapped, norm_behind, residual_scaled])
@pytest.mark.parametrize("layer", [0, 1])
def test_another_layer(model, change, layer):
    for part in ("input_layernorm", "post_attention_layernorm"):  # a trained model's two differ
        weight = model.get_submodule(f"model.layers.{layer}.{part}").weight
        weight.data = weight + 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(part)))
    altered(model, f"model.layers.{layer}", change)
    with pytest.raises(Unfit, match=f"layer {layer} as a program differs"):
        programs.build(model)


def attention_without_scale(cls):
    def forward(self, *args, **kwargs):
        before, self.scaling = self.scaling, 1.1 * self.scaling
        try:
            return cls.forward(self, *args, **kwargs)
        finally:
            self.scaling = before

    return {"forward": forward}


def scaled_by_position(cls):
    """As some families do from the length on that they were trained for."""

    def forward(self, hidden_states, position_embeddings, *args, **kwargs):
        far = kwargs["position_ids"][0] >= 8192
        before, self.scaling = self.scaling, self.scaling * (1 + 0.2 * float(far.all()))
        try:
            return cls.forward(self, hidden_states, position_embeddings, *args, **kwargs)
        finally:
            self.scaling = before

    return {"forward": forward}


def values_normed(cls):
    def forward(self, *args, **kwargs):
        out, weights = cls.forward(self, *args, **kwargs)
        return out * 0.98, weights

    return {"forward": forward}


@pytest.mark.parametrize("change", [attention_without_scale, scaled_by_position, values_normed])
def test_another_attention(model, change):
    altered(model, "model.layers.2.self_attn", change)
    with pytest.raises(Unfit, match="layer 2 as a program differs"):
        programs.build(model)


def test_another_choice_of_experts(model):
    def change(cls):
        def forward(self, x):
            logits, weights, ids = cls.forward(self, x)
            return logits, weights.sqrt(), ids

        return {"forward": forward}

    altered(model, "model.layers.1.mlp.gate", change)
    with pytest.raises(Unfit, match="chooses experts in a way"):
        programs.build(model)


def test_scaled_embeddings(model):
    altered(model, "model.embed_tokens", lambda cls: {"forward": lambda self, ids: 8 * cls.forward(self, ids)})
    with pytest.raises(Unfit, match="embedding and head differ"):
        programs.build(model)


def test_scaled_logits(model):
    altered(model, "", lambda cls: {"forward": scaled_logits(cls)})
    with pytest.raises(Unfit, match="embedding and head differ"):
        programs.build(model)


def scaled_logits(cls):
    def forward(self, *args, **kwargs):
        output = cls.forward(self, *args, **kwargs)
        output.logits = output.logits / 2
        return output

    return forward


def test_a_part_that_nobody_knows(model):
    model.model.layers[1].self_attn.indexer = nn.Linear(4, 4)
    with pytest.raises(Unfit, match=r"has parts that no program knows \(indexer; known: "):
        programs.build(model)


def test_a_part_that_transformers_computes(folder, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "- match: {name: '\\.experts$'}\n  replace: {class: default}\n" + Path(default_rules()).read_text()
    )
    model = build(open_weights(resolve(str(folder))), lambda *_: None, rules)
    with pytest.raises(Unfit, match="experts is computed by Qwen3MoeExperts"):
        programs.build(model)


def test_a_module_that_fails(model):
    def change(cls):
        return {"forward": lambda self, hidden, **kwargs: cls.forward(self, hidden[..., 1:], **kwargs)}

    altered(model, "model.layers.1", change)
    with pytest.raises(Unfit, match="could not be read as a program"):
        programs.build(model)


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("afmoe", "no program knows"),
        ("exaone_moe", None),
        ("gemma3_text", "embed_tokens is computed by"),
        ("gpt2", "no program knows"),
        ("granitemoe", "no program knows"),
        ("jamba", "no program knows"),
        ("llama4_text", "no program knows"),
        ("minimax_m2", None),
        ("olmo", "is no RMSNorm"),
        ("qwen3_next", "no program knows"),
    ],
)
def test_families(family, reason, tmp_path, caplog):
    """Those that fit without being meant to are right as well: the check compares them."""
    caplog.set_level(logging.CRITICAL)
    save(family, tmp_path, torch.float32)
    model = build(open_weights(resolve(str(tmp_path))), lambda *_: None)
    if reason is None:
        programs.build(model)
        return
    with pytest.raises(Unfit, match=reason):
        programs.build(model)
