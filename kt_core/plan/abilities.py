"""What an engine does with GPUs, as far as a plan must know it: this version's, and one that does all that is planned for."""

from dataclasses import dataclass

# Ways to store experts that a GPU can compute with as they are; what it cannot is decoded to bfloat16 there
STORED = ("BF16", "FP8", "FP8_PERCHANNEL", "RAWINT4", "GPTQ_INT4", "MXFP4", "MXFP8", "NVFP4")
# Ways, and formats of GGUF files, that kt_core/device/panels.py takes apart
PACKED = ("BF16", "FP8", "FP8_PERCHANNEL", "RAWINT4", "GPTQ_INT4", "MXFP4", "F32", "Q4_0", "Q4_K", "Q6_K", "Q8_0")
KINDS = ("cuda", "rocm", "xpu", "npu")


@dataclass(frozen=True)
class Engine:
    """`kinds` of GPU (Gpu.kind) that it computes on, `most` of them together, `asked` where the user wants several. `tensor`: they
    may share layers, and not only follow each other. `stored`: methods whose weights lie there as stored. `packed`: methods, and
    formats of GGUF files, whose experts do. `streamed`: likewise those whose layers are copied for long prompts. `embedding`:
    whether that lies on the GPU too. `layers`: streamed layers kept there, (as they are stored, in bfloat16). `work`: bytes that
    steps take at least, all counted."""

    kinds: tuple[str, ...] = KINDS
    most: int = 64
    asked: int = 64
    tensor: bool = True
    stored: tuple[str, ...] = STORED
    packed: tuple[str, ...] = STORED
    streamed: tuple[str, ...] = STORED
    embedding: bool = False
    layers: tuple[int, int] = (1, 0)
    work: int = 0
    defers: bool = True


WHOLE = Engine()
# kt_core/engine/placing.py and kt_core/operators/streamed.py; docs/hybrid.md says what is missing
THIS = Engine(
    kinds=("cuda",),
    most=1,  # steps over several are no graphs
    asked=8,
    tensor=False,
    stored=("BF16",),
    packed=PACKED,
    streamed=PACKED,
    embedding=True,
    layers=(2, 1),
    work=1 << 30,
    defers=True,
)
