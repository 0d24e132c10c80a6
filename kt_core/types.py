"""Dataclasses that several rooms share. Standard library only."""

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PLAN_VERSION = 1
PROFILE_VERSION = 1

# stage, done, total (0: unknown), unit ("bytes", "layers", ...)
Progress = Callable[[str, int, int, str], None]


@dataclass(frozen=True)
class Decision:
    """One choice of the plan, with the reason a person can check and where the value came from."""

    name: str
    value: Any
    reason: str
    source: str  # "user", "config", "tuned", "machine", "model", "default"


@dataclass(frozen=True)
class ModelFiles:
    """A model on disk. `files` are absolute paths of GGUF parts or safetensors shards, in order."""

    name: str
    path: str  # the folder, or the (first) GGUF file
    format: str  # "gguf" or "safetensors"
    files: tuple[str, ...]


@dataclass(frozen=True)
class CachePart:
    """What `layers` equal layers keep of a sequence, in numbers; their bytes depend on the cache's type.

    `kind`: "full" (keys and values of every token), "sliding" and "chunked" (of the last `window` ones), "latent" (MLA),
    "indexer" (keys that choose tokens), "compressed" (one entry for several tokens), "linear" (a state of fixed size).
    """

    kind: str
    layers: int
    numbers: float  # for each token, in one layer; not whole where several tokens share an entry
    window: int = 0  # tokens after which it stops growing; 0: it does not
    state: int = 0  # for each sequence, in one layer


@dataclass(frozen=True)
class ModelSpec:
    """What the headers say about a model; no tensor data is read for it. 0 and "" mean that they do not say.

    Parts of a model, the keys of `bytes_by_part` and `parameters_by_part`: "experts" (routed ones), "shared" (experts that
    every token takes), "dense" (feed-forward blocks without experts), "attention" (whatever mixes tokens), "embedding",
    "head", "vision" (and what else is not the language model), "mtp" (layers that predict further tokens, which are not
    run), "other" (routers, norms). Parts that the model lacks are not there.
    """

    family: str  # transformers' model_type, e.g. "glm4_moe"
    layers: int
    hidden: int
    vocab: int
    context: int  # longest trained context, in tokens
    experts: int  # routed experts per MoE layer; 0 for a dense model
    experts_per_token: int
    parameters: int
    bytes_by_part: dict[str, int]  # stored bytes, scales included
    kv_bytes_per_token: int  # all layers, float32 cache of this version's engine
    formats: dict[str, int]  # stored format -> bytes
    parameters_by_part: dict[str, int] = field(default_factory=dict)
    active_parameters: int = 0  # that one token goes through, without vision; embedding and head count
    moe_layers: int = 0  # layers with routed experts
    expert_width: int = 0  # intermediate size of a routed expert
    heads: int = 0  # of queries
    kv_heads: int = 0  # of keys and values; 1 where all heads share a latent
    cache: tuple[CachePart, ...] = ()
    method: str = ""  # how the experts (of a dense model: most weights) are stored, as kt's methods are called
    chat_template: bool | None = None  # None: not looked for
    tool_parser: str = ""  # the parser for the model's tool calls and reasoning, by the family
    reasoning_parser: str = ""
    quirks: tuple[str, ...] = ()  # names of what is special; each has a message models.quirk_NAME
    exact: bool = True  # whether weights were counted from tensors, and not from the configuration

    @classmethod
    def read(cls, data: dict[str, Any]) -> "ModelSpec":
        """From what asdict made. Raises TypeError, KeyError or AttributeError for anything else."""
        cache = tuple(CachePart(**part) for part in data.get("cache", ()))
        return cls(**data | {"cache": cache, "quirks": tuple(data.get("quirks", ()))})


@dataclass(frozen=True)
class Gpu:
    """An accelerator. Sizes are bytes, 0 where unknown or where memory is shared with the CPU."""

    name: str
    memory: int
    free: int
    driver: str = ""
    kind: str = "cuda"  # the torch backend that it needs: "cuda", "rocm", "xpu" or "npu"
    capability: str = ""  # NVIDIA's compute capability, as "8.9"
    address: str = ""  # on the PCI bus, as "0000:01:00.0"
    uuid: str = ""
    node: int | None = None  # the NUMA node that it hangs on; None: not said
    pcie_generation: int = 0  # the highest that both card and slot take: an idle link runs slower
    pcie_lanes: int = 0  # in use


@dataclass(frozen=True)
class Node:
    """A NUMA node. `kind` is "cpu", "memory" (RAM without CPUs: CXL, HBM) or "gpu" (a GPU's own memory, never RAM)."""

    cpus: tuple[int, ...]  # online ones; those of the process are in Machine.allowed_cpus
    memory: int = 0  # bytes; 0: not said
    available: int = 0  # bytes, file cache counted as available
    distances: dict[int, int] = field(default_factory=dict)  # other node -> the firmware's figure, 10 for itself
    kind: str = "cpu"
    usable: bool = True  # whether the process may take memory here: cpuset and inherited memory policy


@dataclass(frozen=True)
class Cache:
    """`count` equal caches, each read through by `cpus` of the CPUs."""

    level: int
    kind: str  # "data", "instruction" or "unified"
    bytes: int  # of one
    count: int
    cpus: int


@dataclass(frozen=True)
class Disk:
    name: str  # as in /sys/block
    kind: str  # "nvme", "ssd", "hdd" or "virtual", which a virtual machine's are: nothing is known of them
    bytes: int
    model: str = ""


@dataclass(frozen=True)
class HugePages:
    transparent: str = ""  # "always", "madvise" or "never"; "": not said
    pools: dict[int, tuple[int, int]] = field(default_factory=dict)  # bytes of a page -> (pages, free ones)


@dataclass(frozen=True)
class Machine:
    """What the probe found. Sizes are bytes; 0, an empty text and an empty tuple mean that the system does not say.

    `limits` holds every limit on the number of CPUs: "online" CPUs, "affinity" and "cpuset" (those of them that the
    process may use), "cores" (physical ones among these), "fast_cores" (of the performance type, where there are
    several types), "quota" (CPU seconds per second). `memory_limits` holds every limit on memory: "ram", "cgroup" (the
    control group's), "nodes" (what lies in NUMA nodes that the process may use). The smallest decides.
    """

    cpu_model: str
    architecture: str  # "x86_64", "aarch64", ...
    features: tuple[str, ...]  # CPU flags that matter to a kernel, lower case, that the operating system lets be used
    logical_cpus: int  # online ones
    physical_cores: int
    allowed_cpus: tuple[int, ...]  # ids that this process may run on
    numa_nodes: dict[int, Node]  # ids may have gaps; a CPU is in one node at most
    limits: dict[str, float]
    memory_total: int  # the smallest of the memory limits
    memory_available: int  # reclaimable cache counted as available
    last_level_cache: int = 0  # of all that the allowed CPUs read through
    gpus: tuple[Gpu, ...] = ()
    notes: tuple[str, ...] = ()  # what could not be read or is odd, in words
    generation: str = ""  # the CPU's design: "sapphire_rapids", "zen4", "neoverse_v2"
    sockets: int = 1
    cores: tuple[tuple[int, ...], ...] = ()  # allowed CPUs, those of one physical core together
    fast_cores: tuple[tuple[int, ...], ...] = ()  # of these, the performance type; all where there is one type
    smt: str = "none"  # several threads a core: "on", "off" (switched off), "none", "unknown" (a VM may hide it)
    memory_limits: dict[str, int] = field(default_factory=dict)
    memory_policy: str = "default"  # inherited from numactl or the like: "default", "bind:0", "interleave:0-1"
    numa_balancing: bool = False  # whether the kernel moves pages between nodes while they are read
    swap: int = 0
    caches: tuple[Cache, ...] = ()
    hugepages: HugePages = HugePages()
    disks: tuple[Disk, ...] = ()
    surroundings: tuple[str, ...] = ()  # "vm:kvm", "wsl", "docker", "lxc", "kubernetes", "container"
    locked_memory: int | None = None  # bytes that the process may lock; None: no limit, or not said
    open_files: int | None = None  # the same for file descriptors


@dataclass(frozen=True)
class ServerSettings:
    host: str = "127.0.0.1"
    port: int = 30000
    ports: int = 1  # how many ports from `port` upwards may be taken; the first free one is
    served_name: str = ""
    api_keys: tuple[str, ...] = ()  # what clients may send; none: no key is asked for
    cors: tuple[str, ...] = ()  # origins of web pages that may use the server; "*": any
    media_hosts: tuple[str, ...] = ()  # from which images of requests are fetched
    log_prompts: bool = False
    max_queue: int = 64  # waiting requests before 429
    tool_parser: str = "auto"  # how the model writes tool calls and reasoning: a parser's name, "auto" or "none"
    reasoning_parser: str = "auto"
    lora: tuple[tuple[str, str], ...] = ()  # adapters from the start: name and folder
    lora_folder: str = ""  # from which clients may have adapters loaded; "": from nowhere


@dataclass(frozen=True)
class Plan:
    """All that the engine needs to start, and all that was decided with the reasons."""

    model: ModelFiles
    spec: ModelSpec
    decisions: tuple[Decision, ...]
    device_bytes: dict[str, int]  # "cpu", "cuda:0": predicted bytes
    server: ServerSettings
    # of one sequence, "decode_tokens_per_second" and "prefill_tokens_per_second"; what cannot be predicted is not there
    predicted: dict[str, float] = field(default_factory=dict)
    memory_parts: dict[str, int] = field(
        default_factory=dict
    )  # of "cpu": "weights", "runtime", "templates", "rows", "cache"
    # device -> the same of a GPU: "weights", "experts", "cache", "rows", "runtime", "layer"
    gpu_parts: dict[str, dict[str, int]] = field(default_factory=dict)
    version: int = PLAN_VERSION

    def value(self, name: str) -> Any:
        """The value of the decision `name`. Raises KeyError when the plan has no such decision."""
        for decision in self.decisions:
            if decision.name == name:
                return decision.value
        raise KeyError(name)

    def get(self, name: str, default: Any) -> Any:
        """The value of the decision `name`, or `default` where the plan has none or leaves it open."""
        return next((d.value for d in self.decisions if d.name == name and d.value is not None), default)

    def write(self, path: Path) -> None:
        """Write the whole file or none, for its owner's eyes only: it may hold the API key. Raises OSError."""
        _write_whole(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> "Plan":
        """Raises OSError, ValueError, KeyError, TypeError, AttributeError or RecursionError for a file that is not a plan of this version."""
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != PLAN_VERSION:
            raise ValueError(f"plan version {data['version']}, expected {PLAN_VERSION}")
        files = dict(data["model"], files=tuple(data["model"]["files"]))
        return cls(
            model=ModelFiles(**files),
            spec=ModelSpec.read(data["spec"]),
            decisions=tuple(Decision(**d) for d in data["decisions"]),
            device_bytes=data["device_bytes"],
            server=_server(data["server"]),
            predicted=data["predicted"],
            memory_parts=data["memory_parts"],
            gpu_parts=data["gpu_parts"],
        )


def _server(data: dict[str, Any]) -> ServerSettings:
    """JSON has lists where the settings have tuples."""
    settings: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
    }
    return ServerSettings(**settings)


@dataclass(frozen=True)
class MachineProfile:
    """Measured ceilings of a machine. Written by the bench room, read by planning and tuning."""

    fingerprint: dict[str, Any]  # kt_core.machine.profile.fingerprint of the machine
    measured: float  # when, in seconds since 1970; 0: never, the rates are what such hardware should reach
    read_rates: dict[int, float]  # threads -> bytes per second read from memory
    unit_rates: dict[str, dict[int, float]]  # arithmetic unit -> threads -> operations per second
    link_rates: dict[str, dict[str, float]]  # "cuda:0" -> "to", "from" -> bytes per second between pinned memory and it
    version: int = PROFILE_VERSION

    def write(self, path: Path) -> None:
        """Write the whole file or none. Raises OSError."""
        _write_whole(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> "MachineProfile":
        """Raises OSError, ValueError, KeyError, TypeError, AttributeError or RecursionError for a file that is not a profile of this version."""
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != PROFILE_VERSION:
            raise ValueError(f"profile version {data['version']}, expected {PROFILE_VERSION}")
        return cls(
            fingerprint=dict(data["fingerprint"]),
            measured=float(data["measured"]),
            read_rates=_by_threads(data["read_rates"]),
            unit_rates={str(unit): _by_threads(rates) for unit, rates in data["unit_rates"].items()},
            link_rates={
                str(device): {str(way): float(rate) for way, rate in rates.items()}
                for device, rates in data["link_rates"].items()
            },
        )


def _by_threads(rates: dict[str, float]) -> dict[int, float]:
    return {int(threads): float(rate) for threads, rate in rates.items()}


def _write_whole(path: Path, data: dict[str, Any]) -> None:
    """Write `data` as JSON beside `path` and rename, so that the file is whole or absent."""
    text = json.dumps(data, indent=2)  # with escapes: a path need not be UTF-8
    number, name = tempfile.mkstemp(prefix=".", dir=path.parent)  # of mode 0600
    beside = Path(name)
    try:
        with os.fdopen(number, "w", encoding="ascii") as file:
            file.write(text)
        beside.replace(path)
    except BaseException:
        beside.unlink()
        raise


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and typical_p 1 are off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    typical_p: float = 1.0


@dataclass(frozen=True)
class Format:
    """What form a text has to have."""

    kind: str  # "json": value is a JSON schema; "regex"; "choice": a tuple of texts; "grammar": Lark or GBNF
    value: Any
    strict: bool = True  # of a schema: what no grammar can say is an error, not left out
    field: str = ""  # of the request, that asks for it


@dataclass(frozen=True)
class Attachment:
    """An image or a video of a chat message, in the form that it came in."""

    kind: str  # "image" or "video"
    data: bytes = b""  # of the file; of a video also several images, in `frames`
    frames: tuple[bytes, ...] = ()
    url: str = ""  # where it is still to be fetched from


@dataclass(frozen=True)
class Request:
    """One generation request as the engine's front door sees it; every server dialect maps onto it.

    Exactly one of `messages`, `text`, `tokens` is set. `messages` are chat messages in the OpenAI
    shape (role, content as a string, tool_calls, ...), rendered with the model's chat template and
    `template_args`; the last one is continued instead of answered when `continue_final` is set. Content with
    attachments is a list of parts as templates know them, {"type": "image"} for each in its place.
    """

    id: str
    messages: tuple[dict[str, Any], ...] | None = None
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    tools: tuple[dict[str, Any], ...] = ()
    must_call: tuple[str, ...] = ()  # names of tools of which one has to be called; (): the model decides
    template_args: dict[str, Any] = field(default_factory=dict)
    attachments: tuple[Attachment, ...] = ()  # of the messages, in their order
    continue_final: bool = False
    sampling: Sampling = Sampling()
    max_tokens: int | None = None  # None: up to the context
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    choices: int = 1
    logprobs: int | None = None  # None: none; n: the n most likely besides the chosen one
    echo: bool = False  # the answer's text begins with the prompt's, its log-probabilities with those of the prompt
    format: Format | None = None
    grammar: str | None = None  # what the whole answer has to follow, in the dialect of engine/constraint.py
    timeout: float | None = None  # seconds from submission
    adapter: str | None = None  # whose additions to the weights it takes
    progress: bool = False  # tell how far the prompt is after each step
    marks: tuple[str, ...] = ()  # a special token that is one of these, or a part of one, belongs to the answer's text

    @property
    def scores_prompt(self) -> bool:
        """Whether each of the prompt's tokens gets log-probabilities, so that all of them are computed."""
        return self.echo and self.logprobs is not None

    @property
    def continued(self) -> str:
        """The text of the message that is continued; "" for an answer of its own."""
        return str(self.messages[-1].get("content") or "") if self.continue_final and self.messages else ""


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probabilities from the raw logits, independent of temperature."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True)
class Timings:
    """Wall-clock seconds of one request's phases."""

    queued: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0


@dataclass(frozen=True)
class Chunk:
    """A piece of one choice's answer. The last chunk of a choice has finish_reason, usage and timings.

    A chunk with `computed`, for requests with `progress`, is none of the answer: it says how many tokens of the prompt
    are done, with the usage and timings so far.
    """

    text: str
    choice: int = 0
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None  # "stop", "length", "cancelled", "error"
    usage: Usage | None = None
    timings: Timings | None = None
    computed: int | None = None
    stopped: str | None = None  # the stop string that ended the choice
    prompt: tuple[TokenLogprob, ...] = ()  # of the prompt's tokens, the first one's NaN; no text is with them
