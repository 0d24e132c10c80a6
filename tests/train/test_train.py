"""Whole runs of a tiny model: against training in plain torch, resumed, merged, and read by PEFT."""

import json
import math
import os
import shutil

import pytest
import tinyrun
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from kt_core import lora, models
from kt_core.engine.loader import build
from kt_core.engine.tokenizer import load_tokenizer
from kt_core.errors import BadData, KTError, NotFound, Unsupported, UsageError
from kt_core.events import Events
from kt_core.kernels import set_threads
from kt_core.lora import pair
from kt_core.train import adapter, described, export, head, merge, preference, session
from kt_core.train.data import load, load_pairs
from kt_core.train.encode import collate, encode_all
from kt_core.train.estimate import Processes
from kt_core.train.trainer import LOG, checkpoints
from kt_core.weights import open_weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("train")


@pytest.fixture(scope="module")
def base(folder):
    return tinyrun.base(folder / "base")


@pytest.fixture(scope="module")
def data(folder):
    return tinyrun.dataset(folder)


@pytest.fixture(scope="module")
def trained(base, data, folder):
    """An unbroken run of four steps, and what it told."""
    s = tinyrun.chosen(base, data, folder / "whole")
    return s, tinyrun.train(s)


@pytest.fixture(autouse=True)
def _threads(usual_threads):
    yield
    set_threads(usual_threads)


def of(events, kind):
    return [event for event in events if event["event"] == kind]


def test_a_run_tells_what_it_does_and_leaves_a_whole_folder(trained, folder):
    s, events = trained
    out = folder / "whole"
    report = of(events, "report")[0]
    assert (report["samples"], report["dropped"]) == (8, 0)
    assert 0.4 < report["kept"] < 0.7
    assert of(events, "coverage")[0]["layers"] == dict.fromkeys(("experts", "k_proj", "o_proj", "q_proj", "v_proj"), 2)
    steps = of(events, "step")
    assert [step["current_steps"] for step in steps] == [1, 2, 3, 4]
    assert [json.loads(line)["loss"] for line in (out / LOG).read_text().splitlines()] == [s["loss"] for s in steps]
    assert all(step["experts_share"] > 0 < step["data_share"] for step in steps)
    assert all(step["experts_share"] + step["data_share"] < 1 for step in steps)
    assert of(events, "done")[0]["folder"] == str(out)
    assert [path.name for path in checkpoints(out)] == ["checkpoint-2", "checkpoint-4"]
    assert not list(out.glob("*.partial")) and not (out / ".saving").exists()
    facts = described.facts(out)
    assert described.base_of(out) == s.model_name_or_path
    assert adapter.rank_of(lora.read(out)) == s.lora_rank
    assert facts["coverage"]["experts"] == 2
    assert facts["base_fingerprint"] == adapter.fingerprint(open_weights(models.resolve(s.model_name_or_path)))


def test_a_resumed_run_is_the_unbroken_one_to_the_bit(trained, base, data, folder):
    s = tinyrun.chosen(base, data, folder / "broken")
    shutil.copytree(folder / "whole" / "checkpoint-2", folder / "broken" / "checkpoint-2")
    (folder / "broken" / ".saving" / "checkpoint-4").mkdir(parents=True)  # as a kill while saving leaves it
    with pytest.raises(UsageError, match="older run"):
        tinyrun.train(s)
    events = tinyrun.train(tinyrun.chosen(base, data, folder / "broken", resume_from_checkpoint=True))
    assert [step["current_steps"] for step in of(events, "step")] == [3, 4]
    whole, broken = (load_file(folder / run / described.WEIGHTS) for run in ("whole", "broken"))
    assert whole.keys() == broken.keys()
    assert all(torch.equal(whole[name], broken[name]) for name in whole)
    assert all((tensor != 0).any() for name, tensor in whole.items() if "lora_A" in name)


def test_losses_are_those_of_plain_torch(data, folder):
    """50 steps of the same batches by autograd and AdamW over W + scale B A in float32.

    With the tiny model's own weights, of deviation 0.4, one step in fifty falls where a token's experts change.
    """
    base = tinyrun.base(folder / "calm", scale=0.5)
    s = tinyrun.chosen(base, data, folder / "parity", learning_rate=1e-3)
    files = models.resolve(str(base))
    session.set_threads(s)
    model, _ = session.prepared(s, files, Events(2))
    start = {name: tensor.clone() for name, tensor in adapter.parameters(model)}
    rows, _ = encode_all(load(str(data), ""), load_tokenizer(files), 64, False)
    batches = [collate(rows[i : i + 4], 0) for i in (0, 4)]
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0)
    found = [step(optimiser, model(**batches[i % 2]).loss) for i in range(50)]
    expected = plain_torch(base, start, s.scale, batches, 50)
    assert found[0] > found[-1] + 0.5
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) < 1e-3


def step(optimiser, loss):
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return loss.item()


def plain_torch(base, start, scale, batches, steps):
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, experts_implementation="eager")
    model.requires_grad_(False)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    optimiser = torch.optim.AdamW(list(leaves.values()), lr=1e-3, weight_decay=0)

    def weights():
        changed = {name: p.clone() for name, p in model.named_parameters()}
        for name in leaves:
            if ".lora_B." in name:
                continue
            path = name.removeprefix(adapter.PREFIX).removesuffix(".lora_A.weight")
            delta = scale * leaves[name.replace("lora_A", "lora_B")] @ leaves[name]
            if ".experts." not in path:
                changed[f"{path}.weight"] = changed[f"{path}.weight"] + delta
                continue
            module, index, part = path.rsplit(".", 2)
            fused = f"{module}.{'down_proj' if part == 'down_proj' else 'gate_up_proj'}"
            half = delta.shape[0]
            rows = {"gate_proj": slice(0, half), "up_proj": slice(half, 2 * half), "down_proj": slice(None)}[part]
            changed[fused][int(index), rows] += delta
        return changed

    return [
        step(optimiser, torch.func.functional_call(model, weights(), kwargs=batches[i % 2]).loss) for i in range(steps)
    ]


@pytest.fixture(scope="module")
def merged(trained, folder):
    s, _ = trained
    return merge.merge(s.model_name_or_path, folder / "whole", folder / "merged", lambda *_: None)


IDS = torch.arange(4, 24)[None]


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


def test_merged_adapter_on_base_and_peft_agree(trained, merged, base, folder):
    peft = pytest.importorskip("peft")
    expected = logits(AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32))
    before = logits(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32))
    assert (expected - before).abs().max() > 0.1
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    by_peft = logits(peft.PeftModel.from_pretrained(plain, folder / "whole"))
    assert torch.allclose(by_peft, expected, atol=2e-4)
    model, _ = session.prepared(trained[0], models.resolve(str(base)), Events(2))
    adapter.load(model, folder / "whole", trained[0].scale)
    error = (logits(model.eval()) - expected).norm() / expected.norm()
    assert error < 0.01, error
    served = logits(build(open_weights(models.resolve(str(merged))), lambda *_: None))
    assert torch.allclose(served, expected, atol=1e-3)


def test_merging_refuses_other_bases_and_used_folders(trained, merged, folder):
    with pytest.raises(UsageError, match="not empty"):
        merge.merge(trained[0].model_name_or_path, folder / "whole", merged, lambda *_: None)
    other = folder / "other"
    shutil.copytree(folder / "whole", other)
    facts = json.loads((other / described.FACTS).read_text()) | {"base_fingerprint": "of another"}
    (other / described.FACTS).write_text(json.dumps(facts))
    with pytest.raises(BadData, match="not trained on"):
        merge.merge(trained[0].model_name_or_path, other, folder / "nothing", lambda *_: None)
    with pytest.raises(NotFound, match="no adapter"):
        merge.merge(trained[0].model_name_or_path, folder / "base", folder / "nothing", lambda *_: None)


def test_the_existing_systems_pair_is_written_and_read(trained, merged, base, folder):
    export.export(folder / "whole", folder / "pair")
    tensors = load_file(folder / "pair" / pair.FUSED)
    assert {name: tuple(t.shape) for name, t in tensors.items() if name.startswith("layers.1.")} == {
        "layers.1.experts.gate_lora_a": (6, 4, 32), "layers.1.experts.gate_lora_b": (6, 16, 4),
        "layers.1.experts.up_lora_a": (6, 4, 32), "layers.1.experts.up_lora_b": (6, 16, 4),
        "layers.1.experts.down_lora_a": (6, 4, 16), "layers.1.experts.down_lora_b": (6, 32, 4),
    }  # fmt: skip
    assert {t.dtype for t in tensors.values()} == {torch.bfloat16}
    assert not any("experts" in name for name in load_file(folder / "pair" / described.WEIGHTS))
    back, original = (lora.stored(folder / name).tensors for name in ("pair", "whole"))
    assert back.keys() == original.keys()
    assert all((back[name].float() - original[name]).norm() <= 2**-8 * original[name].norm() for name in back)
    again = merge.merge(str(base), folder / "pair", folder / "merged-pair", lambda *_: None)
    found, expected = (logits(AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32)) for f in (again, merged))
    assert (found - expected).norm() < 0.02 * expected.norm()
    (folder / "pair" / pair.MANIFEST).unlink()
    with pytest.raises(BadData, match="status"):
        lora.read(folder / "pair")


def test_folders_for_other_programs(trained, merged, base, folder):
    """A folder with the names of KTransformers' converter, whole and in parts; read again, and merged to the same."""
    for part, count in (("all", 44 * 2), ("experts", 36 * 2), ("others", 8 * 2)):
        export.export(folder / "whole", folder / f"sglang-{part}", "sglang", part)
        names = load_file(folder / f"sglang-{part}" / described.WEIGHTS).keys()
        assert len(names) == count and all(name.startswith("model.layers.") for name in names)
    config = json.loads((folder / "sglang-experts" / described.CONFIG).read_text())
    assert config["target_modules"] == ["down_proj", "gate_proj", "up_proj"]
    assert (config["r"], config["lora_alpha"]) == (4, 8)
    again = merge.merge(str(base), folder / "sglang-all", folder / "merged-sglang", lambda *_: None)
    found, expected = (load_file(path / "model.safetensors") for path in (again, merged))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    export.export(folder / "sglang-all", folder / "peft-again", "peft")
    assert (
        load_file(folder / "peft-again" / described.WEIGHTS).keys()
        == load_file(folder / "whole" / described.WEIGHTS).keys()
    )
    with pytest.raises(Unsupported, match="adds to experts alone"):
        export.export(folder / "sglang-experts", folder / "nothing", "peft", "others")


def test_an_adapter_goes_on_with_another_factor(trained, base, data, folder):
    """What an adapter adds stays the same where a run that begins with it has another lora_alpha."""
    s, _ = trained
    for alpha in (8.0, 2.0):
        s = tinyrun.chosen(base, data, folder / "on", adapter_name_or_path=str(folder / "whole"), lora_alpha=alpha)
        model, _ = session.prepared(s, models.resolve(str(base)), Events(2))
        found = logits(model.eval())
        expected = found if alpha == 8.0 else expected  # noqa: F821
        assert (found - expected).norm() < 1e-3 * expected.norm()


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(base, data, folder, monkeypatch):
    calls = []
    usual = session.RunTrainer.compute_loss

    def third_is_nan(self, *args, **kwargs):
        calls.append(1)
        loss = usual(self, *args, **kwargs)
        return loss * float("nan") if len(calls) == 3 else loss

    monkeypatch.setattr(session.RunTrainer, "compute_loss", third_is_nan)
    with pytest.raises(KTError, match=r"loss of step 3 .*checkpoint-2"):
        tinyrun.train(tinyrun.chosen(base, data, folder / "nan"))
    assert [path.name for path in checkpoints(folder / "nan")] == ["checkpoint-2"]


def test_the_loss_on_held_out_rows_is_measured(base, data, folder):
    s = tinyrun.chosen(
        base, data, folder / "held", val_size=0.25, eval_strategy="steps", eval_steps=2, per_device_train_batch_size=1
    )
    events = tinyrun.train(s)
    assert [event["step"] for event in of(events, "evaluated")] == [2, 4, 4]
    model, _ = session.prepared(s, models.resolve(str(base)), Events(2))
    adapter.load(model.eval(), folder / "held", s.scale)
    rows, _ = encode_all(load(str(data), ""), load_tokenizer(models.resolve(str(base))), 64, False)
    held, rest = session.split(rows, s)
    assert (len(held), len(rest)) == (2, 6)
    expected = sum(model(**collate([row], 0)).loss.item() for row in held) / 2
    assert of(events, "evaluated")[-1]["loss"] == pytest.approx(expected, rel=1e-3)
    with pytest.raises(UsageError, match="8 of 8"):
        tinyrun.train(tinyrun.chosen(base, data, folder / "held2", val_size=8))


def test_logits_are_made_where_labels_ask_for_them(trained, base, data, monkeypatch):
    s, _ = trained
    model, _ = session.prepared(s, models.resolve(str(base)), Events(2))
    rows, _ = encode_all(load(str(data), ""), load_tokenizer(models.resolve(str(base))), 64, False)
    arguments = session.arguments(s)
    trainer = session.RunTrainer(model, arguments, train_dataset=rows, keeping=None)
    model.eval()
    monkeypatch.setattr(head, "splits", lambda _: False)
    for batch in (collate(rows[:3], 0), collate(rows[3:4], 0)):
        expected = model(**batch)
        loss, found = trainer.compute_loss(model, batch, return_outputs=True)
        assert found.logits.shape[1] < expected.logits.shape[1]
        assert loss.item() == pytest.approx(expected.loss.item(), rel=1e-5)


def test_experts_of_another_checkpoint(base, data, folder):
    """The layers' losses are those of the model with its experts rounded as that checkpoint has them."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        parameter.data.mul_(0.5 if ".experts." in name else 3.0)
    model.save_pretrained(folder / "other-experts")
    s = tinyrun.chosen(base, data, folder / "mixed", kt_weight_path=str(folder / "other-experts"))
    found, _ = session.prepared(s, models.resolve(str(base)), Events(2))
    expected = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    for name, parameter in expected.named_parameters():
        parameter.data.mul_(0.5 if ".experts." in name else 1.0)
    assert (logits(found.eval()) - logits(expected)).norm() < 0.02 * logits(expected).norm()
    assert tinyrun.train(s)[-1]["event"] == "done"
    small = AutoConfig.from_pretrained(base, num_experts=4)
    AutoModelForCausalLM.from_config(small).save_pretrained(folder / "fewer-experts")
    with pytest.raises(BadData, match="number or sizes differ"):
        tinyrun.train(tinyrun.chosen(base, data, folder / "mixed2", kt_weight_path=str(folder / "fewer-experts")))


def test_targets_are_found_or_named(base, data, folder):
    with pytest.raises(UsageError, match="nothing is in no layer"):
        tinyrun.train(tinyrun.chosen(base, data, folder / "t1", lora_target="q_proj,nothing"))
    events = tinyrun.train(tinyrun.chosen(base, data, folder / "t2", lora_target=["gate_proj", "q_proj"], max_steps=1))
    assert of(events, "coverage")[0]["layers"] == {"experts": 2, "q_proj": 2}


def test_a_dry_run_tells_the_data_and_the_memory_and_trains_nothing(base, data, folder):
    reading, writing = os.pipe()
    session.plan(tinyrun.chosen(base, data, folder / "dry", max_steps=-1, num_train_epochs=3), Events(writing))
    os.close(writing)
    with os.fdopen(reading) as lines:
        report, plan = map(json.loads, lines)
    assert (report["samples"], plan["steps"]) == (8, 12)
    assert plan["bytes"]["adapter"] == 16 * 2 * 6 * 3 * 4 * (32 + 16)
    assert not (folder / "dry").exists()


def test_a_known_model_that_is_not_here_is_planned_by_what_is_known_of_it(folder):
    reading, writing = os.pipe()
    s = tinyrun.chosen("Qwen3-235B-A22B-2507", folder / "none.json", folder / "dry", cutoff_len=2048, bf16=True)
    session.foresee(s, Events(writing), Processes(2, gpu=True))
    os.close(writing)
    with os.fdopen(reading) as lines:
        (plan,) = map(json.loads, lines)
    assert plan["bytes"]["experts"] == 94 * 128 * 3 * 4096 * 1536 * 2
    assert plan["gpu_bytes"] > 2**34


@pytest.mark.parametrize("kind", ["orpo", "simpo"])
def test_preferences_without_a_reference(base, folder, kind):
    """The held-out loss at the end is the published formula's, of the merged checkpoint by transformers alone."""
    out, data = folder / f"pref-{kind}", pairs_file(folder)
    s = tinyrun.chosen(base, data, out, stage="dpo", pref_loss=kind, learning_rate=1e-3, val_size=2, simpo_gamma=0.7)
    events = tinyrun.train(s)
    after = merge.merge(str(base), out, folder / f"pref-merged-{kind}", lambda *_: None)
    model = AutoModelForCausalLM.from_pretrained(after, dtype=torch.float32)
    pairs, _ = preference.encode_pairs(load_pairs(str(data), ""), load_tokenizer(models.resolve(str(base))), 64)
    held, _ = session.split(pairs, s)
    losses = [FORMULAS[kind](by_token(model, p.chosen), by_token(model, p.rejected), s) for p in held]
    assert of(events, "evaluated")[-1]["loss"] == pytest.approx(sum(losses) / 2, rel=0.02)
    steps = [step["loss"] for step in of(events, "step")]
    assert steps[-1] < steps[0]


def orpo(chosen, rejected, s):
    """Hong et al. 2024: NLL of the better answer, and lambda times the odds ratio's."""
    odds = [math.exp(p) / (1 - math.exp(p)) for p in (chosen, rejected)]
    return -chosen + s.pref_beta * math.log(1 + odds[1] / odds[0])


def simpo(chosen, rejected, s):
    """Meng et al. 2024: rewards are mean log likelihoods times beta, gamma apart."""
    return math.log1p(math.exp(-(s.pref_beta * chosen - s.pref_beta * rejected - s.simpo_gamma)))


FORMULAS = {"orpo": orpo, "simpo": simpo}


def by_token(model, encoded):
    """Mean log likelihood of an answer's tokens."""
    scores = model(input_ids=torch.tensor([encoded.ids])).logits[0].log_softmax(-1)
    found = [scores[i, t].item() for i, t in enumerate(encoded.labels[1:]) if t >= 0]
    return sum(found) / len(found)


def pairs_file(folder):
    words = [row["instruction"] for row in tinyrun.ROWS]
    rows = [{"instruction": word, "chosen": "the lazy dog", "rejected": "hello world"} for word in words]
    (folder / "pairs.json").write_text(json.dumps(rows))
    return folder / "pairs.json"


@pytest.mark.parametrize("kind", ["sigmoid", "ipo"])
def test_preferences_are_learnt_against_the_model_as_it_was(base, folder, kind):
    """The loss at the end is the published formula's, of the merged checkpoint against the base by transformers alone."""
    out, data = folder / f"dpo-{kind}", pairs_file(folder)
    s = tinyrun.chosen(base, data, out, stage="dpo", pref_loss=kind, learning_rate=1e-3, val_size=2)
    events = tinyrun.train(s)
    steps = [step["loss"] for step in of(events, "step")]
    start = math.log(2) if kind == "sigmoid" else 25.0  # (1 / (2 * 0.1))^2
    assert steps[0] == pytest.approx(start, rel=1e-3)
    assert steps[-1] < steps[0]
    after = merge.merge(str(base), out, folder / f"dpo-merged-{kind}", lambda *_: None)
    tokenizer = load_tokenizer(models.resolve(str(base)))
    pairs, _ = preference.encode_pairs(load_pairs(str(data), ""), tokenizer, 64)
    policy, reference = (AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32) for f in (after, base))
    margins = [gained(policy, reference, p.chosen, kind) - gained(policy, reference, p.rejected, kind) for p in pairs]
    held, _ = session.split(margins, s)
    beta = s.pref_beta
    formula = {"sigmoid": lambda m: math.log1p(math.exp(-beta * m)), "ipo": lambda m: (m - 1 / (2 * beta)) ** 2}[kind]
    assert of(events, "evaluated")[-1]["loss"] == pytest.approx(sum(map(formula, held)) / 2, rel=0.02)
    assert sum(margins) > 0


def gained(policy, reference, encoded, kind):
    """How much more likely an answer has become, in log likelihood, for ipo by the token."""
    total = 0.0
    for sign, model in ((1, policy), (-1, reference)):
        scores = model(input_ids=torch.tensor([encoded.ids])).logits[0].log_softmax(-1)
        total += sign * sum(scores[i, t].item() for i, t in enumerate(encoded.labels[1:]) if t >= 0)
    return total / (sum(t >= 0 for t in encoded.labels[1:]) if kind == "ipo" else 1)


def test_packed_samples_do_not_see_each_other(base, data):
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    rows, _ = encode_all(load(str(data), ""), load_tokenizer(models.resolve(str(base))), 64, False)
    packed, report = encode_all(load(str(data), ""), load_tokenizer(models.resolve(str(base))), 64, True)
    assert report.rows < 8
    assert sum(len(row.starts) for row in packed) == 8
    batch = collate(packed, 0)
    together = model(**batch, use_cache=False).logits[0]
    for row in packed:
        first = together[: len(row.ids)]
        together = together[len(row.ids) :]
        for begin, end in zip(row.starts, [*row.starts[1:], len(row.ids)], strict=True):
            alone = model(input_ids=torch.tensor([row.ids[begin:end]])).logits[0]
            assert torch.allclose(first[begin:end], alone, atol=1e-3)
    assert sorted(len(row.ids) for row in rows) == sorted(
        end - begin for row in packed for begin, end in zip(row.starts, [*row.starts[1:], len(row.ids)], strict=True)
    )
