"""The figures of each subject, one model in memory at a time.

What the others are compared with, the first subject's distributions and layers, waits in temporary files.
"""

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kt_core import paths
from kt_core.errors import BadData, UsageError
from kt_core.formats.texts import read_text
from kt_core.quality.job import Job, Question, read_questions
from kt_core.quality.model import Model, encoded, tokenizer_of
from kt_core.types import Progress

MOST_NATS = 700  # of surprise, that a float64 still holds the exponential of
LAYER_TOKENS = 128  # whose way through the layers is compared


@dataclass
class Reference:
    """The first subject's side: log-probabilities [tokens, vocab] and layers' inputs and outputs [layers, tokens, hidden]."""

    folder: Path
    distributions: np.memmap[Any, np.dtype[np.float32]] | None = None
    layers: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)


def rows(job: Job, progress: Progress) -> Iterator[dict[str, Any]]:
    """A row for each subject, as soon as it is there.

    name, bytes, accuracy where there are questions; of a text perplexity, prefill and decode (tokens/s), and compared with
    the first: kl_divergence (mean, in nats) and kl_p99, top1 (share of equal first choices), layer_error (mean and worst
    relative error of a layer's output for the reference's input) and layer_errors. Raises, before any model is loaded,
    UsageError for a text that is too short or that the models read as different tokens; BadData for a model that gives no numbers.
    """
    progress("tokenizer", 0, 1, "")
    texts = _texts(job) if job.text else [[] for _ in job.subjects]
    questions = read_questions(Path(job.questions)) if job.questions else ()
    cache = paths.cache_dir()  # what lies in /tmp may be in memory
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="quality-", dir=cache) as folder:
        reference = Reference(Path(folder)) if job.versus else None
        for subject, ids in zip(job.subjects, texts, strict=True):
            model = Model(subject, job.window, progress)
            row: dict[str, Any] = {
                "name": subject.files.name,
                "bytes": sum(Path(file).stat().st_size for file in subject.files.files),
            }
            if ids:
                row |= _text_figures(model, ids, job, reference, progress)
                if not math.isfinite(row["perplexity"]):
                    raise BadData("quality.not_finite", name=subject.files.name)
            if ids and reference is not None:
                row |= _layer_figures(model, ids, reference)
            if ids:
                row |= _speed(model, ids, job.window)
            if questions:
                row["accuracy"] = _accuracy(model, questions, job.window)
            yield row
            del model


def _texts(job: Job) -> list[list[int]]:
    """The text in whole windows as each subject's tokens, by the tokenizers alone."""
    text = read_text(Path(job.text))[: 16 * job.tokens]
    found = []
    for subject in job.subjects:
        ids = encoded(tokenizer_of(subject), text)[: job.tokens]
        whole = len(ids) // job.window * job.window
        if not whole:
            raise UsageError("quality.short", path=job.text, tokens=len(ids), window=job.window)
        found.append(ids[:whole])
    if job.versus and any(ids != found[0] for ids in found):
        raise UsageError("quality.other_tokens", path=job.text)
    return found


def _text_figures(
    model: Model, ids: list[int], job: Job, reference: Reference | None, progress: Progress
) -> dict[str, Any]:
    """Perplexity, and how far the distributions are from the reference's, which a first subject lays down."""
    stored = reference.distributions if reference else None
    surprises, divergences, equal, at = 0.0, [], 0, 0
    for first in range(0, len(ids), job.window):
        progress("evaluate", first, len(ids), "tokens")
        window = ids[first : first + job.window]
        for found in model.log_probabilities(window):
            place = at - first
            following = torch.tensor(window[place + 1 : place + 1 + len(found)])
            surprises -= float(found[: len(following)].gather(1, following[:, None]).double().sum())
            if reference is not None and stored is None:
                _lay_down(reference, found, len(ids), at)
            elif stored is not None:
                expected = torch.from_numpy(stored[at : at + len(found)])
                divergences.append((expected.exp() * (expected - found)).double().sum(-1))
                equal += int((expected.argmax(-1) == found.argmax(-1)).sum())
            at += len(found)
    progress("evaluate", len(ids), len(ids), "tokens")
    counted = len(ids) - len(ids) // job.window  # nothing follows a window's last token
    mean = surprises / counted
    figures: dict[str, Any] = {"perplexity": math.exp(mean) if mean < MOST_NATS else mean, "tokens": len(ids)}
    if divergences:
        each = torch.cat(divergences).clamp(min=0)
        figures |= {"kl_divergence": float(each.mean()), "kl_p99": float(each.quantile(0.99)), "top1": equal / len(ids)}
    return figures


def _lay_down(reference: Reference, found: torch.Tensor, count: int, at: int) -> None:
    if at == 0:
        shape = (count, found.shape[1])
        reference.distributions = np.memmap(reference.folder / "distributions", np.float32, "w+", shape=shape)
    assert reference.distributions is not None
    reference.distributions[at : at + len(found)] = found.numpy()


def _layer_figures(model: Model, ids: list[int], reference: Reference) -> dict[str, Any]:
    """Relative errors of the layers' own arithmetic: each is given what it was given in the reference."""
    known = list(reference.layers)
    errors: list[float] = []

    def lay_down(index: int, given: torch.Tensor, found: torch.Tensor) -> None:
        reference.layers.append((given.clone(), found.clone()))

    def compare(index: int, given: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        expected = known[index][1]
        added = expected - known[index][0]  # what the layer contributes, beside the stream that passes through it
        errors.append(float((found - expected).norm() / added.norm().clamp(min=1e-30)))
        return expected  # so that the next layer gets the reference's input

    model.layers(ids[:LAYER_TOKENS], compare if known else lay_down)
    if not errors:
        return {}
    return {"layer_error": {"mean": float(np.mean(errors)), "worst": max(errors)}, "layer_errors": errors}


def _speed(model: Model, ids: list[int], window: int) -> dict[str, float]:
    prefill, decode = model.speed(ids[:window])
    return {"prefill": prefill, "decode": decode}


def _accuracy(model: Model, questions: Sequence[Question], window: int) -> float:
    """Share of the questions whose right choice is the likeliest continuation, by its mean over its tokens."""
    right = 0
    for question in questions:
        scores = [_score(model, question.question, choice, window) for choice in question.choices]
        right += max(range(len(scores)), key=scores.__getitem__) == question.answer
    return right / len(questions)


def _score(model: Model, question: str, choice: str, window: int) -> float:
    """Mean log-probability of the choice's tokens behind the question, whose beginning is left out where both are longer than a
    window."""
    ids = encoded(model.tokenizer, " " + choice.strip())[: window - 1]
    before = encoded(model.tokenizer, question)[len(ids) - window :]
    found = torch.cat(list(model.log_probabilities([*before, *ids])))[-len(ids) - 1 : -1]
    return float(found.gather(1, torch.tensor(ids)[:, None]).mean())
