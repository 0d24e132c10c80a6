"""Statistics of a text against transformers' eager modules, and what a job makes of them."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tinymodel import tokenizer
from transformers import AutoModelForCausalLM

from kt_core.errors import NotFound, UsageError
from kt_core.models.files import local_files
from kt_core.quantise import importance, make, write
from kt_core.quantise.layout import Piece
from kt_core.quantise.source import Weight
from kt_core.weights import Matrix, decode_matrix, open_weights

TEXT = " ".join(f"{word} {index}" for index in range(40) for word in ("the quick brown fox", "hello world"))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(importance, "TOKENS", 128)
    monkeypatch.setattr(importance, "WINDOW", 64)
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def quiet(*progress: object) -> None:
    pass


def squares(x: torch.Tensor) -> np.ndarray:
    return x.reshape(-1, x.shape[-1]).double().square().mean(0).numpy()


def expected(folder: Path) -> dict[str, np.ndarray]:
    """Mean squares by published names, computed by transformers in float32 from the same checkpoint."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    found: dict[str, np.ndarray] = {}

    def linear(name):
        return lambda module, args: found.__setitem__(f"{name}.weight", squares(args[0]))

    def experts(name):
        def hook(module, args):
            x, ids, weights = args
            gates = []
            for index in range(module.num_experts):
                rows, slots = torch.where(ids == index)
                share = weights[rows, slots].square()[:, None]
                gate, up = (x[rows] @ module.gate_up_proj[index].T).chunk(2, dim=-1)
                h = torch.nn.functional.silu(gate) * up
                gates.append(((x[rows].square() * share).sum(0), (h.square() * share).sum(0), len(rows)))
            means = [sum(part[i] for part in gates) / sum(part[2] for part in gates) for i in (0, 1)]
            for index, (*sums, count) in enumerate(gates):
                blended = [(s + 32 * mean) / (count + 32) for s, mean in zip(sums, means, strict=True)]
                for part, values in (("gate", blended[0]), ("up", blended[0]), ("down", blended[1])):
                    found[f"{name}.{index}.{part}_proj.weight"] = values.double().numpy()

        return hook

    for name, module in model.named_modules():
        if name.endswith(".experts"):
            module.register_forward_pre_hook(experts(name))
        elif isinstance(module, torch.nn.Linear) and "lm_head" not in name:
            module.register_forward_pre_hook(linear(name))
    ids = tokenizer().encode(TEXT, add_special_tokens=False)[:128]
    with torch.no_grad():
        model(input_ids=torch.tensor(ids[: len(ids) // 64 * 64]).view(-1, 64))
    return found


def test_collected_as_transformers_computes(folder, monkeypatch):
    monkeypatch.setattr(importance, "LEAST", 0)
    source = folder("qwen3moe")
    found = importance.collect(local_files(source), TEXT, 2, quiet)
    means = expected(source)
    assert {place.removesuffix(":0") for place in found} == {name for name in means if ".mlp.gate.weight" not in name}
    for place, vector in found.items():
        mean = means[place.removesuffix(":0")]
        np.testing.assert_allclose(vector, mean / mean.mean(), rtol=0.05, atol=0.01)  # activations are rounded


def weighted(folder: Path, source: Path, found: importance.Importance) -> float:
    """The summed squared errors of all weights of layers, as the statistics weigh them."""
    made, exact = (open_weights(local_files(path)) for path in (folder, source))
    total = 0.0
    for name in exact.names():
        counts = found.find(name, 0) if name.endswith("_proj.weight") else None
        if counts is not None:
            off = decode_matrix(made.matrix(name)) - decode_matrix(exact.matrix(name))
            total += float((off.astype(np.float64) ** 2 * counts).sum())
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp.experts"
        for index in range(exact.experts(prefix)):
            for part in ("gate", "up", "down"):
                off = decode_matrix(made.expert(prefix, index, part)) - decode_matrix(exact.expert(prefix, index, part))
                counts = found.find(exact.expert_place(prefix, index, part), 0)
                total += float((off.astype(np.float64) ** 2 * counts).sum())
    return total


@pytest.mark.parametrize("method", ["int4", "Q4_1"])
def test_a_job_takes_more_care_where_it_counts(folder, job, small, method):
    """With the same text its own measure falls; the statistics are collected once; a damaged file of them is made anew."""
    source = folder("qwen3moe", hidden_size=128, moe_intermediate_size=64)
    plain = make.run(make.prepare(job(source, method, out="plain")), quiet)
    seen = []
    prepared = make.prepare(dataclasses.replace(job(source, method, out="careful"), importance=str(small)))
    careful = make.run(prepared, lambda stage, *_: seen.append(stage))
    vectors = importance.of(local_files(source), prepared.checkpoint, small, 1, lambda stage, *_: seen.append("again"))
    assert "importance" in seen and "again" not in seen
    assert weighted(careful, source, vectors) < 0.97 * weighted(plain, source, vectors)
    label = json.loads((careful / "kt.json").read_text())
    assert label["importance"]["text"] == "text.txt"
    assert "importance" not in json.loads((plain / "kt.json").read_text())
    (kept,) = (small.parent / "cache" / "kt" / "importance").glob("*.npz")
    whole = kept.read_bytes()
    for damaged in (whole[:100], b"", whole[:200] + bytes(100) + whole[300:]):
        kept.write_bytes(damaged)
        seen.clear()
        importance.of(local_files(source), prepared.checkpoint, small, 1, lambda stage, *_: seen.append("again"))
        assert "again" in seen


def test_stacks_know_their_experts():
    found = importance.Importance({f"stack:{first}": np.full(4, first, np.float32) for first in (0, 30, 60)})
    assert found.find("stack:30", 5)[0] == 30
    assert [found.find("stack", row)[0] for row in (0, 29, 30, 75)] == [0, 0, 30, 60]
    assert found.find("other", 0) is None and found.find("other:0", 0) is None


def test_rows_of_two_experts_are_never_taken_together():
    """Of a stack that one matrix holds: 3 experts of 96 rows, 128 at a time."""
    stack = Matrix("BF16", 288, 32, np.zeros((288, 64), np.uint8))
    weight = Weight("blk.0.ffn_up_exps.weight", (3, 96, 32), "BF16", "experts", 0, lambda: [stack], ("stack",))
    tasks = list(write._tasks(Piece(weight, None, (), ()), 128 * 32))
    assert [(task.first, task.count) for task in tasks] == [(0, 96), (96, 96), (192, 96)]
    tasks = list(write._tasks(Piece(dataclasses.replace(weight, shape=(288, 32)), None, (), ()), 128 * 32))
    assert [(task.first, task.count) for task in tasks] == [(0, 128), (128, 128), (256, 32)]


def test_texts_that_say_nothing(folder, job, small):
    source = folder("qwen3moe")
    with pytest.raises(NotFound, match="There is no file"):
        make.prepare(dataclasses.replace(job(source, "int4"), importance=str(small) + ".none"))
    with pytest.raises(UsageError, match="no tokens"):
        importance.collect(local_files(source), "", 1, quiet)
