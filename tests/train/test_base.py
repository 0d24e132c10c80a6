"""Training a model's own weights: against transformers, step by step; resumed; in part; and what is left of it."""

import json
import shutil

import pytest
import tiny_models
import tinymodel
import tinyrun
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from kt_core import models
from kt_core.engine.loader import build
from kt_core.engine.tokenizer import load_tokenizer
from kt_core.errors import Unsupported, UsageError
from kt_core.events import Events
from kt_core.kernels import set_threads
from kt_core.train import base as weights_trained
from kt_core.train import checkpoint, lora, session
from kt_core.train.data import load
from kt_core.train.encode import collate, encode_all
from kt_core.train.optimizer import AdamW
from kt_core.weights import open_weights

IDS = torch.arange(4, 24)[None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("base")


@pytest.fixture(scope="module")
def base(folder):
    return tinyrun.base(folder / "base", scale=0.5)


@pytest.fixture(scope="module")
def data(folder):
    return tinyrun.dataset(folder)


@pytest.fixture(autouse=True)
def _threads(usual_threads):
    yield
    set_threads(usual_threads)


def full(base, data, out, **more):
    return tinyrun.chosen(base, data, out, finetuning_type="full", learning_rate=1e-3, **more)


@pytest.fixture(scope="module")
def trained(base, data, folder):
    """An unbroken run of four steps, and what it told."""
    s = full(base, data, folder / "whole")
    return s, tinyrun.train(s)


def plain(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, experts_implementation="eager")


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


def of(events, kind):
    return [event for event in events if event["event"] == kind]


def test_losses_are_those_of_transformers(data, folder):
    """50 steps of every weight of the model, of the same batches. Smaller weights: the choice of experts is then a steady one."""
    base = tinyrun.base(folder / "calm", scale=0.3)
    s = full(base, data, folder / "parity")
    files = models.resolve(str(base))
    session.set_threads(s)
    model, _ = session.prepared(s, files, Events(2))
    rows, _ = encode_all(load(str(data), ""), load_tokenizer(files), 64, False)
    batches = [collate(rows[i : i + 4], 0) for i in (0, 4)]
    experts = [m for m in model.modules() if isinstance(m, lora.TrainedExperts)]
    settings = {"lr": 1e-3, "weight_decay": 0.01}
    found = losses(model, AdamW(model.parameters(), experts, **settings), batches)
    other = plain(base)
    expected = losses(other, torch.optim.AdamW(other.parameters(), **settings), batches)
    assert found[0] > found[-1] + 0.5
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) < 1e-3


def losses(model, optimiser, batches):
    found = []
    for number in range(50):
        optimiser.zero_grad()
        loss = model(**batches[number % 2]).loss
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    return found


def test_a_run_leaves_a_checkpoint_that_transformers_loads(trained, base, folder):
    s, events = trained
    assert of(events, "coverage")[0]["layers"]["experts"] == 2
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= {p.name for p in (folder / "whole").iterdir()}
    assert not (folder / "whole" / weights_trained.WEIGHTS).exists()
    before, after = load_file(base / "model.safetensors"), load_file(folder / "whole" / "model.safetensors")
    assert {n: (t.shape, t.dtype) for n, t in before.items()} == {n: (t.shape, t.dtype) for n, t in after.items()}
    same = {name for name in before if torch.equal(before[name], after[name])}
    unused = {name.rsplit(".", 2)[0] for name in same}  # experts that no token chose, and whole
    assert all(".experts." in name for name in unused) and len(same) == 3 * len(unused) < 18
    model, _ = session.prepared(s, models.resolve(str(base)), Events(2))
    weights_trained.load(model, folder / "whole" / "checkpoint-4")
    expected = logits(plain(folder / "whole"))
    assert (expected - logits(plain(base))).norm() > 0.01 * expected.norm()
    assert (logits(model.eval()) - expected).norm() < 0.01 * expected.norm()
    served = build(open_weights(models.resolve(str(folder / "whole"))), lambda *_: None)
    assert torch.allclose(logits(served), expected, atol=1e-3)


def test_a_resumed_run_is_the_unbroken_one_to_the_bit(trained, base, data, folder):
    shutil.copytree(folder / "whole" / "checkpoint-2", folder / "broken" / "checkpoint-2")
    events = tinyrun.train(full(base, data, folder / "broken", resume_from_checkpoint=True))
    assert [step["current_steps"] for step in of(events, "step")] == [3, 4]
    whole, broken = (load_file(folder / run / "model.safetensors") for run in ("whole", "broken"))
    assert all(torch.equal(whole[name], broken[name]) for name in whole)


@pytest.mark.parametrize(
    ("words", "moved"),
    [
        ({}, {"model.layers.1."}),
        ({"freeze_trainable_layers": -1, "freeze_trainable_modules": "mlp"}, {"model.layers.0.mlp."}),
        (
            {"freeze_trainable_modules": "self_attn,input_layernorm", "freeze_extra_modules": "lm_head"},
            {"model.layers.1.self_attn.", "model.layers.1.input_layernorm.", "lm_head."},
        ),
    ],
)
def test_some_layers_or_modules_alone(base, data, folder, words, moved):
    out = folder / f"freeze-{'-'.join(moved)}"
    given = {"freeze_trainable_layers": 1, "max_steps": 1, "bf16": True} | words
    tinyrun.train(frozen(base, data, out, given))
    before, after = load_file(base / "model.safetensors"), load_file(out / "model.safetensors")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    allowed = {name for name in before if name.startswith(tuple(moved))}
    assert changed <= allowed
    assert all(".experts." in name for name in allowed - changed)
    assert {name.split(".experts.")[0] for name in changed} == {name.split(".experts.")[0] for name in allowed}


def frozen(base, data, out, words):
    return tinyrun.chosen(base, data, out, finetuning_type="freeze", **words)


def test_what_cannot_be_trained_is_refused_by_name(base, data, folder):
    with pytest.raises(UsageError, match="nothing is in no layer"):
        tinyrun.train(frozen(base, data, folder / "x", {"freeze_trainable_modules": "mlp,nothing"}))
    with pytest.raises(Unsupported, match="stored as Q8_0"):
        weights_trained.refuse({"BF16": 1, "Q8_0": 1}, full(base, data, folder / "x"))


@pytest.mark.parametrize("family", ["glm4moe", "mixtral"])
def test_checkpoints_of_families_are_their_own(tmp_path, family, monkeypatch):
    """Several files, fused experts as single ones, tied and shared layers: transformers reads what it would have written."""
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 1)
    original = tiny_models.model(family)
    original.save_pretrained(tmp_path / "base")
    tinymodel.tokenizer().save_pretrained(tmp_path / "base")
    s = full(tmp_path / "base", tmp_path / "none.json", tmp_path / "out")
    files = models.resolve(s.model_name_or_path)
    session.set_threads(s)
    model, _ = session.prepared(s, files, Events(2))
    session.leave(session._of_weights(model, open_weights(files), s), tmp_path / "out")
    index = json.loads((tmp_path / "out" / checkpoint.INDEX).read_text())
    assert len(set(index["weight_map"].values())) > 2
    before = load_file(tmp_path / "base" / "model.safetensors")
    assert index["weight_map"].keys() == before.keys()
    assert torch.equal(logits(plain(tmp_path / "out")), logits(plain(tmp_path / "base")))
