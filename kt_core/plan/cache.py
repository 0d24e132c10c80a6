"""Decisions on keys and values: their type, how many sequences run together, the bytes for all of them."""

from collections.abc import Mapping
from typing import Any

from kt_core.errors import Unsupported
from kt_core.messages import t
from kt_core.plan import memory
from kt_core.types import Decision, Machine, ModelSpec

# Sequences that decode together share the reading of the weights, until arithmetic takes as long. On 2 busy threads
# (tests/engine/bench_engine.py, the demo, one native call a step) 4 together gave 3.2 times the tokens of one, 8 gave 3.4
# times: past that everyone waits longer and nothing more is computed.
SEQUENCES_PER_THREAD = 4
MOST_SEQUENCES = 512  # tokens of a step, since each sequence has one in it
_USUAL_MOST = 64

# Weights in these formats meet activations in float32: rounded keys would be the largest error by far (whole models are
# within 1e-5 of transformers with float32 pages, 8e-3 with bfloat16 ones). Every other format rounds activations as much.
UNROUNDED = ("F32", "F16")
_GIB = 2**30


def usual_kv_dtype(formats: Mapping[str, int]) -> str:
    """The type of cached keys and values that loses nothing beside the weights' own kernels; `formats` is ModelSpec's."""
    unrounded = sum(size for form, size in formats.items() if form in UNROUNDED)
    return "float32" if 2 * unrounded > sum(formats.values()) else "bfloat16"


def kv_dtype(formats: Mapping[str, int], wishes: Mapping[str, Any]) -> Decision:
    wished = wishes.get("kv_dtype")
    if wished is None:
        usual = usual_kv_dtype(formats)
        return Decision("kv_dtype", usual, t(f"plan.kv_{usual}"), "model")
    if wished not in memory.KV_DTYPES:
        raise Unsupported("plan.kv_dtype_unknown", dtype=wished, known=", ".join(memory.KV_DTYPES))
    return Decision("kv_dtype", wished, t("plan.chosen"), "user")


def check_place(dtype: str, where: Decision) -> None:
    """Raises Unsupported for a type that only GPUs keep, where none is used; `where` is the decision on devices."""
    if dtype in memory.ON_GPUS and not where.value:
        raise Unsupported("plan.kv_dtype_gpu", dtype=dtype, reason=where.reason)


def max_running(threads: int, wished: int | None) -> Decision:
    if wished is not None:
        return Decision("max_running", wished, t("plan.chosen"), "user")
    count = min(SEQUENCES_PER_THREAD * threads, _USUAL_MOST)
    return Decision("max_running", count, t("plan.max_running", each=SEQUENCES_PER_THREAD, most=_USUAL_MOST), "machine")


def cache(
    machine: Machine, spec: ModelSpec, context: int, dtype: str, sequences: int, tokens: int | None = None
) -> Decision:
    """Bytes of the pages: for as many `tokens` as the user wants; else at least one conversation of the whole context, at
    most one for each sequence, and between them half of what is free, since prefixes that nobody uses stay until their
    pages are needed.
    """
    if tokens is not None:
        return Decision("cache", memory.cache_bytes(spec, tokens, dtype), t("plan.chosen"), "user")
    least = memory.cache_bytes(spec, context, dtype)
    half = (machine.memory_available - memory.fixed_bytes(spec)) // 2 if machine.memory_total else least
    count = min(max(least, half), least * sequences)
    key = "plan.cache_one" if count == least else "plan.cache_all" if count == least * sequences else "plan.cache_half"
    tokens = count // memory.token_bytes(spec, dtype)
    reason = t(key, size=f"{count / _GIB:.2f} GiB", tokens=tokens, context=context, sequences=sequences)
    return Decision("cache", count, reason, "machine")
