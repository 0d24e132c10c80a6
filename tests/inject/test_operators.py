"""Operators refuse what they cannot compute, in words; a model that is not whole does not run."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from kt_core.engine.loader import build
from kt_core.errors import BadData, Unsupported
from kt_core.inject import default_rules
from kt_core.models import resolve
from kt_core.operators.embedding import Embedding
from kt_core.operators.experts import Experts
from kt_core.operators.linear import Linear
from kt_core.weights import Matrix, open_weights

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 64,
}


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_moe", **SMALL)).save_pretrained(tmp_path)
    return tmp_path


def load(folder):
    return build(open_weights(resolve(str(folder))), lambda *_: None)


def edit(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def test_whole_checkpoint_leaves_nothing_on_meta(folder):
    model = load(folder)
    assert not [n for n, p in (*model.named_parameters(), *model.named_buffers()) if p.is_meta]


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.mlp.experts.2.down_proj.weight"])
def test_missing_tensor_is_an_error(folder, name):
    edit(folder, lambda tensors: tensors.pop(name))
    with pytest.raises((BadData, Unsupported)):
        load(folder)


def test_unused_tensor_is_an_error(folder):
    edit(folder, lambda tensors: tensors.update({"model.layers.1.mlp.extra.weight": torch.ones(2)}))
    with pytest.raises(BadData, match=r"extra\.weight"):
        load(folder)


def test_layers_of_multi_token_prediction_are_skipped(folder):
    ids = torch.tensor([[5, 9, 33, 2]])
    with torch.no_grad():
        before = load(folder)(ids).logits
        edit(folder, lambda tensors: tensors.update({"model.layers.2.eh_proj.weight": torch.ones(2, 2)}))
        assert torch.equal(load(folder)(ids).logits, before)


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.self_attn.q_proj.weight"])
def test_wrong_shape_is_an_error(folder, name):
    edit(folder, lambda tensors: tensors.update({name: torch.ones(8, 32) if "q_proj" in name else torch.ones(7)}))
    with pytest.raises(BadData, match=name):
        load(folder)


def test_unknown_device():
    with pytest.raises(Unsupported, match="cuda:0"):
        Linear("lm_head", weights=None, config=None, orig_module=nn.Linear(2, 2), generate_device="cuda:0")


class OddExperts(nn.Module):
    has_gate, has_bias, is_transposed, is_concatenated = True, False, False, True

    def __init__(self, **flags):
        super().__init__()
        self.num_experts = 2
        self.down_proj = torch.empty(2, 32, 32)
        self.act_fn = nn.SiLU()
        self.__dict__.update(flags)

    def _apply_gate(self, gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        return self.act_fn(gate) * up


class ClampedLate(OddExperts):
    """As Step 3.7 does."""

    def _apply_gate(self, gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        return self.act_fn(gate).clamp(max=self.limit) * up.clamp(-self.limit, self.limit)


@pytest.mark.parametrize(
    ("original", "words"),
    [
        (OddExperts(has_post_expert_norm=True), "has_post_expert_norm"),
        (OddExperts(num_experts=3), "2 experts stored, 3 expected"),
        (OddExperts(act_fn=nn.ReLU()), "OddExperts: silu; known: silu, gelu_tanh, swiglu_oai, relu2"),
        (OddExperts(act_fn=nn.SiLU(), has_gate=False), "known: silu"),
        (ClampedLate(limit=2.0), "ClampedLate"),
        (nn.Linear(2, 2), "Linear: not in transformers' form of experts"),
    ],
)
def test_layouts_without_a_kernel_are_refused(original, words):
    weights = SimpleNamespace(experts=lambda key: 2)
    experts = Experts("m.experts", weights, SimpleNamespace(hidden_act="silu"), original)
    with pytest.raises(Unsupported, match=words):
        experts.load()


def test_embedding_decodes_only_the_rows_asked_for():
    table = np.random.default_rng(0).standard_normal((50, 32)).astype(np.float32)
    weights = SimpleNamespace(matrix=lambda name: Matrix("F32", 50, 32, table.view(np.uint8)))
    embedding = Embedding("embed", weights, None, nn.Embedding(50, 32, device="meta"))
    embedding.load()
    ids = torch.tensor([[3, 3, 49], [0, 1, 2]])
    assert torch.equal(embedding(ids), torch.from_numpy(table)[ids])


def test_rule_file_that_keeps_every_module(folder, tmp_path):
    """The model is transformers' own then, and computes the same."""
    rules = tmp_path / "keep.yaml"
    rules.write_text('- match: {name: ""}\n  replace: {class: default}\n')
    weights = open_weights(resolve(str(folder)))
    kept = build(weights, lambda *_: None, rules)
    assert not [m for m in kept.modules() if isinstance(m, Linear | Experts | Embedding)]
    ids = torch.tensor([[5, 9, 33, 2]])
    ours = load(folder)
    assert [m for m in ours.modules() if isinstance(m, Experts)]
    with torch.no_grad():
        torch.testing.assert_close(kept(ids).logits, ours(ids).logits, rtol=1e-4, atol=1e-5)


def test_broken_rule_file_stops_before_weights_are_read(folder, tmp_path):
    rules = tmp_path / "broken.yaml"
    rules.write_text("- match: {name: a}\n  replace: {class: no.such.Class}\n")
    with pytest.raises(BadData, match=r"no\.such\.Class"):
        build(open_weights(resolve(str(folder))), lambda *_: pytest.fail("loading began"), rules)


@pytest.mark.parametrize(
    ("operator", "kind", "sizes"), [(Linear, nn.Linear, (4, 4)), (Embedding, nn.Embedding, (4, 4))]
)
def test_a_subclass_that_computes_something_else_is_refused(operator, kind, sizes):
    class Scaled(kind):
        def forward(self, x):
            return super().forward(x) * 2

    table = np.zeros((4, 16), np.uint8)
    weights = SimpleNamespace(matrix=lambda name: Matrix("F32", 4, 4, table))
    with pytest.raises(Unsupported, match="Scaled") as e:
        operator("m.gate", weights, None, Scaled(*sizes, device="meta")).load()
    assert "m.gate" in str(e.value)


def test_infinite_settings_are_refused(folder):
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": Infinity'))
    with pytest.raises(BadData, match="rms_norm_eps"):
        load(folder)


def test_a_refused_module_can_be_kept_by_a_rule(folder, tmp_path):
    """What the refusal tells to do."""
    rules = tmp_path / "rules.yaml"
    rules.write_text('- match: {name: "q_proj$"}\n  replace: {class: default}\n' + default_rules().read_text())
    kept = build(open_weights(resolve(str(folder))), lambda *_: None, rules)
    attention = kept.model.layers[0].self_attn
    assert type(attention.q_proj) is nn.Linear and type(attention.k_proj) is Linear
