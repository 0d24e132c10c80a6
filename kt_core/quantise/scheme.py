"""Which weight gets which method."""

import re
from collections.abc import Iterable

from kt_core.formats import FORMATS
from kt_core.quantise.job import ALL, EXPERTS, KEEP, OTHER, TYPES, Job, Override
from kt_core.quantise.methods import Scheme, fp8
from kt_core.quantise.source import OUTSIDE, Weight, is_plain

GROUP = 32  # what kernels take: rows of a multiple of it
LAYER_PARTS = ("experts", "shared", "dense", "attention")
_PARTS = {ALL: LAYER_PARTS, EXPERTS: ("experts",), OTHER: ("shared", "dense", "attention")}
_SUPER = 256  # weights of a K-quant's block
_FALLBACK = {
    "Q4_K": "Q4_1",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
    "IQ4_K": "Q4_1",
}  # for rows that are no whole number of such blocks
_GGUF = {"Q4_K_M": "Q4_K", "Q5_K_M": "Q5_K", "GGUF_BF16": "BF16"}
_MIXED = ("Q4_K_M", "Q5_K_M", "IQ4_K", "Q4_1")  # some tensors, whose errors weigh more, get Q6_K
_SENSITIVE = re.compile(r"\.(attn_v|ffn_down|ffn_down_exps|ffn_down_shexp)\.weight$")


def of_folder(weight: Weight, job: Job) -> Scheme | None:
    """The scheme of a weight in a Hugging Face folder; None for what stays in its stored form.

    A quantised weight that no method takes keeps its FP8 numbers and scales; of any other form it becomes bfloat16: a folder
    has one way of describing what is quantised.
    """
    kept = None if is_plain(weight.format) else fp8.same(weight.format, weight.rows, weight.cols) or Scheme("bf16")
    if not weight.name.endswith(".weight") or len(weight.shape) != 2:
        return None if is_plain(weight.format) else Scheme("bf16")
    method, group = job.method if weight.part in _PARTS[job.only] else KEEP, job.group
    for override in job.overrides:
        if _rules(override, weight, gguf=False):
            method, group = override.method, override.group or job.group
            break
    if method == KEEP or weight.cols % GROUP:
        return kept
    if method == "bf16":
        return None if weight.format == "BF16" else Scheme("bf16")
    if method == "int4":
        size = next(size for size in (group, 64, 32) if size <= group and weight.cols % size == 0)
        return Scheme("int4", size, job.zero_point)
    if method == "fp8":
        same = fp8.same(weight.format, weight.rows, weight.cols)
        return same or Scheme("fp8", fp8.BLOCK if weight.rows % fp8.BLOCK == weight.cols % fp8.BLOCK == 0 else 0)
    return Scheme(method)


def idle(job: Job, weights: Iterable[Weight]) -> list[str]:
    """Expressions of overrides that find no weight which they could change."""
    listed = list(weights)
    return [
        override.pattern
        for override in job.overrides
        if not any(_rules(override, weight, job.gguf) for weight in listed)
    ]


def _rules(override: Override, weight: Weight, gguf: bool) -> bool:
    taken = _is_matrix(weight) if gguf else len(weight.shape) == 2 and weight.part in (*LAYER_PARTS, "head")
    return taken and re.search(override.pattern, weight.name) is not None


def _is_matrix(weight: Weight) -> bool:
    return len(weight.shape) in (2, 3) and weight.part != "other" and weight.name.endswith(".weight")


def of_gguf(weight: Weight, job: Job, layers: int, tied: bool) -> str:
    """The type of a tensor in a GGUF file; "" for one whose bytes are right as they are."""
    kind = _type(weight, job, layers, tied)
    if kind != weight.format:
        return kind
    if weight.order is None:
        return ""
    return kind if kind in TYPES else "F32"  # rows that change their places are written anew


def _type(weight: Weight, job: Job, layers: int, tied: bool) -> str:
    if not _is_matrix(weight):
        return "F32"
    for override in job.overrides:
        if _rules(override, weight, gguf=True):
            return _kept(weight) if override.method == KEEP else _fitting(override.method, weight)
    if weight.part in LAYER_PARTS and weight.part not in _PARTS[job.only]:
        return _kept(weight)
    kind = _GGUF.get(job.method, job.method)
    if job.method in _MIXED and (
        weight.part == "head"
        or (weight.part == "embedding" and tied)
        or (_SENSITIVE.search(weight.name) and _needs_more(weight.layer, layers))
    ):
        kind = "Q6_K"
    return _fitting(kind, weight)


def _kept(weight: Weight) -> str:
    """The form that it is stored in, where GGUF has it too; else bfloat16."""
    known = weight.format in FORMATS and FORMATS[weight.format].ggml_id is not None
    return weight.format if known else "BF16"


def _needs_more(layer: int, layers: int) -> bool:
    """The first and the last eighth of the layers, and every third between them."""
    eighth = layers // 8
    return layer != OUTSIDE and (layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2)


def _fitting(kind: str, weight: Weight) -> str:
    if kind in _FALLBACK and weight.cols % _SUPER:
        kind = _FALLBACK[kind]
    return kind if kind in ("F32", "BF16") or weight.cols % GROUP == 0 else "BF16"
