"""What a model will take in CPU memory: a sum of parts that a person can check."""

from kt_core.types import ModelSpec

RUNTIME_BYTES = 400 << 20  # Python, torch and transformers; 330 MiB measured after their import
PREFILL_TOKENS = 512  # tokens computed at once, the engine's step
ACTIVATION_BYTES = 64  # per token of a step and hidden unit: 16 float32 vectors alive at once
PAGE = 64  # tokens of a page of the cache
KV_DTYPES = {"bfloat16": 2, "float32": 4}  # bytes of a number in the cache


def weight_bytes(spec: ModelSpec) -> int:
    """All weights in their stored form; the file's own pages are cache that the kernel can drop."""
    return sum(spec.bytes_by_part.values())


def token_weight_bytes(spec: ModelSpec) -> int:
    """What one token reads of the weights: of the routed experts its own share, of the rest everything."""
    experts = spec.bytes_by_part.get("experts", 0)
    used = experts * spec.experts_per_token // spec.experts if spec.experts else experts
    return weight_bytes(spec) - experts + used


def fixed_bytes(spec: ModelSpec) -> int:
    """What does not grow with the context."""
    return weight_bytes(spec) + RUNTIME_BYTES + PREFILL_TOKENS * spec.hidden * ACTIVATION_BYTES


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
