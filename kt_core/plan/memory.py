"""What a model will take in CPU memory: a sum of parts that a person can check."""

from kt_core.types import ModelSpec

RUNTIME_BYTES = 364 << 20  # Python, torch, transformers and the server; 360 MiB measured after their import
TOKENIZER_BYTES = 1536  # for each token of the vocabulary; 71 MiB measured for 49152 of them, 9 of them for grammars
STEP_TOKENS = 2048  # tokens computed at once, as one native call
ROW_BYTES = 32  # for each token of a step and hidden unit: 26 of Qwen3-30B-A3B, 47 of the demo, whose vectors are short
MOST_ROWS = 256 << 20  # a step has fewer tokens where rows would take more
# While an image goes through a vision part: 4900 patches, the most that the engine lets one have, by 1152 hidden units and
# 4304 inner ones in float32, of which torch holds about four and two at a time.
VISION_ROWS = 256 << 20
PAGE = 64  # tokens of a page of the cache
KV_DTYPES = {"bfloat16": 2, "float32": 4}  # bytes of a number in the cache


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


def parts(spec: ModelSpec) -> dict[str, int]:
    """What does not grow with the context, by name: what a step computes with are its rows."""
    return {
        "weights": weight_bytes(spec),
        "runtime": RUNTIME_BYTES + spec.vocab * TOKENIZER_BYTES,
        "rows": min(STEP_TOKENS * spec.hidden * ROW_BYTES, MOST_ROWS) + (VISION_ROWS if _sees(spec) else 0),
    }


def _sees(spec: ModelSpec) -> bool:
    """Whether images go through it: its own folder holds a vision part of some size, and GGUF files none."""
    return spec.bytes_by_part.get("vision", 0) > 1 << 24


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
