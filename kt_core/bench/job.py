"""What is to be measured, checked before anything is made. Light: the command line builds a job, a process runs it."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from kt_core.bench.shapes import NO_CACHE, Cache, Shape
from kt_core.errors import DoesNotFit, Unsupported, UsageError
from kt_core.formats import FORMATS, nbytes
from kt_core.messages import t
from kt_core.plan import KERNEL_FORMATS
from kt_core.plan.tiers import TIERS, runnable
from kt_core.types import Machine

CEILINGS, READS, MOE, LINEAR, ATTENTION = "ceilings", "reads", "moe", "linear", "attention"
OPPONENTS = ("torch",)
DEFAULT_FORMATS = ("BF16", "Q8_0", "Q4_K")
DEFAULT_TOKENS = (1, 16, 512)
DEFAULT_KEYS = (4096,)
DEFAULT_REPEATS = 7
CACHE_FORMATS = ("BF16", "F32")
UNKNOWN_CACHE = 64 << 20  # taken for the last-level caches where the system does not say; most servers have more
COLD = 4  # weights that are used in turn take this many times the last-level caches
USABLE = 0.9  # of the available memory; other programs need some of it meanwhile
RUNTIME = 600 << 20  # Python and torch
NOTHING = Shape("", 0, 0, 0, 0)  # ceilings have none
OWN = "-"  # the name of sizes that are no model's
CHECK_UNITS = 4  # experts of a check, of which a token takes two: what more of them add is the same again
PROBE_SHARE = 16  # the read probe takes at most this part of the available memory

# Formats with scales beside the data -> bits that a weight takes with its scales, nearly. They have blocks of 32.
SCALED = {
    "MXFP4_HF": 4.25, "NVFP4": 4.5, "INT4": 4.6, "GPTQ": 4.6, "AWQ": 4.6, "INT8_CHANNEL": 8.1,
    "FP8_BLOCK": 8.1, "FP8_CHANNEL": 8.1, "MXFP8": 8.25,
}  # fmt: skip
ROWS = {"AWQ": 8}  # formats that store several rows in one word


def block(format: str) -> int:
    """Weights of a block: a row has a whole number of them."""
    return 32 if format in SCALED else FORMATS[format].block_size


def stored_bytes(format: str, rows: int, cols: int) -> int:
    """Bytes of a weight; packed it takes the same."""
    return int(rows * cols * SCALED[format] / 8) if format in SCALED else nbytes(format, rows * cols)


@dataclass(frozen=True)
class Part:
    """`count` weights [rows, cols] of a unit that is loaded and touched as a whole: an expert, or a linear layer."""

    rows: int
    cols: int
    count: int = 1


@dataclass(frozen=True)
class Job:
    """One run of the bench. `layers` are as many as asked for, or as the caches demand and memory allows.

    `experts` and `top_k` are 1 for a linear layer, whose `hidden` inputs become `intermediate` outputs, and for
    attention, which makes `hidden` numbers of a token's queries into `intermediate`, over caches of so many `keys`.
    """

    kind: str
    name: str
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    cache: int  # bytes of the last-level caches
    probe: int  # bytes of memory that read probes go through
    memory: int  # bytes that may be taken; 0: unknown
    threads: tuple[int, ...]
    cache_shape: Cache = NO_CACHE
    keys: tuple[int, ...] = ()
    formats: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()
    tiers: tuple[str | None, ...] = (None,)  # None: the process's choice
    repeats: int = DEFAULT_REPEATS
    layers: int | None = None
    vs: str = ""
    check: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        if self.kind == ATTENTION:
            return (Part(max(self.keys) * self.cache_shape.kv_heads, self.cache_shape.columns),)
        return parts(self.kind, self.hidden, self.intermediate)

    def unit_bytes(self, format: str) -> int:
        """Bytes of an expert or of a linear layer's weight."""
        return sum(part.count * stored_bytes(format, part.rows, part.cols) for part in self.parts)

    def layer_bytes(self, format: str) -> int:
        return self.experts * self.unit_bytes(format)

    def layer_count(self, format: str) -> int:
        """Layers to use in turn: --layers, else enough for cold caches, else what fits; at least 1."""
        layer = self.layer_bytes(format)
        wanted = self.layers or -(-COLD * self.cache // layer)
        fits = (self.memory - self._other_bytes(format)) // layer if self.memory and not self.layers else wanted
        return max(1, min(wanted, fits))

    def is_cold(self, format: str) -> bool:
        """Whether the weights that are used in turn exceed what caches could keep."""
        return self.layer_count(format) * self.layer_bytes(format) >= COLD * self.cache

    def needed_bytes(self, format: str) -> int:
        """Memory at the largest moment of a format's rows."""
        return self.layer_count(format) * self.layer_bytes(format) + self._other_bytes(format)

    def _other_bytes(self, format: str) -> int:
        """The stored unit, the read probe, activations (float32 in, between and out, and their rounded copies), the runtime.

        A check has a few units of its own, of which one is decoded, to float32 and to float64 twice.
        """
        rows = max(self.tokens, default=0) * self.top_k
        activations = 16 * rows * (self.hidden + self.intermediate)
        values = sum(part.count * part.rows * part.cols for part in self.parts)
        check = CHECK_UNITS * self.unit_bytes(format) + 20 * values if self.check else 0
        return self.unit_bytes(format) + self.probe + activations + check + RUNTIME

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Job":
        """Raises ValueError or TypeError for a text that is not of text()."""
        fields: dict[str, Any] = json.loads(text)
        lists: dict[str, Any] = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        return cls(**(fields | lists | {"cache_shape": Cache(**fields["cache_shape"])}))


def parts(kind: str, hidden: int, intermediate: int) -> tuple[Part, ...]:
    """The weights of a linear layer, or of an expert: gate and up, down."""
    if kind == LINEAR:
        return (Part(intermediate, hidden),)
    return (Part(intermediate, hidden, 2), Part(hidden, intermediate))


def make(kind: str, machine: Machine, size: Shape = NOTHING, **fields: Any) -> Job:
    """A job for this machine: what its caches and memory demand and allow."""
    cache = machine.last_level_cache or UNKNOWN_CACHE
    memory = int(machine.memory_available * USABLE)
    probe = max(256 << 20, 2 * cache)
    room = min(probe, memory // PROBE_SHARE) if memory else probe
    sizes = (size.hidden, size.intermediate, size.experts, size.top_k)
    return Job(kind, size.name, *sizes, cache, room, memory, cache_shape=size.cache, **fields)


REFUSALS = {
    MOE: "bench.does_not_fit",
    LINEAR: "bench.linear_does_not_fit",
    ATTENTION: "bench.caches_do_not_fit",
}


def check_names(machine: Machine, formats: Iterable[str], tiers: Iterable[str | None]) -> None:
    """Raises UsageError for a name that does not exist, Unsupported for a format or tier that cannot be had here."""
    for name in formats:
        if name not in (*FORMATS, *KERNEL_FORMATS):
            raise UsageError("bench.unknown_format", name=name, known=", ".join(KERNEL_FORMATS))
        if name not in KERNEL_FORMATS:
            raise Unsupported("bench.no_kernel", name=name, known=", ".join(KERNEL_FORMATS))
    here = runnable(machine)
    for tier in filter(None, tiers):
        if tier not in TIERS:
            raise UsageError("plan.unknown_tier", tier=tier, known=", ".join(TIERS))
        if tier not in here:
            raise Unsupported("plan.tier_missing", tier=tier, runnable=", ".join(here))


def check_cache_formats(formats: Iterable[str]) -> None:
    """Raises Unsupported for a format that attention's caches do not have."""
    for name in formats:
        if name not in CACHE_FORMATS:
            raise Unsupported("bench.no_cache", name=name, known=", ".join(CACHE_FORMATS))


def check_keys(job: Job) -> None:
    """Raises UsageError for more queries than keys: a query is the newest of its sequence's keys."""
    if job.keys and max(job.tokens) > min(job.keys):
        raise UsageError("bench.few_keys", tokens=max(job.tokens), keys=min(job.keys))


def wrong_blocks(kind: str, size: Shape, format: str) -> Unsupported | None:
    """Why the format cannot hold the weights of this shape; None when it can."""
    for part in parts(kind, size.hidden, size.intermediate):
        if part.cols % block(format):
            return Unsupported("bench.blocks", format=format, block=block(format), cols=part.cols)
        if part.rows % ROWS.get(format, 1):
            return Unsupported("bench.rows", format=format, multiple=ROWS[format], rows=part.rows)
    return None


def check_memory(job: Job) -> None:
    """Raises DoesNotFit, with the numbers, for weights that cannot be made here."""
    formats = (*job.formats, "BF16") if job.vs else job.formats
    for name in formats if job.memory else ():
        needed = job.needed_bytes(name)
        if needed > job.memory:
            units = job.experts * job.layer_count(name)
            fits = max(0, (job.memory - needed) // job.unit_bytes(name) + units)
            raise DoesNotFit(
                REFUSALS[job.kind] if fits else "bench.one_does_not_fit",
                format=name,
                name=t("bench.own_sizes") if job.name == OWN else job.name,
                layers=job.layer_count(name),
                experts=job.experts,
                unit=_gib(job.unit_bytes(name)),
                needed=_gib(needed),
                available=_gib(job.memory),
                fits=fits,
            )


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
