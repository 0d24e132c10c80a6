"""How a model lies on GPUs and CPU together: what every token needs on the GPUs, then the conversation, then as many of the
routed experts as there is room for; the other experts stay in the CPU's memory. Pure functions."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kt_core.errors import DoesNotFit, UsageError
from kt_core.messages import t
from kt_core.models.cache import cache_numbers
from kt_core.plan import devices, memory, streaming
from kt_core.plan.abilities import WHOLE, Engine
from kt_core.plan.devices import Budget
from kt_core.plan.streaming import Link
from kt_core.types import Decision, Gpu, Machine, ModelSpec

# Parts that every token goes through, but the embedding, of which it takes a row; a head that is the embedding counts as it
RESIDENT = ("attention", "shared", "dense", "head", "vision", "other")
RUNTIME_BYTES = 640 << 20  # of a GPU: its context and the libraries' work space, 0.3 to 0.6 GB as reported, and graphs
# Of all that torch hands out, what it holds beside: 3 to 6 % on an H200, with segments that grow
KEPT = 0.04
CHUNK = 2048  # tokens of a prompt step, as on the CPU
STREAMED_CHUNK = 4096  # where layers are streamed: the more tokens, the less the copies count
MOST_CHUNK = 65536
ROW_NUMBERS = 16  # vectors as wide as the hidden state that a token of a step takes on a GPU
DYNAMIC = "dynamic"  # the CPU has all experts, and those on the GPU change
PLACEMENTS = ("uniform", "frequency", "front-loading", "random", DYNAMIC)
_GIB = 2**30


@dataclass(frozen=True)
class Placed:
    """A model on GPUs. `parts`: device -> what lies there, by name; `moved` are stored bytes that the CPU does not hold."""

    names: tuple[str, ...]
    gpus: tuple[Gpu, ...]
    decisions: list[Decision]
    context: Decision
    cache: Decision
    parts: dict[str, dict[str, int]]
    moved: int
    experts: int
    engine: Engine = WHOLE

    def value(self, name: str) -> Any:
        """The value of one of the decisions."""
        return next(decision.value for decision in self.decisions if decision.name == name)

    @property
    def device_bytes(self) -> dict[str, int]:
        return {name: sum(parts.values()) for name, parts in self.parts.items()}


@dataclass(frozen=True)
class Room:
    """One of `count` like GPUs: the bytes it has, and what lies on it. `share` is its part of all layers' weights."""

    spec: ModelSpec
    dtype: str
    budget: Budget
    count: int
    layout: str
    chunk: int
    streams: bool = False
    engine: Engine = WHOLE

    @property
    def share(self) -> float:
        if self.layout == devices.PIPELINE:
            return -(-self.spec.layers // self.count) / self.spec.layers
        return 1 / self.count

    @property
    def weights(self) -> int:
        return int(resident_bytes(self.spec, self.engine) * self.share)

    @property
    def rows(self) -> int:
        spec = self.spec
        rows = 2 * self.chunk * (ROW_NUMBERS * spec.hidden + 4 * spec.experts_per_token * spec.expert_width)
        return max(rows, self.engine.work - RUNTIME_BYTES) + memory.image_bytes(spec)

    @property
    def layer(self) -> int:
        """All experts of a layer, for streamed prompts; GPUs that share layers share this one."""
        part = 1 / self.count if self.layout == devices.TENSOR else 1.0
        stored = self.spec.bytes_by_part.get("experts", 0) / max(1, moe_layers(self.spec))
        plain = 2 * self.spec.parameters_by_part.get("experts", 0) / max(1, moe_layers(self.spec))
        packed, decoded = self.engine.layers
        return int((packed * stored + decoded * plain) * part) if self.streams else 0

    @property
    def row_of_experts(self) -> int:
        """One expert of each layer that this GPU has."""
        return int(expert_bytes(self.spec, self.engine) * moe_layers(self.spec) * self.share)

    @property
    def left(self) -> int:
        """For the cache and the experts."""
        return min(self.budget.lasting, int(self.budget.whole / (1 + KEPT)) - self.passing) - self.weights

    @property
    def passing(self) -> int:
        """What steps need beside what stays."""
        return self.rows + self.layer + RUNTIME_BYTES

    def cache(self, tokens: int) -> int:
        part = self.share if self.layout == devices.PIPELINE else 1 / self.count
        return int(cache_bytes(self.spec, tokens, self.dtype) * part)

    def parts(self, tokens: int, experts: int, moving: bool = False) -> dict[str, int]:
        """What lies there, by name, with so many experts of each layer, which may be others later."""
        streamed = 1 - (0 if moving or not self.engine.embedding else experts / max(1, self.spec.experts))
        held = {"weights": self.weights, "experts": experts * self.row_of_experts, "cache": self.cache(tokens)}
        held |= {"layer": int(self.layer * streamed)} if self.layer else {}
        return held | {"rows": self.rows + int(KEPT * sum(held.values())), "runtime": RUNTIME_BYTES}


@dataclass(frozen=True)
class Wanted:
    """What the user chose: None is no choice."""

    context: int | None = None
    cache_tokens: int | None = None
    force: bool = False
    wishes: Mapping[str, Any] = field(default_factory=dict)
    engine: Engine = WHOLE


def moe_layers(spec: ModelSpec) -> int:
    return spec.moe_layers or (spec.layers if spec.experts else 0)


def part_bytes(spec: ModelSpec, part: str, engine: Engine = WHOLE) -> int:
    """A part of a model as a GPU holds it: in its stored form where GPUs compute with that, else in bfloat16."""
    stored, count = spec.bytes_by_part.get(part, 0), spec.parameters_by_part.get(part, 0)
    plain = 2 * count or stored
    return min(stored, plain) if as_stored(spec, part, engine) else plain


def as_stored(spec: ModelSpec, part: str, engine: Engine) -> bool:
    """Whether a GPU computes with that part of a model as it is stored."""
    return spec.method in engine.stored or (part == "experts" and streaming.form(spec) in engine.packed)


def expert_bytes(spec: ModelSpec, engine: Engine = WHOLE) -> float:
    """One routed expert of one layer on a GPU."""
    return part_bytes(spec, "experts", engine) / max(1, moe_layers(spec) * spec.experts)


def resident(spec: ModelSpec, engine: Engine) -> tuple[str, ...]:
    """The parts of a model that lie on GPUs whole."""
    ends = engine.embedding or "head" not in spec.bytes_by_part
    return (*RESIDENT, "embedding") if ends else RESIDENT


def resident_bytes(spec: ModelSpec, engine: Engine = WHOLE) -> int:
    return sum(part_bytes(spec, part, engine) for part in resident(spec, engine))


def cache_bytes(spec: ModelSpec, tokens: int, dtype: str) -> int:
    """Keys and values, latents and states of so many tokens, by the kind of each layer's attention."""
    if not spec.cache:
        return memory.cache_bytes(spec, tokens, dtype)
    return cache_numbers(spec.cache, -(-tokens // memory.PAGE) * memory.PAGE) * memory.KV_DTYPES[dtype]


def place(
    machine: Machine, spec: ModelSpec, dtype: str, wanted: Wanted, link: Link | None
) -> tuple[Decision, Placed | None]:
    """(the decision on devices, how the model lies on them; None: it computes on the CPU alone). `link`: what is known of
    speeds, for the threshold of streamed prompts.

    Raises DoesNotFit where the user's own devices, context or experts leave no room, UsageError and Unsupported for wishes
    that make no sense.
    """
    wishes = wanted.wishes
    found, reason = devices.candidates(machine, wishes, wanted.engine)
    if not found:
        return Decision("devices", [], _without(reason, wishes), "user" if wishes.get("devices") else "machine"), None
    several = "," in str(wishes.get("devices") or "") or max(wishes.get("pipeline") or 1, wishes.get("tensor") or 1) > 1
    found = found[: wanted.engine.asked if several else wanted.engine.most]
    count = devices.wished_count(wishes, len(found))
    asked = bool(wishes.get("devices") or count or _wished_experts(spec, wishes))
    must = _experts_beyond(machine, spec, wanted.engine)
    chosen = found[: count or _enough(found, spec, dtype, wanted)]
    room, decisions = _room(chosen, spec, dtype, wanted, link, must)
    if short := _short(room, chosen[0][1].name, wanted, asked):
        key = "gpus.left_out" if spec.experts else "gpus.dense"
        return Decision("devices", [], t(key, reason=short), "machine"), None
    placed = _placed(chosen, room, decisions, wanted, must)
    _check_memory(machine, placed, spec, must, wanted)
    names = [name for name, _ in chosen]
    why = t("gpus.devices_some" if len(names) < len(found) else "gpus.devices", gpu=chosen[0][1].name, count=len(names))
    return Decision("devices", names, why, "user" if asked else "machine"), placed


def _short(room: Room, gpu: str, wanted: Wanted, asked: bool) -> str:
    """Why the GPUs cannot hold what every token needs and a conversation; "" where they can. Raises DoesNotFit where they
    were `asked` for."""
    least = room.cache(wanted.context or memory.PAGE)
    if room.left >= least or wanted.force:
        return ""
    sizes = {"needed": _gib(int((room.weights + room.passing + least) * (1 + KEPT))), "budget": _gib(room.budget.whole)}
    reason = t("gpus.small", gpu=gpu, **sizes)
    if asked and wanted.context and (fits := _most_tokens(room, room.left, 0)):
        raise DoesNotFit("gpus.context", context=wanted.context, fits=fits, left=_gib(room.left))
    if asked:
        raise DoesNotFit("gpus.no_room", gpu=gpu, reason=reason)
    return reason


def _without(reason: str, wishes: Mapping[str, Any]) -> str:
    """The reason, with the wishes that it makes idle."""
    idle = [name for name in devices.WISHES if wishes.get(name) is not None]
    return t("gpus.idle", reason=reason, names=", ".join(idle)) if idle else reason


def _enough(found: list[tuple[str, Gpu]], spec: ModelSpec, dtype: str, wanted: Wanted) -> int:
    """The fewest GPUs that hold the whole model and a conversation, or all of them. A number that its heads cannot be shared
    by, so that GPUs wait for each other, is not taken to spare one."""
    latent = any(part.kind == "latent" for part in spec.cache)
    for count in range(1, len(found)):
        room, _ = _room(found[:count], spec, dtype, wanted, None, 0)
        if room.layout == devices.PIPELINE and not latent:
            continue
        if room.left >= room.cache(wanted.context or spec.context) + spec.experts * room.row_of_experts:
            return count
    return len(found)


def _room(
    chosen: list[tuple[str, Gpu]], spec: ModelSpec, dtype: str, wanted: Wanted, link: Link | None, must: int
) -> tuple[Room, list[Decision]]:
    """The smallest of the GPUs, with the decisions that do not depend on the experts; `must` of each layer lie there."""
    wishes = wanted.wishes
    budgets = [devices.budget(gpu, wishes) for _, gpu in chosen]
    layout = devices.layout(spec, len(chosen), wishes, wanted.engine)
    size = min(budgets, key=lambda budget: (budget.lasting, budget.whole))
    threshold = streaming.threshold(spec, wishes, link, wanted.engine)
    chunk = _chunk(threshold.value, wishes)
    room = Room(spec, dtype, size, len(chosen), layout.value, chunk.value, threshold.value is not None, wanted.engine)
    needed = room.cache(wanted.context or memory.PAGE) + must * room.row_of_experts
    if room.streams and threshold.source != "user" and room.left < needed:
        threshold = Decision(threshold.name, None, t("gpus.stream_no_room", size=_gib(room.layer)), "machine")
        chunk = _chunk(None, wishes)
        room = Room(spec, dtype, size, len(chosen), layout.value, chunk.value, engine=wanted.engine)
    part = f"{100 * devices.USABLE_SHARE:g}"
    why = t("plan.chosen") if size.source == "user" else t("gpus.vram_budget", part=part, size=_gib(size.whole))
    sizes = Decision("vram_budget", [budget.whole for budget in budgets], why, size.source)
    return room, [layout, sizes, threshold, chunk]


def _chunk(threshold: int | None, wishes: Mapping[str, Any]) -> Decision:
    wished = wishes.get("chunk")
    if wished is None:
        count = CHUNK if threshold is None else max(STREAMED_CHUNK, threshold)
        return Decision("chunk", count, t("gpus.chunk" if threshold is None else "gpus.chunk_streamed"), "default")
    count = _whole("chunk", wished, 1, MOST_CHUNK)
    if threshold is not None and count < threshold:
        raise UsageError("gpus.chunk_small", chunk=count, threshold=threshold)
    return Decision("chunk", count, t("plan.chosen"), "user")


def _placed(chosen: list[tuple[str, Gpu]], room: Room, decisions: list[Decision], wanted: Wanted, must: int) -> Placed:
    spec, names = room.spec, tuple(name for name, _ in chosen)
    context = _context(room, must, wanted)
    tokens = max(context.value, wanted.cache_tokens or 0)
    experts = _experts(room, tokens, wanted)
    if experts.value == spec.experts and wanted.cache_tokens is None:
        tokens = _most_tokens(room, room.left - experts.value * room.row_of_experts, tokens)
    size = cache_bytes(spec, tokens, room.dtype)
    reason = t("gpus.cache", size=_gib(size), tokens=tokens)
    cache = Decision("cache", size, reason, "user" if wanted.cache_tokens else "machine")
    stored = sum(spec.bytes_by_part.get(part, 0) for part in resident(spec, room.engine))
    routed = spec.bytes_by_part.get("experts", 0)
    ways = _ways(spec, wanted.wishes, room.engine)
    if ways[0].value == DYNAMIC and must:
        ways[0] = Decision("placement", "uniform", t("gpus.moving_no_ram", must=must), "machine")
    left = ways[0].value == DYNAMIC and experts.value < spec.experts
    moved = stored + (0 if left else routed * experts.value // spec.experts if spec.experts else routed)
    layout, sizes, threshold, chunk = decisions
    if experts.value == spec.experts and threshold.source != "user":
        threshold = Decision(threshold.name, None, t("gpus.stream_nothing"), "machine")
    decisions = [layout, sizes, experts, *ways, threshold, chunk]
    room = replace(room, streams=threshold.value is not None)
    parts = {name: room.parts(tokens, experts.value, left) for name in names}
    return Placed(
        names, tuple(gpu for _, gpu in chosen), decisions, context, cache, parts, moved, experts.value, room.engine
    )


def _experts_beyond(machine: Machine, spec: ModelSpec, engine: Engine) -> int:
    """Experts of each layer that the CPU's memory has no room for."""
    routed = spec.bytes_by_part.get("experts", 0)
    if not routed or not spec.experts or not machine.memory_total:
        return 0
    there = (*resident(spec, engine), "experts")
    kept = sum(size for part, size in spec.bytes_by_part.items() if part not in there)
    runtime = memory.fixed_bytes(spec) - memory.weight_bytes(spec)
    room = machine.memory_available - kept - runtime
    return min(spec.experts, max(0, spec.experts - room * spec.experts // routed))


def _context(room: Room, must: int, wanted: Wanted) -> Decision:
    """The user's, else the model's own where half of what is left holds it, else what that half holds."""
    spec = room.spec
    if wanted.context is not None:
        return Decision("context", wanted.context, t("plan.chosen"), "user")
    asked = _wished_experts(spec, wanted.wishes) if spec.experts else None
    spare = room.left - max(must, asked or 0) * room.row_of_experts
    if spec.experts and asked is None:
        spare = min(spare, max(room.left // 2, room.left - spec.experts * room.row_of_experts))
    own = min(spec.context, wanted.cache_tokens or spec.context)
    tokens = own if room.cache(own) <= spare else _most_tokens(room, spare, memory.PAGE)
    if tokens >= spec.context:
        return Decision("context", spec.context, t("gpus.context_own"), "model")
    return Decision("context", tokens, t("gpus.context_half", trained=spec.context, size=_gib(spare)), "machine")


def _most_tokens(room: Room, size: int, least: int) -> int:
    """The longest conversation in `size` bytes of each GPU, in whole pages, `least` at least, all that the model has at most."""
    low, high = 0, max(1, room.spec.context // memory.PAGE)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if room.cache(middle * memory.PAGE) <= size else (low, middle - 1)
    return max(least, low * memory.PAGE)


def _experts(room: Room, tokens: int, wanted: Wanted) -> Decision:
    spec, row = room.spec, room.row_of_experts
    if not spec.experts:
        return Decision("gpu_experts", 0, t("gpus.no_experts"), "model")
    space = room.left - room.cache(tokens)
    most = min(spec.experts, max(0, space // max(1, row)))
    count = _wished_experts(spec, wanted.wishes)
    if count is not None:
        if count > most and not wanted.force:
            raise DoesNotFit("gpus.experts_many", count=count, fits=most, each=_gib(row), space=_gib(max(0, space)))
        return Decision("gpu_experts", count, t("plan.chosen"), "user")
    key = "gpus.experts_all" if most == spec.experts else "gpus.experts"
    form = t("gpus.stored" if as_stored(spec, "experts", room.engine) else "gpus.bfloat16")
    why = t(key, count=most, experts=spec.experts, each=_gib(row), space=_gib(max(0, space)), form=form)
    return Decision("gpu_experts", most, why, "machine")


def _wished_experts(spec: ModelSpec, wishes: Mapping[str, Any]) -> int | None:
    """Experts of each layer that the user wants there; the part of all goes before the count. Raises UsageError."""
    ratio, count = wishes.get("gpu_experts_ratio"), wishes.get("gpu_experts")
    if ratio is None:
        return None if count is None else _whole("gpu_experts", count, 0, spec.experts)
    if not 0 <= ratio <= 1:
        raise UsageError("gpus.bad_ratio", value=ratio)
    return round(float(ratio) * spec.experts)


def _check_memory(machine: Machine, placed: Placed, spec: ModelSpec, must: int, wanted: Wanted) -> None:
    """Raises DoesNotFit where the CPU's memory is too small for what is left to it."""
    needed = memory.fixed_bytes(spec) - placed.moved
    if machine.memory_total and needed > machine.memory_available and not wanted.force:
        sizes = {"needed": _gib(needed), "available": _gib(machine.memory_available)}
        raise DoesNotFit("gpus.ram", count=placed.experts, experts=spec.experts, must=must, **sizes)


def _ways(spec: ModelSpec, wishes: Mapping[str, Any], engine: Engine) -> list[Decision]:
    """Which experts lie on the GPU, and how many of a token a layer may leave to the next."""
    wished, statistics = wishes.get("placement"), wishes.get("expert_statistics")
    wished = DYNAMIC if wishes.get("moving") else wished
    if wished is not None and wished not in PLACEMENTS:
        raise UsageError("gpus.bad_placement", value=wished, known=", ".join(PLACEMENTS))
    if wished == "frequency" and not statistics:
        raise UsageError("gpus.no_statistics")
    way = wished or ("frequency" if statistics else "uniform")
    why = t("plan.chosen") if wished else t("gpus.placement_counted" if statistics else "gpus.placement_uniform")
    placement = Decision("placement", way, why, "user" if wished or statistics else "default")
    counts = Decision("expert_statistics", statistics, t("plan.chosen"), "user")
    most = max(0, spec.experts_per_token - 1)
    left = wishes.get("deferred")
    if left is None:
        deferred = Decision("deferred", 0, t("gpus.deferred_none"), "default")
    elif engine.defers or not _whole("deferred", left, 0, most):
        deferred = Decision("deferred", _whole("deferred", left, 0, most), t("gpus.deferred"), "user")
    else:
        deferred = Decision("deferred", 0, t("gpus.deferred_not"), "default")
    return [placement, *([counts] if statistics else []), deferred]


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UsageError("gpus.not_between", name=name, value=value, low=low, high=high)
    return value


def _gib(count: int) -> str:
    return f"{count / _GIB:.2f} GiB"
