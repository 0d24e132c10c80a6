"""What a run will take, from headers and settings alone."""

import math

from kt_core.errors import DoesNotFit
from kt_core.train.settings import Settings
from kt_core.types import Machine, ModelSpec

SCRATCH = 1 << 30  # of the kernels and of torch, for a call
STATE = 16  # bytes of a trained number: itself, its gradient and AdamW's two moments, float32
RUNTIME = 600 << 20  # Python and torch
WIDE = ("F32", "F16")  # expert formats that are rounded to BF16


def memory(spec: ModelSpec, s: Settings) -> dict[str, int]:
    """Bytes by part: experts as they are stored, other weights in torch's type, adapter of the experts with its optimizer
    state (that of linear layers is small beside it), activations, and what programs take.
    """
    item = 2 if s.bf16 else 4
    experts = spec.bytes_by_part.get("experts", 0)
    if set(spec.formats) <= set(WIDE):
        experts = min(experts, 2 * spec.parameters_by_part.get("experts", experts))
    others = sum(count for part, count in spec.parameters_by_part.items() if part not in ("experts", "mtp", "vision"))
    trained = 3 * spec.moe_layers * spec.experts * s.lora_rank * (spec.hidden + spec.expert_width)
    tokens = s.per_device_train_batch_size * s.cutoff_len
    layer = tokens * (item * 12 * spec.hidden + 4 * spec.experts_per_token * spec.expert_width)
    inputs = tokens * item * spec.hidden * spec.layers
    activations = layer * spec.layers if s.disable_gradient_checkpointing else inputs + layer
    return {
        "experts": experts,
        "weights": item * others,
        "adapter": STATE * trained,
        "activations": activations + SCRATCH,
        "runtime": RUNTIME,
    }


def steps(rows: int, s: Settings) -> int:
    """Optimizer steps of a run over so many rows."""
    if s.max_steps > 0:
        return s.max_steps
    batches = math.ceil(rows / s.per_device_train_batch_size)
    return math.ceil(max(1, batches // s.gradient_accumulation_steps) * s.num_train_epochs)


def check(spec: ModelSpec, s: Settings, machine: Machine) -> dict[str, int]:
    """`memory`, which the machine has. Raises DoesNotFit, with the numbers."""
    parts = memory(spec, s)
    total, limit = sum(parts.values()), machine.memory_total
    if limit and total > limit:
        gib = [f"{n / 2**30:.1f}" for n in (total, limit, parts["experts"])]
        raise DoesNotFit("train.too_big", needed=gib[0], limit=gib[1], experts=gib[2])
    return parts
