"""Decisions on which GPUs compute, how they share the layers, and how much of their memory kt takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kt_core.errors import Unsupported, UsageError
from kt_core.machine.sizes import parse_size
from kt_core.messages import t
from kt_core.plan.abilities import KINDS, Engine
from kt_core.types import Decision, Gpu, Machine, ModelSpec

_TORCH = {"rocm": "cuda"}  # whose devices torch calls by another kind's name
LEAST_CAPABILITY = 8.0  # of NVIDIA's: the first with bfloat16
# Of what is free on a card: the driver wants a little more now and then
USABLE_SHARE = 0.99
SINGLE, TENSOR, PIPELINE = "single", "tensor", "pipeline"
# Wishes that say nothing without a GPU, but for chunk, which limits the CPU's steps too
WISHES = (
    "gpu_experts", "gpu_experts_ratio", "vram_share", "vram_budget", "placement", "expert_statistics", "moving",
    "prefill_threshold", "chunk", "deferred", "tensor", "pipeline",
)  # fmt: skip


def candidates(machine: Machine, wishes: Mapping[str, Any], engine: Engine) -> tuple[list[tuple[str, Gpu]], str]:
    """(GPUs that may compute, of one model, by the name that torch has for each; why there are none, or none of some).

    Raises UsageError for a wish that names no device, Unsupported for a device that cannot be used.
    """
    wished = str(wishes.get("devices") or "auto").casefold()
    if wished == "cpu":
        return [], t("plan.chosen")
    found, left_out = [], ""
    counts: dict[str, int] = {}
    for gpu in machine.gpus:
        kind = _TORCH.get(gpu.kind, gpu.kind)
        name = f"{kind}:{counts.get(kind, 0)}"
        counts[kind] = counts.get(kind, 0) + 1
        if reason := _unfit(gpu, engine.kinds):
            left_out = reason
        else:
            found.append((name, gpu))
    if wished not in ("auto", *KINDS):
        return _asked_for(wished, found, [name for kind, count in counts.items() for name in _names(kind, count)])
    if wished in KINDS:
        found = [(name, gpu) for name, gpu in found if wished in (gpu.kind, name.partition(":")[0])]
    if wished in KINDS and not found:
        raise Unsupported("gpus.no_such_gpu", device=wished, reason=left_out or t("gpus.no_gpu"))
    models = {gpu.name for _, gpu in found}
    best = max(models, key=lambda model: sum(g.memory for _, g in found if g.name == model), default="")
    if len(models) > 1:
        left_out = t("gpus.others", model=best)
    return [(name, gpu) for name, gpu in found if gpu.name == best], left_out or t("gpus.no_gpu")


def _names(kind: str, count: int) -> list[str]:
    return [f"{kind}:{number}" for number in range(count)]


def _unfit(gpu: Gpu, kinds: Sequence[str]) -> str:
    """Why a GPU cannot compute here; "" where it can."""
    if gpu.kind not in kinds:
        return t("gpus.engine", gpu=gpu.name)
    if not gpu.memory:
        return t("gpus.shared", gpu=gpu.name)
    if gpu.capability and float(gpu.capability) < LEAST_CAPABILITY:
        return t("gpus.old", gpu=gpu.name, capability=gpu.capability, least=f"{LEAST_CAPABILITY:g}")
    return ""


def _asked_for(wished: str, found: list[tuple[str, Gpu]], known: list[str]) -> tuple[list[tuple[str, Gpu]], str]:
    names = [name.strip() for name in wished.split(",")]
    usable = dict(found)
    for name in names:
        if name not in known or names.count(name) > 1:
            raise UsageError("gpus.bad_devices", devices=wished, known=", ".join(["cpu", "cuda", *known]))
        if name not in usable:
            raise Unsupported("gpus.no_such_gpu", device=name, reason=t("gpus.unfit"))
    return [(name, usable[name]) for name in names], t("plan.chosen")


def layout(spec: ModelSpec, count: int, wishes: Mapping[str, Any], engine: Engine) -> Decision:
    """How `count` GPUs share the model: each a part of every layer, or each a run of layers.

    Raises UsageError for a wish that does not go with the count or the model's heads.
    """
    tensor, pipeline = (_positive(name, wishes.get(name)) for name in (TENSOR, PIPELINE))
    if tensor > 1 and pipeline > 1:
        raise UsageError("gpus.two_layouts", tensor=tensor, pipeline=pipeline)
    if count == 1:
        return Decision("layout", SINGLE, t("gpus.layout_single"), "machine")
    if pipeline > 1:
        return Decision("layout", PIPELINE, t("plan.chosen"), "user")
    if not engine.tensor:
        return Decision("layout", PIPELINE, t("gpus.layout_pipeline", count=count), "machine")
    split = spec.heads % count == 0 and spec.kv_heads % count == 0
    latent = any(part.kind == "latent" for part in spec.cache)
    if tensor > 1 and spec.heads % count:
        raise UsageError("gpus.heads", heads=spec.heads, count=count)
    if latent:
        return Decision("layout", PIPELINE, t("gpus.layout_latent", count=count), "model")
    if split or tensor > 1:
        return Decision("layout", TENSOR, t("gpus.layout_tensor", count=count), "user" if tensor > 1 else "model")
    return Decision("layout", PIPELINE, t("gpus.layout_heads", heads=spec.kv_heads, count=count), "model")


def wished_count(wishes: Mapping[str, Any], there: int) -> int | None:
    """How many GPUs the user wants. Raises UsageError where there are fewer."""
    count = max(_positive(name, wishes.get(name)) for name in (TENSOR, PIPELINE))
    if count > there:
        raise UsageError("gpus.few_gpus", count=count, there=there)
    return count if any(wishes.get(name) for name in (TENSOR, PIPELINE)) else None


@dataclass(frozen=True)
class Budget:
    """Bytes of a GPU that kt may take in all, and of these for weights, experts and the cache; where that comes from."""

    whole: int
    lasting: int
    source: str


def budget(gpu: Gpu, wishes: Mapping[str, Any]) -> Budget:
    """SGLang's fraction counts what stays, weights and cache; what a step needs comes on top. kt's own budget counts all.

    Raises UsageError for a wish that is no size and no part.
    """
    whole = int((gpu.free or gpu.memory) * USABLE_SHARE)
    own, share = wishes.get("vram_budget"), wishes.get("vram_share")
    if own is not None:
        size = min(_size(own, gpu.memory), gpu.free or gpu.memory)
        return Budget(size, size, "user")
    if share is not None:
        return Budget(whole, min(whole, _size(share, gpu.memory)), "user")
    return Budget(whole, whole, "machine")


def _size(text: Any, memory: int) -> int:
    """Bytes of a size, or of a part of `memory`."""
    try:
        part = float(text)
        size = int(part * memory) if 0 < part <= 1 else None
    except ValueError:
        size = parse_size(str(text))
    if size is None:
        raise UsageError("gpus.bad_vram", value=text)
    return size


def _positive(name: str, value: Any) -> int:
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError("plan.not_positive", name=name, value=value)
    return value
