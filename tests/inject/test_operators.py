"""Operators leave what they cannot compute to transformers; a model that is not whole does not run."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeAttention

from kt_core.engine import kept
from kt_core.engine.kept import Kept, fitting_context, report
from kt_core.engine.loader import build
from kt_core.errors import BadData, DoesNotFit, Unsupported
from kt_core.inject import default_rules
from kt_core.machine import probe
from kt_core.models import resolve
from kt_core.operators.embedding import Embedding
from kt_core.operators.experts import Experts
from kt_core.operators.linear import Linear
from kt_core.plan import memory
from kt_core.types import Decision, ModelFiles, ModelSpec, Plan, ServerSettings
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
    ("module", "words"),
    [
        (OddExperts(has_post_expert_norm=True), "norm behind each expert"),
        (OddExperts(act_fn=nn.ReLU()), "OddExperts has an activation without a kernel (silu; known: silu, gelu_tanh"),
        (OddExperts(act_fn=nn.SiLU(), has_gate=False), "known: silu"),
        (ClampedLate(limit=2.0), "ClampedLate"),
        (nn.Linear(2, 2), "Linear is not in transformers' form of experts"),
    ],
)
def test_layouts_without_a_kernel_do_not_fit(module, words):
    assert words in Experts.unfit(module, SimpleNamespace(hidden_act="silu"))


def test_standard_experts_fit():
    assert Experts.unfit(OddExperts(), SimpleNamespace(hidden_act="silu")) == ""


def test_another_number_of_experts_is_an_error():
    weights = SimpleNamespace(experts=lambda key: 3)
    with pytest.raises(BadData, match=r"it has 3, the model needs 2"):
        Experts("m.experts", weights, SimpleNamespace(hidden_act="silu"), OddExperts()).load()


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
    whole = build(weights, lambda *_: None, rules)
    assert not [m for m in whole.modules() if isinstance(m, Linear | Experts | Embedding)]
    ids = torch.tensor([[5, 9, 33, 2]])
    ours = load(folder)
    assert [m for m in ours.modules() if isinstance(m, Experts)]
    with torch.no_grad():
        torch.testing.assert_close(whole(ids).logits, ours(ids).logits, rtol=1e-4, atol=1e-5)


def test_broken_rule_file_stops_before_weights_are_read(folder, tmp_path):
    rules = tmp_path / "broken.yaml"
    rules.write_text("- match: {name: a}\n  replace: {class: no.such.Class}\n")
    with pytest.raises(BadData, match=r"no\.such\.Class"):
        build(open_weights(resolve(str(folder))), lambda *_: pytest.fail("loading began"), rules)


@pytest.mark.parametrize(("operator", "kind"), [(Linear, nn.Linear), (Embedding, nn.Embedding)])
def test_a_subclass_fits_when_its_forward_is_torchs(operator, kind):
    class Named(kind):
        pass

    class Scaled(kind):
        def forward(self, x):
            return super().forward(x) * 2

    assert operator.unfit(Named(4, 4), None) == ""
    assert "Scaled" in operator.unfit(Scaled(4, 4), None)


@pytest.fixture
def scaled(folder, monkeypatch):
    """The folder's model, whose query projections compute something of their own."""

    class Scaled(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 0.5

    made = Qwen3MoeAttention.__init__

    def init(self, *args, **kwargs):
        made(self, *args, **kwargs)
        self.q_proj = Scaled(self.q_proj.in_features, self.q_proj.out_features, bias=False)

    monkeypatch.setattr(Qwen3MoeAttention, "__init__", init)
    return folder


def test_what_does_not_fit_is_kept_and_told_before_weights_are_read(scaled):
    told = []

    def agree(found):
        told.append(found)

    weights = open_weights(resolve(str(scaled)))
    model = build(weights, lambda *_: None, None, agree)
    (found,) = told
    names = {f"model.layers.{layer}.self_attn.q_proj" for layer in (0, 1)}
    assert set(found.reasons) == names and all("Scaled" in reason for reason in found.reasons.values())
    assert found.stored == found.decoded == 2 * 32 * 32 * 4
    assert type(model.model.layers[0].self_attn.q_proj).__name__ == "Scaled"
    assert type(model.model.layers[0].self_attn.k_proj) is Linear
    rules = scaled.parent / "keep.yaml"
    rules.write_text('- match: {name: ""}\n  replace: {class: default}\n')
    ids = torch.tensor([[5, 9, 33, 2]])
    with torch.no_grad():
        whole = build(open_weights(resolve(str(scaled))), lambda *_: None, rules)(ids).logits
        torch.testing.assert_close(model(ids).logits, whole, rtol=1e-4, atol=1e-5)


def planned(needed_context, source="machine", **more):
    spec = ModelSpec("x", 2, 32, 64, 4096, 4, 2, 10**6, {"experts": 2**28, "other": 0}, 2**20, {"BF16": 2**28})
    decisions = [Decision("context", needed_context, "", source), Decision("kv_dtype", "float32", "", "default")]
    decisions += [Decision(name, value, "", "user") for name, value in more.items()]
    return Plan(ModelFiles("m", "/m", "safetensors", ()), spec, tuple(decisions), {"cpu": 0}, ServerSettings())


@pytest.fixture
def four_gib(monkeypatch):
    machine = replace(probe(), memory_total=2**32, memory_available=2**32 - memory.RUNTIME_BYTES)
    monkeypatch.setattr(kept, "probe", lambda: machine)


def test_decoded_modules_take_room_from_the_context(four_gib, caplog):
    """Of 4 GiB, the model needs about 0.7; a token takes 1 MiB, and what is decoded 1 GiB more than it is stored."""
    bigger = Kept({"m.gate": "reason"}, 2**28, 2**28 + 2**30)
    assert fitting_context(planned(2000), bigger) == 2000
    reduced = fitting_context(planned(3000), bigger)
    assert 2000 < reduced < 3000
    assert f"{reduced} tokens instead of 3000" in caplog.text and "1.00 GiB" in caplog.text
    with pytest.raises(DoesNotFit, match=f"--context {reduced}"):
        fitting_context(planned(3000, "user"), bigger)
    assert fitting_context(planned(3000, "user", force=True), bigger) == 3000
    with pytest.raises(DoesNotFit, match="does not fit"):
        fitting_context(planned(3000), Kept({"m.gate": "reason"}, 0, 2**32))


def test_only_a_large_part_of_the_model_is_worth_a_warning(caplog):
    found = Kept({"m.gate": "it has a forward of its own"}, 2**20, 2**21)
    report(found, 2**30)
    assert not caplog.records
    report(found, 2**24)
    assert "m.gate: it has a forward of its own" in caplog.text and caplog.records[-1].levelname == "WARNING"


def test_infinite_settings_are_refused(folder):
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": Infinity'))
    with pytest.raises(BadData, match="rms_norm_eps"):
        load(folder)


def test_a_module_can_be_kept_by_a_rule(folder, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text('- match: {name: "q_proj$"}\n  replace: {class: default}\n' + default_rules().read_text())
    model = build(open_weights(resolve(str(folder))), lambda *_: None, rules)
    attention = model.model.layers[0].self_attn
    assert type(attention.q_proj) is nn.Linear and type(attention.k_proj) is Linear
