"""Names of the ways to hold experts on the CPU, as users of KTransformers know them, and what each is here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """`format` and `group` are those of the weights in memory (group 0: as the checkpoint says, -1: a whole row).

    `quantises`: bfloat16 weights are rounded to that format while they load. Otherwise the checkpoint is read as it is;
    for an empty format, whatever the GGUF file holds. `reads` says in words what checkpoints it takes.
    """

    format: str
    group: int
    quantises: bool
    reads: str


# Online INT4 has groups of 32: half a bit more than groups of 128, and the smallest error without calibration.
METHODS: dict[str, Method] = {
    "AMXINT4": Method("INT4", 32, True, "BF16"),
    "AMXINT8": Method("Q8_0", 32, True, "BF16"),
    "MOE_INT4": Method("INT4", 32, True, "BF16"),
    "MOE_INT8": Method("Q8_0", 32, True, "BF16"),
    "RAWINT4": Method("INT4", 32, False, "compressed-tensors INT4 in groups"),
    "GPTQ_INT4": Method("GPTQ", 0, False, "GPTQ, 4 bits, without activation order"),
    "FP8": Method("FP8_BLOCK", 128, False, "E4M3 with scales of 128 x 128 weights"),
    "FP8_PERCHANNEL": Method("FP8_CHANNEL", -1, False, "E4M3 with a scale for each row"),
    "BF16": Method("BF16", 0, False, "BF16"),
    "MXFP4": Method("MXFP4_HF", 32, False, "E2M1 with an E8M0 scale for 32 weights"),
    "MXFP8": Method("MXFP8", 32, False, "E4M3 with an E8M0 scale for 32 weights"),
    "NVFP4": Method("NVFP4", 16, False, "E2M1 with an E4M3 scale for 16 weights and one of the tensor"),
    "LLAMAFILE": Method("", 0, False, "GGUF"),
}
