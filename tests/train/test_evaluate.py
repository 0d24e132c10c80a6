"""What `kt sft eval` measures: against transformers' own loss, by hand, and a small case of known scores."""

import json
import math
import os

import pytest
import tinyrun
import torch
from transformers import AutoModelForCausalLM

from kt_core import models
from kt_core.engine.tokenizer import load_tokenizer
from kt_core.errors import BadData
from kt_core.events import Events
from kt_core.kernels import set_threads
from kt_core.train import data, evaluate, merge
from kt_core.train.encode import IGNORED, encode


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate")
    base, rows = tinyrun.base(folder / "base"), tinyrun.dataset(folder)
    s = tinyrun.chosen(base, rows, folder / "out", max_steps=40, lora_rank=8, per_device_train_batch_size=8)
    tinyrun.train(s)
    return folder


@pytest.fixture(autouse=True)
def _threads(usual_threads):
    yield
    set_threads(usual_threads)


def measured(folder, kind, file, **more):
    reading, writing = os.pipe()
    s = tinyrun.chosen(folder / "base", file, folder / "x", adapter_name_or_path=str(folder / "out"), **more)
    evaluate.evaluate(s, kind, 24, Events(writing))
    os.close(writing)
    with os.fdopen(reading) as lines:
        return next(e for e in map(json.loads, lines) if e["event"] == "measured")["results"]


def test_loss_of_base_and_adapter_is_transformers_own(trained):
    found = measured(trained, "loss", trained / "rows.json")
    merged = merge.merge(str(trained / "base"), trained / "out", trained / "merged", lambda *_: None)
    tokenizer = load_tokenizer(models.resolve(str(trained / "base")))
    rows = [encode(sample, tokenizer) for sample in data.load(str(trained / "rows.json"), "")]
    for name, path in (("base", trained / "base"), ("adapter", merged)):
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        total = count = 0
        for row in rows:
            scores = model(input_ids=torch.tensor([row.ids])).logits[0].log_softmax(-1)
            given = [-scores[i, label].item() for i, label in enumerate(row.labels[1:]) if label != IGNORED]
            total, count = total + sum(given), count + len(given)
        assert found[name]["loss"] == pytest.approx(total / count, rel=0.01)
        assert found[name]["tokens"] == count
        assert found[name]["perplexity"] == pytest.approx(math.exp(found[name]["loss"]))
    assert found["adapter"]["loss"] < found["base"]["loss"] / 2


def test_what_is_written_is_compared(trained):
    found = measured(trained, "text", trained / "rows.json", max_samples=3)
    assert found["adapter"]["bleu-4"] > found["base"]["bleu-4"]
    assert found["adapter"]["rougeL"] > 60 > found["base"]["rougeL"]


def test_likeness_by_hand():
    scores = evaluate.likeness(["the cat sat", "你好世界"], ["The cat sat.", "你好世界"])
    assert all(value == pytest.approx(100) for key, value in scores.items() if key not in ("bleu-4",))
    scores = evaluate.likeness(["a b c d"], ["a b x d"])
    assert scores["bleu-1"] == pytest.approx(75)
    assert scores["bleu-2"] == pytest.approx(100 * math.sqrt(3 / 4 * 1 / 3))
    assert scores["rouge1"] == scores["rougeL"] == pytest.approx(75)
    assert scores["rouge2"] == pytest.approx(100 / 3)


def test_choices(trained):
    words = ["fox", "dog", "hello"]
    rows = [
        {"instruction": f"say {w}", "choices": ["go go go", f"{w} {w} the lazy dog"], "answer": answer}
        for w, answer in zip(words, [1, "B", "A"], strict=True)
    ]
    file = trained / "choices.json"
    file.write_text(json.dumps(rows))
    assert measured(trained, "choice", file)["adapter"]["accuracy"] == pytest.approx(2 / 3)
    file.write_text(json.dumps([{**rows[0], "answer": 2}]))
    with pytest.raises(BadData, match="Sample 1"):
        data.load_choices(str(file), "")
