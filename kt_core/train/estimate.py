"""What a run will take, from headers and settings alone."""

import math
from dataclasses import dataclass

from kt_core.errors import DoesNotFit
from kt_core.train.settings import Settings
from kt_core.types import Machine, MachineProfile, ModelSpec

SCRATCH = 1 << 30  # of the kernels and of torch, for a call
STATE = 16  # bytes of a trained number: itself, its gradient and AdamW's two moments, float32
RUNTIME = 600 << 20  # Python and torch
WIDE = ("F32", "F16")  # expert formats that are rounded to BF16
# A process with a GPU: its driver, pinned memory and data workers on the host; on the GPU, context, communication and what
# the allocator keeps. From the two published runs of KTransformers' cookbook, which tests/train/test_settings.py compares.
GPU_HOST, GPU_OWN = 6 << 30, 9 << 29
LOGITS = 12  # bytes of a logit: bfloat16, float32, and the gradients of both
# Of the arithmetic peak, what training reaches: 60 % of bfloat16's in the experts, and about half in torch.
EXPERTS_SHARE, TORCH_SHARE = 0.6, 0.5


@dataclass(frozen=True)
class Processes:
    """How many processes a run has, and whether each has a GPU for all but the experts."""

    count: int = 1
    gpu: bool = False


ONE = Processes()


def memory(spec: ModelSpec, s: Settings, run: Processes = ONE) -> dict[str, int]:
    """Bytes of the host by part, at the peak: experts as they are stored, once, other weights, which every process reads as
    float32, what is trained with its optimizer state (of an adapter that of the experts: that of linear layers is small beside it),
    activations, and what programs take.
    """
    experts = spec.bytes_by_part.get("experts", 0)
    if set(spec.formats) <= set(WIDE):
        experts = min(experts, 2 * spec.parameters_by_part.get("experts", experts))
    others = _others(spec)
    adapted = 3 * spec.moe_layers * spec.experts * s.lora_rank * (spec.hidden + spec.expert_width)
    return {
        "experts": experts,
        "weights": 4 * others * run.count,
        **_trained(spec, s, adapted, others),
        "activations": (0 if run.gpu else run.count * activations(spec, s)) + _kept(spec, s, run) + SCRATCH,
        "runtime": (GPU_HOST if run.gpu else RUNTIME) * run.count,
    }


def gpu_memory(spec: ModelSpec, s: Settings, run: Processes) -> int:
    """Bytes that each GPU needs: its share of the other weights in float32, embedding and head whole in bfloat16, logits,
    activations, its programs' own, and experts that are kept there, in bfloat16."""
    ends = sum(spec.parameters_by_part.get(part, 0) for part in ("embedding", "head"))
    logits = LOGITS * s.per_device_train_batch_size * s.cutoff_len * spec.vocab
    kept = min(1.0, (s.kt_config.get("kt_num_gpu_experts") or 0) / max(1, spec.experts))
    experts = int(2 * kept * spec.parameters_by_part.get("experts", 0))
    return 4 * _others(spec) // run.count + 2 * ends + logits + activations(spec, s) + GPU_OWN + experts


def _others(spec: ModelSpec) -> int:
    return sum(count for part, count in spec.parameters_by_part.items() if part not in ("experts", "mtp", "vision"))


def activations(spec: ModelSpec, s: Settings) -> int:
    """Of one process's batch: with checkpoints every layer's input, and what one layer keeps."""
    item = 2 if s.bf16 else 4
    tokens = s.per_device_train_batch_size * s.cutoff_len
    layer = tokens * (item * 12 * spec.hidden + 4 * spec.experts_per_token * spec.expert_width)
    inputs = tokens * item * spec.hidden * spec.layers
    return layer * spec.layers if s.disable_gradient_checkpointing else inputs + layer


def _kept(spec: ModelSpec, s: Settings, run: Processes) -> int:
    """Of the experts, on the host: with checkpoints, what would be computed again on the way back."""
    if s.disable_gradient_checkpointing or not s.keep_activations or run.count > 1:
        return 0
    tokens = s.per_device_train_batch_size * s.cutoff_len
    return tokens * spec.moe_layers * (4 * spec.experts_per_token * spec.expert_width + 2 * 2 * spec.hidden)


def seconds(spec: ModelSpec, s: Settings, tokens: int, profile: MachineProfile | None, threads: int) -> float | None:
    """What so many tokens take on the CPU, by its measured arithmetic rates; None where there are none.

    A weight costs a token two operations forward, two back to the input, two more where the layer is run again, and two for a
    gradient of its own.
    """
    if profile is None:
        return None
    unit = next((unit for unit in ("tile_bf16", "bf16", "f32") if profile.unit_rates.get(unit)), None)
    if unit is None:
        return None
    rates = profile.unit_rates[unit]
    rate = rates[min(rates, key=lambda measured: abs(measured - threads))]
    work = 4 + 2 * (not s.disable_gradient_checkpointing) + 2 * (s.finetuning_type != "lora")
    used = spec.experts_per_token / spec.experts if spec.experts else 0.0
    experts = spec.parameters_by_part.get("experts", 0) * used
    others = _others(spec) - spec.parameters_by_part.get("embedding", 0)
    return tokens * work * (experts / EXPERTS_SHARE + others / TORCH_SHARE) / rate


def _trained(spec: ModelSpec, s: Settings, adapted: int, others: int) -> dict[str, int]:
    """Where whole weights are trained, experts are there a second time, in float32."""
    if s.finetuning_type == "lora":
        return {"adapter": STATE * adapted}
    experts, share = spec.parameters_by_part.get("experts", 0), 1.0
    if s.finetuning_type == "freeze":
        share = min(1.0, abs(s.freeze_trainable_layers) / max(1, spec.layers))
    return {"trained": int(share * (STATE * experts + (STATE - 4) * others))}  # others are there as float32


def steps(rows: int, s: Settings) -> int:
    """Optimizer steps of a run over so many rows."""
    if s.max_steps > 0:
        return s.max_steps
    batches = math.ceil(rows / s.per_device_train_batch_size)
    return math.ceil(max(1, batches // s.gradient_accumulation_steps) * s.num_train_epochs)


def check(spec: ModelSpec, s: Settings, machine: Machine, run: Processes = ONE) -> dict[str, int]:
    """`memory`, which the machine has. Raises DoesNotFit, with the numbers."""
    parts = memory(spec, s, run)
    total, limit = sum(parts.values()), machine.memory_total
    if limit and total > limit:
        gib = [f"{n / 2**30:.1f}" for n in (total, limit, parts["experts"])]
        raise DoesNotFit("train.too_big", needed=gib[0], limit=gib[1], experts=gib[2])
    return parts
