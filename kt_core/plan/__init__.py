"""From a machine, a model and the user's wishes to a plan: pure decisions, each with its reason."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from kt_core.errors import DoesNotFit, Unsupported, UsageError
from kt_core.machine import CORES, FAST_CORES, default_threads, hardware
from kt_core.machine import profile as ceilings
from kt_core.messages import t
from kt_core.models import spec as model_spec
from kt_core.plan import cache, devices, disk, gpus, memory, method, speed
from kt_core.plan.abilities import THIS, Engine
from kt_core.plan.streaming import Link
from kt_core.plan.tiers import TIERS, runnable
from kt_core.types import Decision, Machine, MachineProfile, ModelFiles, ModelSpec, Plan, ServerSettings

__all__ = ["KERNEL_FORMATS", "check_download", "make_plan"]

# The kernels' own list must be the same; a test compares.
KERNEL_FORMATS = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
    "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "IQ4_K", "MXFP4",
    "FP8_BLOCK", "FP8_CHANNEL", "MXFP8", "MXFP4_HF", "NVFP4", "INT4", "GPTQ", "AWQ", "INT8_CHANNEL",
)  # fmt: skip
DTYPES = ("float32",)
OVERRIDES = (
    "tier", "threads", "cpus", "pools", "nodes", "context", "max_running", "kv_dtype", "cache_tokens", "prefix_host", "prefix_disk",
    "dtype", "rules", "force", "record", "method", "devices", "adapters", *devices.WISHES,
)  # fmt: skip
MOST_THREADS = 4096  # as the setting inference.threads; the largest machines have fewer CPUs
MOST_POOLS = 64  # groups of a kernel pool; a machine with more nodes runs as one
SMALLEST_CONTEXT = 16  # tokens; less has no room for a chat template and an answer
_GIB = 2**30


def make_plan(
    machine: Machine,
    files: ModelFiles,
    spec: ModelSpec,
    overrides: Mapping[str, Any],
    profile: MachineProfile | None = None,
    disk_free: int = 0,
    engine: Engine = THIS,
) -> Plan:
    """Decide how to run the model here. `overrides` holds what the user chose, by decision name; None is no choice.
    `profile`, the machine's ceilings, adds a prediction and the threshold of streamed prompts. `disk_free` are bytes where
    prefixes may be kept. `engine`: what can be done with GPUs.

    Raises Unsupported for a stored format without a kernel or a tier this CPU lacks, UsageError for a value
    that makes no sense, DoesNotFit, with the numbers and the nearest thing that fits, when memory or the
    trained context is too small; the override "force" goes on in spite of DoesNotFit.
    """
    wishes = {name: value for name, value in overrides.items() if value is not None}
    unknown = sorted(set(wishes) - set(OVERRIDES))
    if unknown:
        raise UsageError("plan.unknown_override", names=", ".join(unknown), known=", ".join(OVERRIDES))
    _check_formats(files, spec)
    adapters = int(wishes.get("adapters", 0))  # their bytes
    machine = replace(machine, memory_available=max(0, machine.memory_available - adapters))
    way, tier = method.method(spec, wishes), _tier(machine, wishes)
    kv_dtype = cache.kv_dtype(spec.formats, wishes)
    wishes |= _of_nodes(machine, wishes)
    threads = _with_smt(_threads(machine, wishes), machine, profile)
    context_wished, tokens, force = (
        _wished_context(spec, files.name, wishes),
        _tokens(wishes),
        bool(wishes.get("force")),
    )
    wanted = gpus.Wanted(context_wished, tokens, force, wishes, engine)
    link = _link(machine, spec, threads.value, profile)
    where, placed = gpus.place(machine, spec, kv_dtype.value, wanted, link)
    cache.check_place(kv_dtype.value, where)
    threads = _spared(threads, placed)
    cpus = _cpus(machine, threads.value, wishes)
    context = placed.context if placed else _context(machine, spec, files.name, kv_dtype.value, wanted)
    running = cache.max_running(threads.value, _sequences(wishes))
    sizes = (context.value, kv_dtype.value, running.value, wanted.cache_tokens)
    room = placed.cache if placed else cache.cache(machine, spec, *sizes)
    parts = memory.parts(spec, context.value)
    parts |= {"weights": parts["weights"] - placed.moved} if placed else {"cache": room.value}
    parts |= {"adapters": adapters} if adapters else {}
    host = [disk.prefix_host(wishes, machine.memory_available - sum(parts.values()), room.value)] if placed else []
    parts |= {"prefixes": host[0].value} if host else {}
    pools = _beyond(machine, _pools(machine, threads.value, cpus.value, wishes), parts["weights"])
    decisions = [way, tier, threads, cpus, pools, where]
    decisions += [*(placed.decisions if placed else []), context, running, kv_dtype, room]
    decisions += [*host, disk.prefix_disk(wishes, disk_free, room.value), _dtype(wishes), _rules(wishes)]
    decisions += _asked(wishes, placed)
    needed = {"cpu": sum(parts.values())} | (placed.device_bytes if placed else {})
    # Portable kernels compute so slowly that memory's rate says nothing
    scalar = tier.value == "scalar"
    predicted = {} if scalar else speed.predict(machine, spec, threads.value, profile, placed)
    settings, on_gpus = ServerSettings(served_name=files.name), placed.parts if placed else {}
    return Plan(files, spec, tuple(decisions), needed, settings, predicted, parts, on_gpus)


def _asked(wishes: Mapping[str, Any], placed: gpus.Placed | None) -> list[Decision]:
    """What stands in a plan only where the user asks for it."""
    asked = []
    if not placed and wishes.get("chunk") is not None:
        asked.append(Decision("chunk", _positive("chunk", wishes["chunk"]), t("plan.chosen"), "user"))
    if wishes.get("record"):
        asked.append(Decision("record", True, t("plan.chosen"), "user"))
    if wishes.get("force"):
        asked.append(Decision("force", True, t("plan.forced"), "user"))
    return asked


def _link(machine: Machine, spec: ModelSpec, threads: int, profile: MachineProfile | None) -> Link | None:
    """What decides from where on layers are streamed to the first GPU; None where its rate is not known."""
    rates = hardware.gpu_rates(machine.gpus[0]) if machine.gpus else None
    measured = profile.link_rates.get("cuda:0", {}).get("to", 0.0) if profile else 0.0
    if profile is None or not (measured or rates):
        return None
    return Link(measured or (rates.link if rates else 0.0), speed.prompt_rate(spec, threads, profile))


def _spared(threads: Decision, placed: gpus.Placed | None) -> Decision:
    """A GPU's thread, which hands it work and waits for it, gets a core of its own."""
    count = len(placed.names) if placed else 0
    if not count or threads.source == "user" or threads.value <= count:
        return threads
    left = threads.value - count
    return replace(threads, value=left, reason=t("gpus.threads_spared", reason=threads.reason, count=count))


def _of_nodes(machine: Machine, wishes: Mapping[str, Any]) -> dict[str, Any]:
    """The NUMA nodes that the user chose, as CPUs. Raises UsageError for a node without CPUs to use."""
    nodes = wishes.get("nodes")
    if nodes is None:
        return {}
    allowed = set(machine.allowed_cpus)
    usable = {n: [cpu for cpu in node.cpus if cpu in allowed] for n, node in sorted(machine.numa_nodes.items())}
    known = [number for number, cpus in usable.items() if cpus]
    if not nodes or not set(nodes) <= set(known):
        raise UsageError("plan.bad_nodes", nodes=_listed(nodes), known=_listed(known))
    cpus = [cpu for number in sorted(set(nodes)) for cpu in usable[number]]
    if set(nodes) == set(known):
        return {}
    if "pools" in wishes and wishes["pools"] != len(set(nodes)):
        raise UsageError("plan.pools_nodes", pools=wishes["pools"], nodes=_listed(nodes))
    cores = sum(any(cpu in set(cpus) for cpu in core) for core in machine.cores) or len(cpus)
    best = default_threads(machine)[0]
    return {"cpus": cpus, "threads": wishes.get("threads", min(best, cores))}


def _tokens(wishes: Mapping[str, Any]) -> int | None:
    wished = wishes.get("cache_tokens")
    return None if wished is None else _positive("cache_tokens", wished)


def _wished_context(spec: ModelSpec, name: str, wishes: Mapping[str, Any]) -> int | None:
    """Raises UsageError for a context that is too small for an answer, DoesNotFit for one beyond the trained one."""
    wished = wishes.get("context")
    if wished is None:
        return None
    context = _positive("context", wished)
    if context < SMALLEST_CONTEXT:
        raise UsageError("plan.context_small", context=context, smallest=SMALLEST_CONTEXT)
    if context > spec.context and not wishes.get("force"):
        raise DoesNotFit("plan.context_untrained", name=name, context=context, trained=spec.context)
    return min(context, wishes.get("cache_tokens") or context)


def check_download(machine: Machine, name: str, nbytes: int) -> None:
    """Raises DoesNotFit for a model whose weights alone, `nbytes`, are more than this machine's memory."""
    if 0 < machine.memory_total < nbytes:
        raise DoesNotFit("plan.download", name=name, needed=_gib(nbytes), total=_gib(machine.memory_total))


def _check_formats(files: ModelFiles, spec: ModelSpec) -> None:
    missing = sorted(set(spec.formats) - set(KERNEL_FORMATS))
    if missing:
        found = model_spec.examples(files, missing) if files.files else {form: ["?"] for form in missing}
        tensors = "; ".join(f"{form}: {', '.join(names)}" for form, names in found.items())
        raise Unsupported("plan.formats", name=files.name, tensors=tensors, supported=", ".join(KERNEL_FORMATS))


def _tier(machine: Machine, wishes: Mapping[str, Any]) -> Decision:
    """None leaves the choice to the extension, which knows what it was built with."""
    tiers = runnable(machine)
    name = wishes.get("tier")
    if name is None and machine.architecture in ("x86_64", "AMD64"):
        return Decision("tier", None, t("plan.tier_best", tier=tiers[-1]), "machine")
    if name is None:
        return Decision("tier", "scalar", t("plan.tier_scalar", architecture=machine.architecture), "machine")
    if name not in TIERS:
        raise UsageError("plan.unknown_tier", tier=name, known=", ".join(TIERS))
    if name not in tiers:
        raise Unsupported("plan.tier_missing", tier=name, runnable=", ".join(tiers))
    return Decision("tier", name, t("plan.chosen"), "user")


def _threads(machine: Machine, wishes: Mapping[str, Any]) -> Decision:
    best, decision = default_threads(machine)
    wished = wishes.get("threads")
    if wished is None:
        return decision
    threads = _positive("threads", wished)
    if threads > MOST_THREADS:
        raise UsageError("plan.threads_many", threads=threads, most=MOST_THREADS, best=best)
    cores = int(machine.limits.get(CORES, machine.physical_cores))
    allowed = len(machine.allowed_cpus)
    key = "plan.threads_above_allowed" if threads > allowed else "plan.threads_above_cores"
    reason = t(key, threads=threads, cores=cores, allowed=allowed, best=best) if threads > cores else t("plan.chosen")
    return Decision("threads", threads, reason, "user")


def _with_smt(threads: Decision, machine: Machine, measured: MachineProfile | None) -> Decision:
    """A virtual machine may show two threads of a core as two cores: what was measured of that, or that nothing was. The
    number stays: which CPUs share a core is not known, and threads of one core wait for memory together."""
    if machine.smt != "unknown" or threads.source == "user":
        return threads
    known = measured.measured if measured else 0.0
    found = ceilings.threads_a_core(measured, len(machine.allowed_cpus)) if measured and known else None
    key = {1: "plan.smt_one", 2: "plan.smt_two", None: "plan.smt_unknown"}[found]
    return replace(threads, reason=t(key, reason=threads.reason))


def _cpus(machine: Machine, threads: int, wishes: Mapping[str, Any]) -> Decision:
    """Pin only when every usable CPU gets one thread: two servers that each use a part must not share cores."""
    allowed = machine.allowed_cpus
    wished = wishes.get("cpus")
    if wished is not None:
        cpus = list(wished)
        if not cpus or not set(cpus) <= set(allowed):
            raise UsageError("plan.bad_cpus", cpus=_listed(cpus), allowed=_listed(allowed))
        return Decision("cpus", cpus, t("plan.chosen"), "user")
    one_type_no_smt = machine.limits.get(CORES) == len(allowed) and FAST_CORES not in machine.limits
    if one_type_no_smt and threads == len(allowed):
        return Decision("cpus", list(allowed), t("plan.pinned"), "machine")
    key = "plan.unpinned" if threads <= len(allowed) else "plan.unpinned_many"
    return Decision("cpus", None, t(key, allowed=len(allowed)), "machine")


def _pools(machine: Machine, threads: int, cpus: list[int] | None, wishes: Mapping[str, Any]) -> Decision:
    """Groups of threads, each with its CPUs and its node's memory: one for each NUMA node with CPUs to use.

    Threads are shared out in proportion to the nodes' usable CPUs. `pools` (how many) cuts the same CPUs in equal
    runs, in the order of the nodes, and binds memory only where a run lies in one node.
    """
    usable = set(cpus or machine.allowed_cpus)
    nodes = {n: [cpu for cpu in node.cpus if cpu in usable] for n, node in sorted(machine.numa_nodes.items())}
    parts = [own for own in nodes.values() if own]
    wished = wishes.get("pools")
    if wished is None and (len(parts) < 2 or len(parts) > min(threads, MOST_POOLS)):
        key = "plan.one_node" if len(parts) < 2 else "plan.few_threads"
        chosen = wishes.get("nodes", ())
        node = chosen[0] if len(chosen) == 1 and machine.numa_nodes[chosen[0]].usable else None
        pools = [{"threads": threads, "cpus": cpus, "node": node}]
        return Decision("pools", pools, t(key, nodes=len(parts)), "user" if chosen else "machine")
    if wished is not None:
        count = _positive("pools", wished)
        if count > min(threads, MOST_POOLS):
            raise UsageError("plan.pools_many", pools=count, most=min(threads, MOST_POOLS))
        flat = [cpu for own in parts for cpu in own]
        parts = [flat[len(flat) * i // count : len(flat) * (i + 1) // count] for i in range(count)]
    # A node that cpuset or an inherited policy bars would refuse the memory
    home = {cpu: node if machine.numa_nodes[node].usable else None for node, own in nodes.items() for cpu in own}
    shares = _shared_out(threads, [len(part) for part in parts])
    cut = []
    for part, share in zip(parts, shares, strict=True):
        found = {home[cpu] for cpu in part}
        cut.append({"threads": share, "cpus": part or None, "node": found.pop() if len(found) == 1 else None})
    if wished is not None:
        return Decision("pools", cut, t("plan.chosen"), "user")
    return Decision("pools", cut, t("plan.nodes", nodes=len(parts)), "machine")


def _beyond(machine: Machine, pools: Decision, weights: int) -> Decision:
    """The pools, where a node is smaller than its part of the weights with that said: they are bound to it as a preference, so
    the rest goes to other nodes."""
    parts = memory.by_node(pools.value, weights)
    small = [node for node, part in parts.items() if 0 < machine.numa_nodes[node].memory < part]
    if not small:
        return pools
    sizes = {"part": _gib(max(parts.values())), "nodes": _listed(small)}
    return replace(pools, reason=t("plan.nodes_small", reason=pools.reason, **sizes))


def _shared_out(threads: int, sizes: list[int]) -> list[int]:
    """threads in proportion to the sizes, at least 1 each; there must be as many threads as sizes, or more."""
    ends = [threads * sum(sizes[:i]) // max(1, sum(sizes)) for i in range(len(sizes) + 1)]
    shares = [end - begin for begin, end in pairwise(ends)]
    while 0 in shares:
        shares[shares.index(max(shares))] -= 1
        shares[shares.index(0)] += 1
    return shares


def _context(machine: Machine, spec: ModelSpec, name: str, dtype: str, wanted: gpus.Wanted) -> Decision:
    available, force, context = machine.memory_available, wanted.force, wanted.context
    known = machine.memory_total > 0
    fits = memory.largest_context(spec, available, dtype) if known else spec.context
    if wanted.cache_tokens is not None and context is None:
        context = min(wanted.cache_tokens, spec.context)
    if context is None:
        if fits < 1 and not force:
            raise DoesNotFit("plan.weights_too_big", name=name, **_numbers(spec, 1, dtype, machine))
        context = fits if fits >= 1 else spec.context
        if context == spec.context:
            return Decision("context", context, t("plan.context_trained" if known else "plan.memory_unknown"), "model")
        return Decision(
            "context",
            context,
            t("plan.context_fits", trained=spec.context, **_numbers(spec, spec.context, dtype, machine)),
            "machine",
        )
    needed = max(context, wanted.cache_tokens or 0)
    if needed > fits and known and not force and (needed <= spec.context or context > fits):
        key = "plan.context_too_big" if fits >= 1 else "plan.weights_too_big"
        raise DoesNotFit(key, name=name, context=needed, fits=fits, **_numbers(spec, needed, dtype, machine))
    return Decision("context", context, t("plan.chosen"), "user")


def _numbers(spec: ModelSpec, context: int, dtype: str, machine: Machine) -> dict[str, str]:
    """The sums that a refusal shows."""
    return {
        "needed": _gib(memory.predicted_bytes(spec, context, dtype)),
        "weights": _gib(memory.weight_bytes(spec)),
        "available": _gib(machine.memory_available),
    }


def _sequences(wishes: Mapping[str, Any]) -> int | None:
    """How many sequences the user wants to run together. Raises UsageError."""
    wished = wishes.get("max_running")
    if wished is None:
        return None
    if _positive("max_running", wished) > cache.MOST_SEQUENCES:
        raise UsageError("plan.max_running_many", count=wished, most=cache.MOST_SEQUENCES)
    return int(wished)


def _dtype(wishes: Mapping[str, Any]) -> Decision:
    wished = wishes.get("dtype")
    if wished is not None and wished not in DTYPES:
        raise Unsupported("plan.dtype", dtype=wished, known=", ".join(DTYPES))
    return Decision("dtype", DTYPES[0], t("plan.float32"), "default" if wished is None else "user")


def _rules(wishes: Mapping[str, Any]) -> Decision:
    path = wishes.get("rules")
    if path is None:
        return Decision("rules", None, t("plan.default_rules"), "default")
    return Decision("rules", str(path), t("plan.chosen"), "user")


def _positive(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError("plan.not_positive", name=name, value=value)
    return value


def _gib(count: int) -> str:
    return f"{count / _GIB:.2f} GiB"


def _listed(cpus: Any) -> str:
    return ", ".join(map(str, cpus))
