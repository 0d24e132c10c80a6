"""Rounding with compensation against exact least squares in float64, and jobs with a text."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from test_quantise_methods import encoded

from kt_core.kernels import grids
from kt_core.models.files import local_files
from kt_core.quantise import columns, gptq, importance, make, methods, write
from kt_core.quantise.columns import Curvature
from kt_core.quantise.methods import Scheme
from kt_core.weights import decode_matrix, open_weights

TEXT = " ".join(f"{word} {index}" for index in range(40) for word in ("the quick brown fox", "hello world"))


def quiet(*progress: object) -> None:
    pass


def inputs(rows: int, cols: int) -> torch.Tensor:
    """Columns that resemble each other, of sizes that differ."""
    random = np.random.default_rng(1)
    x = random.standard_normal((rows, cols // 4)) @ random.standard_normal((cols // 4, cols))
    return torch.from_numpy((x + random.standard_normal((rows, cols))) * np.linspace(0.2, 3, cols)).float()


def curvature(x: torch.Tensor) -> Curvature:
    gram = x.T @ x / len(x)
    return Curvature(gram, importance.scaled(gram.diagonal().numpy()))


def symmetric(x: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scales, _ = grids.symmetric(x, 8, "bf16", weights)
    return scales, np.zeros_like(scales)


def exactly(values: np.ndarray, group: int, known: Curvature, gram: np.ndarray) -> np.ndarray:
    """Integers, where the free columns are solved for anew after each one that was fixed: float64, no factor."""
    rows, cols = values.shape
    h = gram + columns.DAMPING * gram.diagonal().mean() * np.eye(cols)
    order, off = known.factored(group)[0], np.zeros((rows, cols))
    codes, scale = np.zeros((rows, cols), np.int16), np.zeros(rows)
    for number, column in enumerate(order):
        fixed, free = order[:number], order[number:]
        if number:
            off[:, free] = -np.linalg.solve(h[np.ix_(free, free)], h[np.ix_(free, fixed)] @ off[:, fixed].T).T
        if number % group == 0:
            at = slice(column // group * group, (column // group + 1) * group)
            moved = (values[:, at] + off[:, at]).astype(np.float32)
            scale = symmetric(np.ascontiguousarray(moved), known.diagonal[None, at])[0].astype(np.float64)
        codes[:, column] = np.clip(np.rint((values[:, column] + off[:, column]) / scale), -8, 7)
        off[:, column] = codes[:, column] * scale - values[:, column]
    return codes


def test_every_step_is_the_best_one():
    x = inputs(500, 96)
    values = np.random.default_rng(2).standard_normal((24, 96), np.float32)
    known = curvature(x)
    codes, scales, _ = columns.rounded(values, 32, symmetric, (-8, 7), known)
    gram = (x.T.double() @ x.double() / len(x)).numpy()
    assert (codes != exactly(values, 32, known, gram)).mean() < 0.01  # ties, in float32
    assert scales.shape == (24, 3)


@pytest.mark.parametrize(
    ("scheme", "share"),
    [(Scheme("int4", 32), 0.6), (Scheme("int4", 128), 0.6), (Scheme("int4", 32, True), 0.6), (Scheme("int8"), 0.6)],
    ids=str,
)
def test_outputs_come_closer(scheme, share, monkeypatch):
    """Of the squared error that remains with importance alone."""
    x = inputs(2000, 256)
    values, known = np.random.default_rng(3).standard_normal((64, 256), np.float32) * np.float32(0.02), curvature(x)
    method = methods.find(scheme.method)
    plain = decode_matrix(encoded(values, scheme, known.diagonal))
    monkeypatch.setattr(method, "encode", lambda given, how, importance: method.compensated(given, how, known))
    found = decode_matrix(encoded(values, scheme))
    errors = [float(((part - values) @ x.numpy().T).std()) ** 2 for part in (found, plain)]
    assert errors[0] < share * errors[1]


def test_inputs_without_rows_and_columns_that_are_nothing():
    values = np.random.default_rng(4).standard_normal((8, 64), np.float32)
    for gram in (torch.zeros(64, 64), torch.diag(torch.arange(64) % 2.0), torch.full((64, 64), float("nan"))):
        known = Curvature(gram, importance.scaled(gram.diagonal().numpy()))
        codes, scales, _ = columns.rounded(values, 32, symmetric, (-8, 7), known)
        found = codes * np.repeat(scales, 32, axis=1)
        assert np.linalg.norm(found - values) < 0.2 * np.linalg.norm(values)


def error(folder: Path, source: Path, known: gptq.Inputs) -> float:
    """Of all experts' outputs on the text, squared, as their Gram matrices weigh it."""
    made, exact, total = open_weights(local_files(folder)), open_weights(local_files(source)), 0.0
    prefix = "model.layers.1.mlp.experts"
    for index in range(exact.experts(prefix)):
        for part in ("gate", "up", "down"):
            off = decode_matrix(made.expert(prefix, index, part)) - decode_matrix(exact.expert(prefix, index, part))
            gram, count = known._gram(known.places[exact.expert_place(prefix, index, part)])
            total += float(np.einsum("ri,ij,rj", off, gram.numpy(), off)) / max(1, count)
    return total


def test_a_job_that_is_killed_between(folder, job, monkeypatch, tmp_path):
    """The text is read once, the bytes are those of a run without a break, and nothing is left beside the output."""
    monkeypatch.setattr(importance, "TOKENS", 256)
    monkeypatch.setattr(importance, "WINDOW", 64)
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    source = folder("qwen3moe", hidden_size=128, moe_intermediate_size=64)
    asked = dataclasses.replace(job(source, "int4", out="careful"), gptq=str(text))
    whole = make.run(make.prepare(asked), quiet)
    expected = (whole / "model.safetensors").read_bytes()
    assert json.loads((whole / "kt.json").read_text())["gptq"]["text"] == "text.txt"
    assert not list(tmp_path.glob(".careful*"))
    plain = make.run(make.prepare(job(source, "int4", out="plain")), quiet)
    prepared = make.prepare(asked := dataclasses.replace(asked, out=str(tmp_path / "again"), threads=1))
    known = gptq.of(asked.model, prepared.checkpoint, text, tmp_path / ".again.inputs", 1, quiet)
    assert error(whole, source, known) < 0.8 * error(plain, source, known)

    monkeypatch.setattr(gptq, "listen", lambda *_: pytest.fail("read again"))
    monkeypatch.setattr(write, "_seal", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        make.run(prepared, quiet)
    monkeypatch.undo()
    assert (make.run(make.prepare(asked), quiet) / "model.safetensors").read_bytes() == expected
    assert not (tmp_path / ".again.inputs").exists()
    shutil.rmtree(tmp_path / "again")
