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
from kt_core.errors import UsageError
from kt_core.quality.job import Job, Question, read_questions, read_text
from kt_core.quality.model import Model
from kt_core.types import Progress

LAYER_TOKENS = 128  # whose way through the layers is compared


@dataclass
class Reference:
    """The first subject's side: log-probabilities [tokens, vocab] and layers' inputs and outputs [layers, tokens, hidden]."""

    folder: Path
    ids: list[int] = field(default_factory=list)
    distributions: np.memmap[Any, np.dtype[np.float32]] | None = None
    layers: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)


def rows(job: Job, progress: Progress) -> Iterator[dict[str, Any]]:
    """A row for each subject, as soon as it is there.

    name, bytes, perplexity, prefill and decode (tokens/s), accuracy where there are questions; compared with the first:
    kl_divergence (mean, in nats) and kl_p99, top1 (share of equal first choices), layer_error (mean and worst relative
    error of a layer's output for the reference's input) and layer_errors. Raises UsageError for a text that is too short
    or read as other tokens.
    """
    text = read_text(Path(job.text))
    questions = read_questions(Path(job.questions)) if job.questions else ()
    cache = paths.cache_dir()  # what lies in /tmp may be in memory
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="quality-", dir=cache) as folder:
        reference = Reference(Path(folder)) if job.versus else None
        for subject in job.subjects:
            model = Model(subject, job.window, progress)
            ids = _ids(model, text, job)
            row = {"name": subject.files.name, "bytes": sum(Path(file).stat().st_size for file in subject.files.files)}
            row |= _text_figures(model, ids, job, reference, progress)
            if reference is not None:
                row |= _layer_figures(model, ids, reference)
                reference.ids = ids
            row |= _speed(model, ids, job.window)
            if questions:
                row["accuracy"] = _accuracy(model, questions, job.window)
            yield row
            del model


def _ids(model: Model, text: str, job: Job) -> list[int]:
    """Tokens of the text in whole windows."""
    ids = model.ids(text[: 16 * job.tokens])[: job.tokens]
    whole = len(ids) // job.window * job.window
    if not whole:
        raise UsageError("quality.short", path=job.text, tokens=len(ids), window=job.window)
    return ids[:whole]


def _text_figures(
    model: Model, ids: list[int], job: Job, reference: Reference | None, progress: Progress
) -> dict[str, Any]:
    """Perplexity, and how far the distributions are from the reference's, which a first subject lays down."""
    stored = reference.distributions if reference else None
    if stored is not None and reference is not None and ids != reference.ids:
        raise UsageError("quality.other_tokens", path=job.text)
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
    figures: dict[str, Any] = {"perplexity": math.exp(surprises / counted), "tokens": len(ids)}
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
    before = model.ids(question)
    ids = [*before, *model.ids(" " + choice.strip())][-window:]
    count = len(ids) - len(before)
    found = torch.cat(list(model.log_probabilities(ids)))[-count - 1 : -1]
    return float(found.gather(1, torch.tensor(ids[-count:])[:, None]).mean())
