"""Predicted tokens a second of one sequence, from a machine's read rate and arithmetic rates: a roofline."""

from kt_core.machine import hardware
from kt_core.plan import gpus, memory
from kt_core.plan.abilities import Engine
from kt_core.plan.cache import UNROUNDED
from kt_core.types import Machine, MachineProfile, ModelSpec

# Of plain reads, what decoding reaches: 78 to 96 % with kt's own kernels on Zen 4 (docs/benchmarks.md). Designs whose caches
# or links hold it back more, by what programs with good kernels report of them.
DECODE_SHARE = 0.8
SLOWER_DESIGNS = {"granite_rapids": 0.6, "neoverse": 0.7, "ampereone": 0.7, "kunpeng": 0.7, "grace": 0.7}
# Of a unit's peak, what a prompt reaches, Python and attention included: 44 to 50 % of int8 and 67 to 76 % of bfloat16 on
# Zen 4; tiles wait for panels, a quarter with 32 rows an expert; float32 is taken to be like bfloat16.
PROMPT_SHARES = {"tile_bf16": 0.25, "int8": 0.45, "bf16": 0.65, "f32": 0.65}
PROMPT_TOKENS = 512
# Of a GPU: the part of its memory's rate that decoding reaches and of its arithmetic that prompts do, and seconds of a layer
# that are neither: launches, and the handshake with the CPU (6 us measured) on both ways
GPU_DECODE, GPU_PROMPT, LAYER_SECONDS = 0.7, 0.5, 30e-6
BFLOAT = (
    "BF16",
    "FP8_BLOCK",
    "FP8_CHANNEL",
    "MXFP8",
)  # whose activations are bfloat16; a test compares with the kernels


def predict(
    machine: Machine,
    spec: ModelSpec,
    threads: int,
    profile: MachineProfile | None,
    placed: gpus.Placed | None = None,
    tokens: int = PROMPT_TOKENS,
) -> dict[str, float]:
    """ "decode_tokens_per_second" while the context is short, and "prefill_tokens_per_second" of a prompt of so many tokens;
    what the profile, or the model's headers, say too little for is left out. `placed`: what lies on GPUs."""
    if profile is None or not profile.read_rates:
        return {}
    read = _nearest(profile.read_rates, threads) * decode_share(machine.generation)
    rate = prompt_rate(spec, threads, profile)
    if placed:
        rates = hardware.gpu_rates(placed.gpus[0])
        return _hybrid(spec, placed, rates, read, rate, tokens) if rates else {}
    found = {"decode_tokens_per_second": read / memory.token_weight_bytes(spec)}
    work = 2 * _prompt_weights(spec) * tokens
    if work > 0 and rate:
        seconds = max(work / rate, memory.weight_bytes(spec) / read)
        found["prefill_tokens_per_second"] = tokens / seconds
    return found


def _prompt_weights(spec: ModelSpec) -> int:
    """Weights that a token of a prompt meets: it looks up a row of the embedding, and the last one alone meets the head."""
    return spec.active_parameters - sum(spec.parameters_by_part.get(part, 0) for part in ("embedding", "head"))


def _hybrid(
    spec: ModelSpec, placed: gpus.Placed, rates: hardware.GpuRates, read: float, rate: float, tokens: int
) -> dict[str, float]:
    """With what every token needs on GPUs, and a part of the experts: the CPU's experts and the GPU's run side by side."""
    together = len(placed.names) if placed.value("layout") == "tensor" else 1
    here = placed.experts / spec.experts if spec.experts else 0.0
    used = spec.experts_per_token / spec.experts if spec.experts else 0.0
    left, spread = spec.bytes_by_part.get("experts", 0) * (1 - here), GPU_DECODE * rates.reads * together
    shared = gpus.part_bytes(spec, "shared", placed.engine) / spread
    always = _read_always(spec, placed.engine) / spread - shared
    beside = gpus.part_bytes(spec, "experts", placed.engine) * used * here / spread + shared
    steps = spec.layers * LAYER_SECONDS
    found = {"decode_tokens_per_second": 1 / (always + max(left * used / read, beside) + steps)}
    on_cpu = 2 * spec.parameters_by_part.get("experts", 0) * used * (1 - here) * tokens
    on_gpu = 2 * _prompt_weights(spec) * tokens - on_cpu
    threshold = placed.value("prefill_threshold")
    if threshold is not None and threshold <= tokens:  # layers are streamed, one beside the computing of another
        chunks = -(-tokens // placed.value("chunk"))
        computing = (on_gpu + on_cpu) / (GPU_PROMPT * rates.operations * together)
        found["prefill_tokens_per_second"] = tokens / (max(computing, chunks * left / rates.link) + steps)
    elif on_gpu > 0 and (rate or not on_cpu):
        waits = max(on_cpu / rate, left / read) if on_cpu else 0.0
        computing = on_gpu / (GPU_PROMPT * rates.operations * together)
        found["prefill_tokens_per_second"] = tokens / (computing + waits + steps)
    return found


def _read_always(spec: ModelSpec, engine: Engine) -> int:
    """Of what lies on GPUs whole, all but an embedding that is no head."""
    row = engine.embedding and "head" in spec.bytes_by_part
    return gpus.resident_bytes(spec, engine) - (gpus.part_bytes(spec, "embedding", engine) if row else 0)


def decode_share(design: str) -> float:
    """Of plain reads, what decoding reaches on a CPU of this design, as Machine.generation has it."""
    return next((share for name, share in SLOWER_DESIGNS.items() if design.startswith(name)), DECODE_SHARE)


def unit_of(form: str) -> str:
    """The vector unit that a stored format's products are made with."""
    return "f32" if form in UNROUNDED else "bf16" if form in BFLOAT else "int8"


def prompt_rate(spec: ModelSpec, threads: int, profile: MachineProfile) -> float:
    """Operations a second: with tiles, else with the unit of most weights, else in float32; 0 where nothing is known."""
    most = max(spec.formats, key=lambda form: spec.formats[form], default="F32")
    for unit in ("tile_bf16", unit_of(most), "f32"):
        if profile.unit_rates.get(unit) and not (unit == "tile_bf16" and most in UNROUNDED):
            return _nearest(profile.unit_rates[unit], threads) * PROMPT_SHARES[unit]
    return 0.0


def _nearest(rates: dict[int, float], threads: int) -> float:
    """The rate with the nearest number of threads."""
    return rates[min(rates, key=lambda measured: abs(measured - threads))]
