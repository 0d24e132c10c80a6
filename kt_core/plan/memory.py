"""What a model will take in CPU memory: a sum of parts that a person can check."""

from collections.abc import Mapping, Sequence
from typing import Any

from kt_core.models.knowledge import GGUF_METHOD
from kt_core.types import ModelSpec

# Python, torch, transformers and the server with all of their work done: 379 to 390 MiB measured on Zen 4, 400 on Xeons with AMX
RUNTIME_BYTES = 392 << 20
TEMPLATES_BYTES = 44 << 20  # the process that renders chat templates: 40 MiB of its own, and its share of libraries
# For each token of the vocabulary, of which grammars take 200. One made from a GGUF file's lists takes the lists too: 71 to 89
# MiB measured for 49152 tokens; one of a Hugging Face folder is read by its library: 43, and 107 for 151936.
TOKENIZER_BYTES, GGUF_TOKENIZER_BYTES = 1000, 1700
STEP_TOKENS = 2048  # tokens computed at once, as one native call
# For each token of a step, and more for each hidden unit: 53,760 bytes of Qwen3-30B-A3B, 27,204 of the demo.
TOKEN_ROW_BYTES, ROW_BYTES = 16 << 10, 18
MOST_ROWS = 256 << 20  # a step has fewer tokens where rows would take more
# While an image goes through a vision part: 4900 patches, the most that the engine lets one have, by 1152 hidden units and
# 4304 inner ones in float32, of which torch holds about four and two at a time.
VISION_ROWS = 256 << 20
PAGE = 64  # tokens of a page of the cache
KV_DTYPES = {"bfloat16": 2, "float32": 4, "fp8_e4m3": 1}  # bytes of a number in the cache
ON_GPUS = ("fp8_e4m3",)  # of these, those that the CPU's attention does not read


def weight_bytes(spec: ModelSpec) -> int:
    """All weights in their stored form; the file's own pages are cache that the kernel can drop."""
    return sum(spec.bytes_by_part.values())


def token_weight_bytes(spec: ModelSpec) -> int:
    """What one token of text reads of the weights: of the routed experts its own share, of an embedding that is no head too
    a row, of layers that predict further and of vision nothing, of the rest everything."""
    unread: list[str] = [part for part in ("vision", "mtp") if part in spec.bytes_by_part]
    unread += ["embedding"] if {"embedding", "head"} <= spec.bytes_by_part.keys() else []
    experts = spec.bytes_by_part.get("experts", 0)
    used = experts * spec.experts_per_token // spec.experts if spec.experts else experts
    return weight_bytes(spec) - sum(spec.bytes_by_part[part] for part in unread) - experts + used


def parts(spec: ModelSpec, context: int = STEP_TOKENS) -> dict[str, int]:
    """What does not grow with a longer context than a step's tokens, by name: what a step computes with are its rows."""
    rows = min(STEP_TOKENS, context) * (TOKEN_ROW_BYTES + spec.hidden * ROW_BYTES)
    return {
        "weights": weight_bytes(spec),
        "runtime": RUNTIME_BYTES
        + spec.vocab * (GGUF_TOKENIZER_BYTES if spec.method == GGUF_METHOD else TOKENIZER_BYTES),
        "templates": TEMPLATES_BYTES,
        "rows": min(rows, MOST_ROWS) + image_bytes(spec),
    }


def image_bytes(spec: ModelSpec) -> int:
    """What an image takes on its way through the vision part: its own folder holds one of some size, and GGUF files none."""
    return VISION_ROWS if spec.bytes_by_part.get("vision", 0) > 1 << 24 else 0


def by_node(pools: Sequence[Mapping[str, Any]], weights: int) -> dict[int, int]:
    """Weights in each NUMA node's memory, by the threads that read them; a pool without a node is left out."""
    threads = sum(pool["threads"] for pool in pools)
    return {pool["node"]: weights * pool["threads"] // threads for pool in pools if pool["node"] is not None}


def fixed_bytes(spec: ModelSpec) -> int:
    """The sum of these."""
    return sum(parts(spec).values())


def token_bytes(spec: ModelSpec, dtype: str) -> int:
    """Keys and values of a token in all layers, in pages of `dtype`."""
    return max(1, spec.kv_bytes_per_token * KV_DTYPES[dtype] // KV_DTYPES["float32"])


def own_token_bytes(spec: ModelSpec) -> int:
    """The same in transformers' caches: float32, and a second copy of two layers' while they grow."""
    return max(1, -(-spec.kv_bytes_per_token * (spec.layers + 2) // spec.layers))


def cache_bytes(spec: ModelSpec, tokens: int, dtype: str) -> int:
    """Whole pages for one conversation of so many tokens."""
    return -(-tokens // PAGE) * PAGE * token_bytes(spec, dtype)


def predicted_bytes(spec: ModelSpec, context: int, dtype: str) -> int:
    """CPU memory with one conversation of `context` tokens."""
    return fixed_bytes(spec) + cache_bytes(spec, context, dtype)


def largest_context(spec: ModelSpec, available: int, dtype: str) -> int:
    """The longest conversation that fits in `available` bytes, in tokens; 0 when not even a page does."""
    if predicted_bytes(spec, spec.context, dtype) <= available:
        return spec.context
    return max(0, available - fixed_bytes(spec)) // (PAGE * token_bytes(spec, dtype)) * PAGE
