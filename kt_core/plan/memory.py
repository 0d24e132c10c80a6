"""What a model will take in CPU memory: a sum of parts that a person can check."""

from kt_core.types import ModelSpec

RUNTIME_BYTES = 400 << 20  # Python, torch and transformers; 330 MiB measured after their import
PREFILL_TOKENS = 512  # tokens computed at once, the engine's chunk
ACTIVATION_BYTES = 64  # per token of a chunk and hidden unit: 16 float32 vectors alive at once


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


def token_bytes(spec: ModelSpec) -> int:
    """Per token of context: the cache of all layers, and a second copy of two layers' while it grows."""
    return -(-spec.kv_bytes_per_token * (spec.layers + 2) // spec.layers)


def predicted_bytes(spec: ModelSpec, context: int) -> int:
    """CPU memory with a conversation of `context` tokens."""
    return fixed_bytes(spec) + token_bytes(spec) * context


def largest_context(spec: ModelSpec, available: int) -> int:
    """The longest conversation that fits in `available` bytes, in tokens; 0 when the weights alone do not."""
    return min(spec.context, max(0, available - fixed_bytes(spec)) // max(1, token_bytes(spec)))
