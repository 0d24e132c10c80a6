"""Adapters of other families: the trained model, the merged checkpoint and, where it can, PEFT agree."""

import json
import os

import pytest
import tiny_models
import tinymodel
import torch
from transformers import AutoModelForCausalLM

from kt_core import models
from kt_core.events import Events
from kt_core.kernels import set_threads
from kt_core.train import adapter, lora, merge, session
from kt_core.train.settings import settings

IDS = torch.arange(4, 40)[None]


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


def error(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(
    ("family", "targets", "peft_reads"),
    [("glm4moe", "all", False), ("glm4moe", "q_proj,o_proj,experts", True), ("mixtral", "all", False)],
)
def test_families(tmp_path, usual_threads, family, targets, peft_reads):
    base = tiny_models.model(family)
    for parameter in base.parameters():
        parameter.data = parameter.data.bfloat16().float()
    base.save_pretrained(tmp_path / "base")
    tinymodel.tokenizer().save_pretrained(tmp_path / "base")
    kt = {"kt_num_threads": 1}
    s = settings(
        {"model_name_or_path": str(tmp_path / "base"), "lora_rank": 4, "lora_target": targets, "kt_config": kt}
    )
    session.set_threads(s)
    reading, writing = os.pipe()
    model, facts = session.prepared(s, models.resolve(s.model_name_or_path), Events(writing))
    os.close(writing)
    with os.fdopen(reading) as lines:
        warned = any(json.loads(line)["event"] == "warning" for line in lines)
    set_threads(usual_threads)
    assert warned == (family == "glm4moe" and targets == "all")  # shared experts and a dense layer
    for name, parameter in lora.trainable(model).items():
        if name.endswith("_B"):
            parameter.data.normal_(0, 0.05)
    adapter.save(model, tmp_path / "adapter", s, facts)
    merge.merge(s.model_name_or_path, tmp_path / "adapter", tmp_path / "merged", lambda *_: None)
    expected = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32))
    assert error(logits(base), expected) > 0.1
    assert error(logits(model.eval()), expected) < 0.02
    with lora.switched_off(model):
        assert error(logits(model), logits(base)) < 0.02
    if peft_reads:
        peft = pytest.importorskip("peft")
        assert error(logits(peft.PeftModel.from_pretrained(base, tmp_path / "adapter")), expected) < 1e-4
