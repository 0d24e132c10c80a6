"""From samples to token ids and labels: the model's chat template, loss on answers, packing, and a report."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jinja2 import TemplateError

from kt_core.errors import BadData, Unsupported
from kt_core.messages import t
from kt_core.train.data import Sample

IGNORED = -100  # the label that no loss is taken of


@dataclass(frozen=True)
class Encoded:
    """Token ids, and labels: the id where loss is taken, else IGNORED. `starts` are where packed samples begin."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]
    starts: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Report:
    """What training will see. `longest` and `cut` are of samples before they were cut; `kept` is a share of tokens."""

    samples: int
    dropped: int
    cut: int
    longest: int
    rows: int
    tokens: int
    kept: float

    def text(self) -> str:
        return t(
            "train.report", samples=self.samples, dropped=self.dropped, cut=self.cut, longest=self.longest,
            rows=self.rows, tokens=self.tokens, kept=100 * self.kept,
        )  # fmt: skip


def encode_all(
    samples: Sequence[Sample], tokenizer: Any, longest: int, packing: bool, prompts: bool = False
) -> tuple[list[Encoded], Report]:
    """Every sample, cut to `longest` tokens; with `packing` several to a row. `prompts`: loss on all tokens.

    Samples of which no label is left are dropped. Raises what `encode` raises, BadData where nothing is left.
    """
    encoded = [encode(sample, tokenizer, prompts) for sample in samples]
    cut = [Encoded(e.ids[:longest], e.labels[:longest]) for e in encoded]
    kept = [e for e in cut if any(label != IGNORED for label in e.labels[1:])]
    if not kept:
        raise BadData("train.nothing_left", samples=len(samples), longest=longest)
    rows = pack(kept, longest) if packing else kept
    tokens = sum(len(row.ids) for row in rows)
    labels = sum(label != IGNORED for row in rows for label in row.labels)
    report = Report(
        samples=len(samples),
        dropped=len(samples) - len(kept),
        cut=sum(len(e.ids) > longest for e in encoded),
        longest=max(len(e.ids) for e in encoded),
        rows=len(rows),
        tokens=tokens,
        kept=labels / tokens,
    )
    return rows, report


def encode(sample: Sample, tokenizer: Any, prompts: bool = False, last: bool = False) -> Encoded:
    """One sample whole; `last`: loss on its last answer alone. Raises Unsupported without a chat template, BadData for what the template refuses."""
    if sample.text is not None:
        ids = tokenizer(sample.text, add_special_tokens=True)["input_ids"]
        if tokenizer.eos_token_id is not None and ids[-1:] != [tokenizer.eos_token_id]:
            ids.append(tokenizer.eos_token_id)
        return Encoded(tuple(ids), tuple(ids))
    text, spans = answers(sample, tokenizer)
    spans = spans[-1:] if last else spans
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids = found["input_ids"]
    if prompts:
        return Encoded(tuple(ids), tuple(ids))
    inside = [any(begin <= first and last <= end for begin, end in spans) for first, last in found["offset_mapping"]]
    labels = tuple(token if answer else IGNORED for token, answer in zip(ids, inside, strict=True))
    return Encoded(tuple(ids), labels)


def answers(sample: Sample, tokenizer: Any) -> tuple[str, list[tuple[int, int]]]:
    """The conversation as the template writes it, and where its answers stand, from the first character that the model
    writes to the end of the turn.

    Some templates write an earlier answer otherwise once others follow (they drop its reasoning): such a turn is what
    the model never writes, and gets no loss. The last answer must be there.
    """
    whole = _rendered(sample, tokenizer, len(sample.messages), False)
    spans = []
    for number, message in enumerate(sample.messages):
        if message["role"] != "assistant":
            continue
        before = _rendered(sample, tokenizer, number, True)
        after = _rendered(sample, tokenizer, number + 1, False)
        if whole.startswith(after) and after.startswith(before):
            spans.append((len(before), len(after)))
        elif number + 1 == len(sample.messages):
            raise BadData("train.template_order")
    return whole, spans


def prompt_of(sample: Sample, tokenizer: Any) -> tuple[str, str]:
    """What the model is given to write the last answer, and that answer. Raises as `encode` does."""
    if sample.text is not None:
        return "", sample.text
    return _rendered(sample, tokenizer, len(sample.messages) - 1, True), sample.messages[-1]["content"]


def pack(encoded: Sequence[Encoded], longest: int) -> list[Encoded]:
    """Samples one after the other in rows of at most `longest` tokens, each in the first row with room, long ones first.

    A sample's first token is no target, so nothing is learnt across the border of two.
    """
    rows: list[list[Encoded]] = []
    room: list[int] = []
    for sample in sorted(encoded, key=lambda e: len(e.ids), reverse=True):
        at = next((i for i, left in enumerate(room) if left >= len(sample.ids)), len(rows))
        if at == len(rows):
            rows.append([])
            room.append(longest)
        rows[at].append(sample)
        room[at] -= len(sample.ids)
    return [_joined(row) for row in rows]


def _joined(row: Sequence[Encoded]) -> Encoded:
    starts, at = [], 0
    for sample in row:
        starts += [at + start for start in sample.starts]
        at += len(sample.ids)
    labels = (label for sample in row for label in (IGNORED, *sample.labels[1:]))
    return Encoded(tuple(i for sample in row for i in sample.ids), tuple(labels), tuple(starts))


def collate(rows: Sequence[Encoded], filler: int) -> dict[str, torch.Tensor]:
    """A batch for a transformers model: padded rows with a mask, or, where samples are packed, one long row whose
    position ids begin anew at every sample, from which transformers makes the attention's mask.
    """
    if any(len(row.starts) > 1 for row in rows):
        whole = _joined(rows)
        positions = [i for first, end in pairwise([*whole.starts, len(whole.ids)]) for i in range(end - first)]
        return {
            "input_ids": torch.tensor([whole.ids]),
            "labels": torch.tensor([whole.labels]),
            "position_ids": torch.tensor([positions]),
        }
    width = max(len(row.ids) for row in rows)
    pads = [width - len(row.ids) for row in rows]
    return {
        "input_ids": torch.tensor([[*row.ids, *[filler] * pad] for row, pad in zip(rows, pads, strict=True)]),
        "labels": torch.tensor([[*row.labels, *[IGNORED] * pad] for row, pad in zip(rows, pads, strict=True)]),
        "attention_mask": torch.tensor([[1] * (width - pad) + [0] * pad for pad in pads]),
    }


def _rendered(sample: Sample, tokenizer: Any, count: int, prompt: bool) -> str:
    if not tokenizer.chat_template:
        raise Unsupported("train.no_template")
    try:
        text: str = tokenizer.apply_chat_template(
            list(sample.messages[:count]),
            tools=list(sample.tools) or None,
            add_generation_prompt=prompt,
            tokenize=False,
        )
    except (TemplateError, TypeError, ValueError) as error:
        raise BadData("train.template_refused", reason=" ".join(str(error).split())) from error
    return text
