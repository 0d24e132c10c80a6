"""How good a model is on data: loss on answers, likeness of what it writes, right choices; with an adapter, base and adapter."""

import importlib.util
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kt_core import lora as stored
from kt_core import models
from kt_core.engine.tokenizer import end_tokens, load_tokenizer
from kt_core.errors import EnvironmentProblem
from kt_core.events import Events
from kt_core.messages import t
from kt_core.train import adapter, described, lora, session
from kt_core.train.data import Choice, Sample, load, load_choices
from kt_core.train.encode import IGNORED, Encoded, collate, encode, encode_all, prompt_of
from kt_core.train.settings import Settings

Progress = Callable[[int, int], None]
WORD = re.compile(r"[\u3400-\u9fff]|[^\W_]+")  # a Chinese character is a word of its own


def evaluate(s: Settings, kind: str, most: int, events: Events) -> None:
    """Measure `kind`, one of settings.MEASURES, on `dataset`, and tell it: "measured", by "base" and "adapter", or "model".

    `most`: tokens that an answer may have. Raises KTError; EnvironmentProblem for a package that a measure needs.
    """
    session.set_threads(s)
    for package in {"text": ("sacrebleu", "rouge_score")}.get(kind, ()):
        if importlib.util.find_spec(package) is None:
            raise EnvironmentProblem("train.needs_eval", package=package)
    files = models.resolve(s.model_name_or_path)
    tokenizer = load_tokenizer(files)
    folder = Path(s.adapter_name_or_path) if s.adapter_name_or_path else None
    facts = described.facts(folder) if folder else {}
    tokenizer.chat_template = facts.get("template") or tokenizer.chat_template
    session.use_template(tokenizer, s.template)
    samples: Any = (load_choices if kind == "choice" else load)(s.dataset, s.dataset_dir, s.max_samples)
    model = session.frozen(s, files, events)
    if folder:
        attach(model, folder, s.keep_activations)

    def measured(name: str) -> dict[str, float]:
        def told(done: int, total: int) -> None:
            events.progress(t("train.measuring", name=name), done, total, t("train.samples"))

        with torch.inference_mode():
            if kind == "loss":
                return loss(model, encode_all(samples, tokenizer, s.cutoff_len, False)[0], told)
            if kind == "choice":
                return choices(model, samples, tokenizer, told)
            ends = sorted(end_tokens(files, tokenizer))
            return text(model, samples, tokenizer, ends, most, told)

    found = {}
    if folder:
        with lora.switched_off(model):
            found["base"] = measured("base")
    found["adapter" if folder else "model"] = measured("adapter" if folder else "model")
    events.emit("measured", kind=kind, samples=len(samples), results=found)


def attach(model: nn.Module, folder: Path, keep: bool = True) -> None:
    """The adapter of a folder, whoever wrote it, on a frozen model; layers that it leaves out get none. Raises BadData, NotFound."""
    found = stored.read(folder)
    kinds = {path.rpartition(".")[2] for path in found.linears} | ({lora.EXPERTS} if found.experts else set())
    lora.adapt(model, sorted(kinds), lora.Shape(adapter.rank_of(found), 1.0, 0.0, keep))
    adapter.fill(model, found, 1.0)


def loss(model: nn.Module, rows: Sequence[Encoded], told: Progress) -> dict[str, float]:
    """Mean over all answers' tokens, and the perplexity that it stands for."""
    total, count = 0.0, 0
    for done, row in enumerate(rows):
        told(done, len(rows))
        number = sum(label != IGNORED for label in row.labels[1:])
        total += model(**collate([row], 0)).loss.item() * number
        count += number
    return {"loss": total / count, "perplexity": math.exp(min(total / count, 700.0)), "tokens": count}


def choices(model: nn.Module, asked: Sequence[Choice], tokenizer: Any, told: Progress) -> dict[str, float]:
    """The share of questions whose right answer is the likeliest, by the token."""
    right = 0
    for done, choice in enumerate(asked):
        told(done, len(asked))
        rows = [encode(sample, tokenizer, last=True) for sample in choice.samples]
        losses = [model(**collate([row], 0)).loss.item() for row in rows]
        right += losses.index(min(losses)) == choice.right
    return {"accuracy": right / len(asked)}


def text(
    model: Any, samples: Sequence[Sample], tokenizer: Any, ends: list[int], most: int, told: Progress
) -> dict[str, float]:
    """BLEU of 1 to 4 words over all answers, and ROUGE's mean F, of what the model writes greedily; 0 to 100."""
    written, wanted = [], []
    for done, sample in enumerate(samples):
        told(done, len(samples))
        prompt, answer = prompt_of(sample, tokenizer)
        ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
        out = model.generate(
            ids, max_new_tokens=most, do_sample=False, eos_token_id=ends, pad_token_id=ends[0] if ends else 0,
            attention_mask=torch.ones_like(ids), use_cache=True,
        )  # fmt: skip
        written.append(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True).strip())
        wanted.append(answer.strip())
    return likeness(written, wanted)


def likeness(written: Sequence[str], wanted: Sequence[str]) -> dict[str, float]:
    """As `text` says, of texts."""
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics import BLEU

    scores: dict[str, float] = {}
    hypotheses, references = ([" ".join(words(line)) for line in lines] for lines in (written, wanted))
    for order in range(1, 5):
        bleu = BLEU(max_ngram_order=order, tokenize="none", force=True)
        scores[f"bleu-{order}"] = float(bleu.corpus_score(hypotheses, [references]).score)
    kinds = ("rouge1", "rouge2", "rougeL")
    scorer = RougeScorer(kinds, tokenizer=_Words())
    found = [scorer.score(want, have) for want, have in zip(wanted, written, strict=True)]
    for kind in kinds:
        scores[kind] = 100 * sum(score[kind].fmeasure for score in found) / len(found)
    return scores


def words(line: str) -> list[str]:
    return WORD.findall(line.lower())


class _Words:
    """As rouge_score takes a tokenizer."""

    def tokenize(self, line: str) -> list[str]:
        return words(line)
